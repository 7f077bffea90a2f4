use alloc::string::ToString;

use super::*;

#[test]
fn node_names_are_parsed_or_refused_with_the_reason() {
    assert_eq!(NodeId::new("node-1.eu_west").expect("a plain name").as_str(), "node-1.eu_west");
    assert_eq!(NodeId::new(""), Err(NodeIdError::Empty));
    assert_eq!(NodeId::new(&"n".repeat(129)), Err(NodeIdError::TooLong { bytes: 129 }));
    for character in [' ', '/', '#', ':', '\n', 'é'] {
        let name = format!("node{character}1");
        assert_eq!(NodeId::new(&name), Err(NodeIdError::ForbiddenCharacter { character }));
    }
}

#[test]
fn incarnations_start_at_one_and_end_before_overflow() {
    assert_eq!(Incarnation::new(0), Err(IncarnationError::Zero));
    assert_eq!(Incarnation::new(1), Ok(Incarnation::FIRST));
    assert_eq!(
        Incarnation::new(INCARNATION_MAX + 1),
        Err(IncarnationError::TooLarge { value: INCARNATION_MAX + 1 })
    );
    let last = Incarnation::new(INCARNATION_MAX).expect("the largest incarnation");
    assert_eq!(last.next(), None);
    assert_eq!(Incarnation::FIRST.next().map(Incarnation::get), Some(2));
}

#[test]
fn authorities_accept_names_ipv4_and_canonical_ipv6() {
    assert_eq!(Authority::new("db1.example:8401").expect("a name").as_str(), "db1.example:8401");
    assert_eq!(Authority::new("127.0.0.1:1").expect("IPv4").as_str(), "127.0.0.1:1");
    // Two spellings of one address are one authority.
    let long = Authority::new("[0:0:0:0:0:0:0:1]:8401").expect("IPv6");
    assert_eq!(long.to_string(), "[::1]:8401");
    assert_eq!(long, Authority::new("[::1]:8401").expect("IPv6"));
}

#[test]
fn malformed_authorities_are_refused_with_the_reason() {
    let cases = [
        ("localhost", AuthorityError::MissingPort),
        ("", AuthorityError::MissingPort),
        (":8401", AuthorityError::MissingHost),
        ("localhost:", AuthorityError::InvalidPort),
        ("localhost:0", AuthorityError::InvalidPort),
        ("localhost:65536", AuthorityError::InvalidPort),
        ("localhost:+1", AuthorityError::InvalidPort),
        ("localhost:-1", AuthorityError::InvalidPort),
        ("::1:8401", AuthorityError::InvalidHost),
        ("[::g]:8401", AuthorityError::InvalidHost),
        ("[::1:8401", AuthorityError::InvalidHost),
        ("a b:8401", AuthorityError::InvalidHost),
        ("user@host:8401", AuthorityError::InvalidHost),
    ];
    for (text, error) in cases {
        assert_eq!(Authority::new(text), Err(error), "{text:?}");
    }
    let long = "h".repeat(AUTHORITY_BYTES_MAX);
    assert!(matches!(Authority::new(&format!("{long}:1")), Err(AuthorityError::TooLong { .. })));
}

#[test]
fn a_member_id_is_read_back_from_what_it_is_written_as() {
    for text in ["a#1", "node-1.eu_west#42", "a#9007199254740991"] {
        assert_eq!(text.parse::<MemberId>().map(|member| member.to_string()), Ok(text.into()));
    }
    let cases = [
        ("a", MemberIdError::MissingIncarnation),
        ("", MemberIdError::MissingIncarnation),
        ("#1", MemberIdError::Node(NodeIdError::Empty)),
        ("a#b#1", MemberIdError::Node(NodeIdError::ForbiddenCharacter { character: '#' })),
        ("a#", MemberIdError::NotANumber),
        ("a#+1", MemberIdError::NotANumber),
        ("a#-1", MemberIdError::NotANumber),
        ("a#01", MemberIdError::NotANumber),
        ("a#99999999999999999999", MemberIdError::NotANumber),
        ("a#0", MemberIdError::Incarnation(IncarnationError::Zero)),
        (
            "a#9007199254740992",
            MemberIdError::Incarnation(IncarnationError::TooLarge { value: INCARNATION_MAX + 1 }),
        ),
    ];
    for (text, error) in cases {
        assert_eq!(text.parse::<MemberId>(), Err(error), "{text:?}");
    }
}

#[test]
fn an_authority_is_a_host_and_a_port() {
    for (text, host, port) in [("db1.example:8401", "db1.example", 8401), ("[::1]:1", "[::1]", 1)] {
        let authority = Authority::new(text).expect("an authority");
        assert_eq!((authority.host(), authority.port()), (host, port));
    }
}
