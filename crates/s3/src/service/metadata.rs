//! What is kept of an object beside its bytes, and what is refused because it could not be kept.

use s3s::dto::{Metadata, Tag};
use s3s::{S3Result, s3_error};

use crate::records::Pair;
use crate::text::url_decoded;

/// Metadata of the user, in the order of its names.
pub(super) fn user_metadata(given: Option<Metadata>) -> S3Result<Vec<Pair>> {
    let mut pairs: Vec<Pair> =
        given.unwrap_or_default().into_iter().map(|(key, value)| Pair { key, value }).collect();
    pairs.sort_by(|a, b| a.key.cmp(&b.key));
    let bytes: usize = pairs.iter().map(|pair| pair.key.len() + pair.value.len()).sum();
    match bytes <= USER_METADATA_BYTES_MAX {
        true => Ok(pairs),
        false => {
            Err(s3_error!(MetadataTooLarge, "Your metadata headers exceed the maximum allowed metadata size"))
        }
    }
}

pub(super) fn shown_metadata(pairs: &[Pair]) -> Option<Metadata> {
    let shown = || pairs.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect();
    (!pairs.is_empty()).then(shown)
}

/// How a body is encoded, without what only its way here was.
pub(super) fn content_encoding(given: Option<String>) -> Option<String> {
    let given = given?;
    let kept: Vec<&str> =
        given.split(',').map(str::trim).filter(|name| !name.eq_ignore_ascii_case("aws-chunked")).collect();
    (!kept.is_empty()).then(|| kept.join(","))
}

/// The tags in a header: `name=value&name=value`.
pub(super) fn tags_of_header(header: Option<&str>) -> S3Result<Vec<Pair>> {
    let mut tags = Vec::new();
    for pair in header.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match (url_decoded(key, true), url_decoded(value, true)) {
            (Some(key), Some(value)) => tags.push(Pair { key, value }),
            _ => {
                return Err(s3_error!(
                    InvalidArgument,
                    "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name duplicates."
                ));
            }
        }
    }
    checked_tags(tags)
}

/// The tags in a document.
pub(super) fn tags_of_document(tags: Vec<Tag>) -> S3Result<Vec<Pair>> {
    let pair = |tag: Tag| Pair { key: tag.key.unwrap_or_default(), value: tag.value.unwrap_or_default() };
    checked_tags(tags.into_iter().map(pair).collect())
}

pub(super) fn shown_tags(tags: &[Pair]) -> Vec<Tag> {
    tags.iter().map(|tag| Tag { key: Some(tag.key.clone()), value: Some(tag.value.clone()) }).collect()
}

fn checked_tags(tags: Vec<Pair>) -> S3Result<Vec<Pair>> {
    if tags.len() > TAGS_MAX {
        let message = format!("Object tags cannot be greater than {TAGS_MAX}");
        return Err(crate::errors::custom("BadRequest", http::StatusCode::BAD_REQUEST, message));
    }
    for (place, tag) in tags.iter().enumerate() {
        if tag.key.is_empty() || tag.key.chars().count() > TAG_KEY_LETTERS_MAX || !is_tag_text(&tag.key) {
            return Err(s3_error!(InvalidTag, "The TagKey you have provided is invalid"));
        }
        if tag.value.chars().count() > TAG_VALUE_LETTERS_MAX || !is_tag_text(&tag.value) {
            return Err(s3_error!(InvalidTag, "The TagValue you have provided is invalid"));
        }
        if tags[..place].iter().any(|other| other.key == tag.key) {
            return Err(s3_error!(InvalidTag, "Cannot provide multiple Tags with the same key"));
        }
    }
    Ok(tags)
}

fn is_tag_text(text: &str) -> bool {
    text.chars().all(|letter| letter.is_alphanumeric() || letter == ' ' || "+-=._:/@".contains(letter))
}

/// Refuses what an object cannot have here, rather than to forget it.
macro_rules! refuse_unsupported {
    ($input:expr) => {{
        use $crate::errors::not_here;
        let input = &$input;
        let is_encrypted = input.server_side_encryption.is_some()
            || input.sse_customer_algorithm.is_some()
            || input.sse_customer_key.is_some()
            || input.sse_customer_key_md5.is_some()
            || input.ssekms_key_id.is_some()
            || input.ssekms_encryption_context.is_some()
            || input.bucket_key_enabled.is_some();
        let is_locked = input.object_lock_mode.is_some()
            || input.object_lock_legal_hold_status.is_some()
            || input.object_lock_retain_until_date.is_some();
        let is_granted = input.grant_full_control.is_some()
            || input.grant_read.is_some()
            || input.grant_read_acp.is_some()
            || input.grant_write_acp.is_some();
        let acl = input.acl.as_ref().map(|acl| acl.as_str());
        let class = input.storage_class.as_ref().map(|class| class.as_str());
        match () {
            () if is_encrypted => Err(not_here("Encryption by the server")),
            () if is_locked => Err(not_here("Locking of objects")),
            () if is_granted => Err(not_here("Granting access to an object")),
            // The owner of a bucket may do everything with its objects in any case.
            () if !matches!(acl, None | Some("private" | "bucket-owner-full-control")) => {
                Err(not_here("An ACL other than private"))
            }
            () if !matches!(class, None | Some("STANDARD")) => {
                Err(not_here("A storage class other than STANDARD"))
            }
            () if input.website_redirect_location.is_some() => Err(not_here("Redirection")),
            () => Ok(()),
        }
    }};
}

/// What headers say of an object.
macro_rules! meta_of {
    ($input:expr) => {{
        let input = &mut $input;
        $crate::records::ObjectMeta {
            content_type: input.content_type.take(),
            cache_control: input.cache_control.take(),
            content_disposition: input.content_disposition.take(),
            content_encoding: $crate::service::metadata::content_encoding(input.content_encoding.take()),
            content_language: input.content_language.take(),
            expires_ms: input.expires.take().map(|time| $crate::text::milliseconds(&time)),
            user: $crate::service::metadata::user_metadata(input.metadata.take())?,
            ..$crate::records::ObjectMeta::default()
        }
    }};
}

pub(super) use {meta_of, refuse_unsupported};

/// Most bytes of names and values of metadata.
const USER_METADATA_BYTES_MAX: usize = 2048;
/// Most tags of an object.
pub(super) const TAGS_MAX: usize = 10;
/// Longest name of a tag.
const TAG_KEY_LETTERS_MAX: usize = 128;
/// Longest value of a tag.
const TAG_VALUE_LETTERS_MAX: usize = 256;
