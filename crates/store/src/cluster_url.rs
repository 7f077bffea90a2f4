//! The address of a cluster, `cluster://host:port,host:port`: any of its nodes, by their HTTP listeners.
//!
//! One reachable node is enough to join, so the order means nothing and a node named twice is named once. An IPv6 address
//! stands in brackets; without a port it is [`DEFAULT_PORT`].

use std::fmt;
use std::str::FromStr;

use synod_core::id::{Authority, AuthorityError};

/// Where a cluster is reached. There is at least one address, and none is there twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterUrl {
    seeds: Vec<Authority>,
}

impl ClusterUrl {
    /// Reads an address, and says which of its nodes were named more than once.
    ///
    /// # Errors
    /// [`ClusterUrlError`] names the piece that cannot be used.
    pub fn parse(text: &str) -> Result<(Self, Vec<Authority>), ClusterUrlError> {
        let is_scheme = |found: &str| found.eq_ignore_ascii_case(SCHEME);
        let list = match text.split_once("://") {
            Some((scheme, list)) if is_scheme(scheme) => list,
            _ => return Err(ClusterUrlError::Scheme { text: shown(text) }),
        };
        if list.trim().is_empty() {
            return Err(ClusterUrlError::Empty);
        }
        let (mut seeds, mut repeated) = (Vec::new(), Vec::new());
        for piece in list.split(',') {
            let seed = parse_seed(piece.trim())?;
            if seeds.contains(&seed) {
                repeated.push(seed);
            } else if seeds.len() == SEEDS_MAX {
                return Err(ClusterUrlError::TooMany);
            } else {
                seeds.push(seed);
            }
        }
        Ok((Self { seeds }, repeated))
    }

    /// The nodes, in the order in which they were named.
    #[must_use]
    pub fn seeds(&self) -> &[Authority] {
        &self.seeds
    }
}

impl FromStr for ClusterUrl {
    type Err = ClusterUrlError;

    fn from_str(text: &str) -> Result<Self, ClusterUrlError> {
        Self::parse(text).map(|(url, _)| url)
    }
}

impl fmt::Display for ClusterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}://")?;
        for (index, seed) in self.seeds.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{seed}")?;
        }
        Ok(())
    }
}

/// A text is not the address of a cluster. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterUrlError {
    /// It does not begin with `cluster://`.
    #[error("the address of a cluster is {SCHEME}://host:port,host:port; {text:?} does not begin like that")]
    Scheme {
        /// What there is, or the beginning of it.
        text: String,
    },
    /// It names nobody.
    #[error("the address of a cluster names at least one node: {SCHEME}://host:port")]
    Empty,
    /// It names too many.
    #[error("the address of a cluster names at most {SEEDS_MAX} nodes")]
    TooMany,
    /// A piece has no host.
    #[error("{piece:?} names no host; an address of a cluster is {SCHEME}://host:port,host:port")]
    EmptyHost {
        /// The piece.
        piece: String,
    },
    /// A port is not one.
    #[error("{piece:?} has no port from 1 to 65535 behind its colon")]
    Port {
        /// The piece.
        piece: String,
    },
    /// A host is not one.
    #[error("the host of {piece:?} is neither a name, an IPv4 address nor an IPv6 address in brackets")]
    Host {
        /// The piece.
        piece: String,
    },
    /// An IPv6 address stands without brackets, so that nobody can tell where its port begins.
    #[error("{piece:?} looks like an IPv6 address; put it in brackets, as in [::1]:{DEFAULT_PORT}")]
    Brackets {
        /// The piece.
        piece: String,
    },
    /// A piece has a user name or password.
    #[error("the piece for {host:?} has user info before an @, which the address of a cluster does not have")]
    UserInfo {
        /// What follows the @. What stands before it may be a password and is not repeated.
        host: String,
    },
    /// A piece has a path, a query or a fragment.
    #[error("{piece:?} has a path, a query or a fragment, which the address of a cluster does not have")]
    Path {
        /// The piece.
        piece: String,
    },
}

/// Reads one node: `host`, `host:port`, `[ipv6]` or `[ipv6]:port`. Names have no case.
pub(crate) fn parse_seed(piece: &str) -> Result<Authority, ClusterUrlError> {
    if let Some((_, host)) = piece.rsplit_once('@') {
        return Err(ClusterUrlError::UserInfo { host: shown(host) });
    }
    let named = || shown(piece);
    if piece.contains(['/', '?', '#']) {
        return Err(ClusterUrlError::Path { piece: named() });
    }
    let (host, port) = match piece.rsplit_once(':') {
        // The colon of a port stands behind the brackets.
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (piece, None),
    };
    if host.is_empty() || host == "[]" {
        return Err(ClusterUrlError::EmptyHost { piece: named() });
    }
    if host.contains(':') && !host.starts_with('[') {
        return Err(ClusterUrlError::Brackets { piece: named() });
    }
    let is_plain = |port: &&str| port.bytes().all(|byte| byte.is_ascii_digit());
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => Some(port).filter(is_plain).and_then(|port| port.parse().ok()).unwrap_or_default(),
    };
    Authority::new(&format!("{}:{port}", host.to_ascii_lowercase())).map_err(|error| match error {
        AuthorityError::InvalidPort => ClusterUrlError::Port { piece: named() },
        _ => ClusterUrlError::Host { piece: named() },
    })
}

/// The beginning of a text, short enough for a message.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

/// The port of a node's HTTP listener where none is given.
pub const DEFAULT_PORT: u16 = 8400;
/// Most nodes that an address names.
pub const SEEDS_MAX: usize = 100;
const SCHEME: &str = "cluster";
const SHOWN_CHARS_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn seeds(text: &str) -> Vec<String> {
        let url: ClusterUrl = text.parse().expect("an address");
        url.seeds().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn nodes_are_named_with_and_without_ports_and_in_brackets() {
        assert_eq!(
            seeds("cluster://seed1:8400,seed2,192.19.0.1:482,[::1]:9000,[0:0::2]"),
            ["seed1:8400", "seed2:8400", "192.19.0.1:482", "[::1]:9000", "[::2]:8400"]
        );
        assert_eq!(seeds("CLUSTER://Node1:1, node2:2"), ["node1:1", "node2:2"]);
    }

    #[test]
    fn a_node_named_twice_is_kept_once_and_noted() {
        let (url, repeated) =
            ClusterUrl::parse("cluster://a,b:1,A:8400,[::1]:2,[0::1]:2").expect("an address");
        assert_eq!(url.to_string(), "cluster://a:8400,b:1,[::1]:2");
        assert_eq!(repeated.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:8400", "[::1]:2"]);
    }

    #[test]
    fn every_bad_address_is_refused_by_the_piece_that_is_bad() {
        use ClusterUrlError as E;
        let piece = |text: &str| text.to_owned();
        let cases = [
            ("", E::Scheme { text: piece("") }),
            ("http://a:1", E::Scheme { text: piece("http://a:1") }),
            ("a:8400", E::Scheme { text: piece("a:8400") }),
            ("cluster:a", E::Scheme { text: piece("cluster:a") }),
            ("cluster://", E::Empty),
            ("cluster://  ", E::Empty),
            ("cluster://a,", E::EmptyHost { piece: piece("") }),
            ("cluster://a,,b", E::EmptyHost { piece: piece("") }),
            ("cluster://:8400", E::EmptyHost { piece: piece(":8400") }),
            ("cluster://[]:8400", E::EmptyHost { piece: piece("[]:8400") }),
            ("cluster://a:0", E::Port { piece: piece("a:0") }),
            ("cluster://a:65536", E::Port { piece: piece("a:65536") }),
            ("cluster://a:", E::Port { piece: piece("a:") }),
            ("cluster://a:+80", E::Port { piece: piece("a:+80") }),
            ("cluster://b,a:x", E::Port { piece: piece("a:x") }),
            ("cluster://a b:1", E::Host { piece: piece("a b:1") }),
            ("cluster://[::g]:1", E::Host { piece: piece("[::g]:1") }),
            ("cluster://[::1:1", E::Host { piece: piece("[::1:1") }),
            ("cluster://::1", E::Brackets { piece: piece("::1") }),
            ("cluster://fe80::1:8400", E::Brackets { piece: piece("fe80::1:8400") }),
            ("cluster://me:pw@a:1", E::UserInfo { host: piece("a:1") }),
            ("cluster://a:1/", E::Path { piece: piece("a:1/") }),
            ("cluster://a:1,b:2?x=1", E::Path { piece: piece("b:2?x=1") }),
            ("cluster://a#b", E::Path { piece: piece("a#b") }),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<ClusterUrl>(), Err(error), "{text}");
        }
        let many: Vec<String> = (0..=SEEDS_MAX).map(|number| format!("n{number}")).collect();
        assert_eq!(format!("cluster://{}", many.join(",")).parse::<ClusterUrl>(), Err(E::TooMany));
    }

    #[test]
    fn a_password_is_not_repeated_in_an_error() {
        let error = "cluster://me:hunter2@a:1".parse::<ClusterUrl>().expect_err("user info");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    fn seed() -> impl Strategy<Value = String> {
        let name = "[a-z0-9][a-z0-9_.-]{0,20}";
        let v6 = any::<u128>().prop_map(|bits| format!("[{}]", std::net::Ipv6Addr::from(bits)));
        let v4 = any::<u32>().prop_map(|bits| std::net::Ipv4Addr::from(bits).to_string());
        (prop_oneof![name, v4, v6], 1..=u16::MAX).prop_map(|(host, port)| format!("{host}:{port}"))
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(seeds in vec(seed(), 1..8)) {
            let text = format!("cluster://{}", seeds.join(","));
            let (url, repeated) = ClusterUrl::parse(&text).expect("an address");
            prop_assert_eq!(url.seeds().len() + repeated.len(), seeds.len());
            let (again, none) = ClusterUrl::parse(&url.to_string()).expect("what was shown");
            prop_assert_eq!(&again, &url);
            prop_assert_eq!(none, []);
            prop_assert_eq!(again.to_string(), url.to_string());
        }

        #[test]
        fn no_text_makes_it_panic(text in "(cluster://)?[a-c0-9:,@/\\[\\]#?.+ \u{e4}]{0,40}") {
            if let Ok(url) = text.parse::<ClusterUrl>() {
                prop_assert_eq!(url.to_string().parse(), Ok(url));
            }
        }
    }
}
