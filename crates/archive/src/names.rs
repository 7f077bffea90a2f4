//! Where the copy of an object is in the bucket of the archive.
//!
//! `namespace/bucket/key`, readable as it is. Keys of S3 are any text, and paths of archives are not: what would not survive
//! (empty segments, `.` and `..`, control characters, `%` itself) is written `%XX`, so that no two keys share a path. What is
//! longer than a key of S3 may be is called by its hash.

use object_store::path::Path;
use sha2::{Digest as _, Sha256};
use synod_core::objects::EntryName;

/// Where the copy of an object is.
pub(crate) fn copy_path(namespace: &str, object: &EntryName) -> Option<Path> {
    path(&[namespace, object.bucket()], object.key())
}

/// Where its metadata is, when there is too much of it for the copy itself.
pub(crate) fn meta_path(namespace: &str, object: &EntryName) -> Option<Path> {
    path(&[namespace, META_SEGMENT, object.bucket()], object.key())
}

/// `None` for what the library does not take, which nothing is.
fn path(above: &[&str], key: &str) -> Option<Path> {
    let mut text: Vec<String> = above.iter().map(|segment| escaped(segment, true)).collect();
    // An empty segment would vanish. No other segment is written so: `%` is always followed by what it stands for.
    let shown = |segment: &str| if segment.is_empty() { "%2F".to_owned() } else { escaped(segment, false) };
    text.extend(key.split('/').map(shown));
    let whole = text.join("/");
    if whole.len() <= PATH_BYTES_MAX {
        return Path::parse(whole).ok();
    }
    let hash = Sha256::digest(key.as_bytes());
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut short: Vec<String> = above.iter().map(|segment| escaped(segment, true)).collect();
    short.insert(1, LONG_SEGMENT.to_owned());
    short.push(hex);
    Path::parse(short.join("/")).ok()
}

fn escaped(segment: &str, is_above: bool) -> String {
    if segment == "." || segment == ".." {
        return segment.replace('.', "%2E");
    }
    let mut text = String::with_capacity(segment.len());
    for char in segment.chars() {
        let is_kept = !char.is_ascii_control() && char != '%' && !(is_above && char == '/');
        if is_kept {
            text.push(char);
        } else {
            // Only ASCII comes here.
            text += &format!("%{:02X}", u32::from(char));
        }
    }
    text
}

/// No bucket is called so: names of buckets begin with a letter or a digit.
const META_SEGMENT: &str = ".meta";
const LONG_SEGMENT: &str = ".long";
/// Longest key of S3.
const PATH_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use synod_core::objects::Space;

    fn at(key: &str) -> String {
        let name = EntryName::new(Space::Object, "photos", key).unwrap();
        copy_path("prod", &name).unwrap().to_string()
    }

    #[test]
    fn plain_keys_are_found_under_their_own_name() {
        assert_eq!(at("2026/a b/ü (1)+~*.jpg"), "prod/photos/2026/a b/ü (1)+~*.jpg");
        let name = EntryName::new(Space::Object, "photos", "a").unwrap();
        assert_eq!(meta_path("prod", &name).unwrap().to_string(), "prod/.meta/photos/a");
    }

    #[test]
    fn no_two_keys_share_a_path() {
        let mut keys: Vec<String> = [
            "a", "a/", "/a", "//a", "a//", "a//b", "a/b", "a///b", "/", "//", "///", ".", "..", "%2E", "%2F",
            "./a", "../a", "a/.", "a/..", "%", "%25", "a\nb", "a%0Ab", "a/%2F/b", "a/%2F", "\u{7f}", "%7F",
            "...", "A",
        ]
        .map(str::to_owned)
        .to_vec();
        keys.push("x".repeat(1024));
        keys.push("x".repeat(1023) + "y");
        keys.push("/".repeat(1024));
        let paths: BTreeSet<String> = keys.iter().map(|key| at(key)).collect();
        assert_eq!(paths.len(), keys.len(), "{paths:?}");
        assert!(paths.iter().all(|path| path.len() <= PATH_BYTES_MAX && path.starts_with("prod/")));
    }
}
