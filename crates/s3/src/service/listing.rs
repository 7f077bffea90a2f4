//! Listings of objects, in both versions of the protocol, and as versions of which there is one each.

use s3s::dto::{
    ChecksumAlgorithm, ChecksumType, CommonPrefix, EncodingType, ListObjectVersionsInput,
    ListObjectVersionsOutput, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output,
    Object, ObjectStorageClass, ObjectVersion, ObjectVersionStorageClass, Owner,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};
use synod_core::objects::Space;
use synod_store::objects::contract::{
    LIST_MAX, ListItem, ListPage, ListPosition, ListQuery, ListedEntry, ObjectStore,
};

use super::{Service, bucket_of};
use crate::digests::Algorithm;
use crate::errors::{record_error, store_error};
use crate::records::{ObjectBrief, Record as _};
use crate::text::{etag, timestamp, url_encoded};

/// What all listings have in common.
struct Asked {
    bucket: String,
    prefix: String,
    delimiter: String,
    limit: usize,
    is_encoded: bool,
}

impl Asked {
    fn new(
        bucket: &str,
        prefix: Option<&str>,
        delimiter: Option<&str>,
        limit: Option<i32>,
        encoding: Option<&EncodingType>,
    ) -> S3Result<Self> {
        let is_encoded = asks_encoding(encoding)?;
        let limit = limit_of(limit)?;
        Ok(Self {
            bucket: bucket.to_owned(),
            prefix: prefix.unwrap_or_default().to_owned(),
            delimiter: delimiter.unwrap_or_default().to_owned(),
            limit,
            is_encoded,
        })
    }

    /// A key as the listing shows it.
    fn text(&self, text: &str) -> String {
        shown_text(text, self.is_encoded)
    }

    /// Where a listing goes on after a name that may be one of its prefixes.
    fn after(&self, name: &str) -> Option<ListPosition> {
        let is_prefix = !self.delimiter.is_empty()
            && name
                .strip_prefix(&self.prefix)
                .and_then(|rest| rest.find(&self.delimiter).map(|at| at + self.delimiter.len() == rest.len()))
                .unwrap_or(false);
        match (name, is_prefix) {
            ("", _) => None,
            (name, true) => Some(ListPosition::Prefix(name.to_owned())),
            (name, false) => Some(ListPosition::Key(name.to_owned())),
        }
    }
}

impl<S: ObjectStore> Service<S> {
    pub(super) async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let bucket = bucket_of(&request)?;
        let input = request.input;
        let asked = Asked::new(
            &input.bucket,
            input.prefix.as_deref(),
            input.delimiter.as_deref(),
            input.max_keys,
            input.encoding_type.as_ref(),
        )?;
        let marker = input.marker.unwrap_or_default();
        let page = self.page(&asked, asked.after(&marker)).await?;
        let next =
            page.items.last().map(item_name).filter(|_| page.is_truncated && !asked.delimiter.is_empty());
        let next_marker = next.map(|name| asked.text(name));
        let (contents, common_prefixes) = shown_page(&asked, &page, Some(&bucket.owner()))?;
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(asked.text(&asked.prefix)),
            marker: Some(asked.text(&marker)),
            max_keys: Some(shown_limit(input.max_keys)),
            is_truncated: Some(page.is_truncated),
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            delimiter: input
                .delimiter
                .as_deref()
                .filter(|text| !text.is_empty())
                .map(|text| asked.text(text)),
            next_marker,
            encoding_type: input.encoding_type,
            ..ListObjectsOutput::default()
        }))
    }

    pub(super) async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let bucket = bucket_of(&request)?;
        let input = request.input;
        let asked = Asked::new(
            &input.bucket,
            input.prefix.as_deref(),
            input.delimiter.as_deref(),
            input.max_keys,
            input.encoding_type.as_ref(),
        )?;
        let after = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => Some(position_of_token(token)?),
            (None, Some(name)) => asked.after(name),
            (None, None) => None,
        };
        let page = self.page(&asked, after).await?;
        let next_continuation_token = page.items.last().filter(|_| page.is_truncated).map(token_after);
        let owner = input.fetch_owner.unwrap_or(false).then(|| bucket.owner());
        let (contents, common_prefixes) = shown_page(&asked, &page, owner.as_ref())?;
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(asked.text(&asked.prefix)),
            max_keys: Some(shown_limit(input.max_keys)),
            key_count: i32::try_from(page.items.len()).ok(),
            continuation_token: input.continuation_token,
            is_truncated: Some(page.is_truncated),
            next_continuation_token,
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            delimiter: input
                .delimiter
                .as_deref()
                .filter(|text| !text.is_empty())
                .map(|text| asked.text(text)),
            encoding_type: input.encoding_type,
            start_after: input.start_after.map(|name| asked.text(&name)),
            ..ListObjectsV2Output::default()
        }))
    }

    /// Every object is the one version of itself, the one without a name.
    pub(super) async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        let bucket = bucket_of(&request)?;
        let input = request.input;
        let asked = Asked::new(
            &input.bucket,
            input.prefix.as_deref(),
            input.delimiter.as_deref(),
            input.max_keys,
            input.encoding_type.as_ref(),
        )?;
        let key_marker = input.key_marker.unwrap_or_default();
        if input.version_id_marker.as_deref().is_some_and(|marker| !marker.is_empty())
            && key_marker.is_empty()
        {
            return Err(s3_error!(
                InvalidArgument,
                "A version-id marker cannot be specified without a key marker."
            ));
        }
        let page = self.page(&asked, asked.after(&key_marker)).await?;
        let last = page.items.last().filter(|_| page.is_truncated);
        let next_version_id_marker =
            last.filter(|item| matches!(item, ListItem::Entry(_))).map(|_| "null".to_owned());
        let next_key_marker = last.map(|item| asked.text(item_name(item)));
        let (contents, common_prefixes) = shown_page(&asked, &page, Some(&bucket.owner()))?;
        let version = |object: Object| ObjectVersion {
            checksum_algorithm: object.checksum_algorithm,
            checksum_type: object.checksum_type,
            e_tag: object.e_tag,
            is_latest: Some(true),
            key: object.key,
            last_modified: object.last_modified,
            owner: object.owner,
            size: object.size,
            storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
            version_id: Some("null".to_owned()),
            ..ObjectVersion::default()
        };
        Ok(S3Response::new(ListObjectVersionsOutput {
            name: Some(input.bucket),
            prefix: Some(asked.text(&asked.prefix)),
            delimiter: input
                .delimiter
                .as_deref()
                .filter(|text| !text.is_empty())
                .map(|text| asked.text(text)),
            max_keys: Some(shown_limit(input.max_keys)),
            key_marker: Some(asked.text(&key_marker)),
            version_id_marker: input.version_id_marker,
            is_truncated: Some(page.is_truncated),
            next_key_marker,
            next_version_id_marker,
            versions: Some(contents.into_iter().map(version).collect()),
            common_prefixes: Some(common_prefixes),
            encoding_type: input.encoding_type,
            ..ListObjectVersionsOutput::default()
        }))
    }

    async fn page(&self, asked: &Asked, after: Option<ListPosition>) -> S3Result<ListPage> {
        if asked.limit == 0 {
            return Ok(ListPage::default());
        }
        let query = ListQuery {
            space: Space::Object,
            bucket: asked.bucket.clone(),
            prefix: asked.prefix.clone(),
            delimiter: asked.delimiter.clone(),
            after,
            limit: asked.limit,
            beside: None,
        };
        self.store().list(query).await.map_err(store_error)
    }
}

/// Whether names are to be shown so that any XML can hold them.
pub(super) fn asks_encoding(encoding: Option<&EncodingType>) -> S3Result<bool> {
    match encoding.map(EncodingType::as_str) {
        None => Ok(false),
        Some(EncodingType::URL) => Ok(true),
        Some(_) => Err(s3_error!(InvalidArgument, "Invalid Encoding Method specified in Request")),
    }
}

pub(super) fn shown_text(text: &str, is_encoded: bool) -> String {
    match is_encoded {
        true => url_encoded(text),
        false => text.to_owned(),
    }
}

/// How many items are wanted, at most as many as a page has.
pub(super) fn limit_of(limit: Option<i32>) -> S3Result<usize> {
    match limit {
        None => Ok(LIST_MAX),
        Some(limit) => usize::try_from(limit).map(|limit| limit.min(LIST_MAX)).map_err(|_| {
            s3_error!(InvalidArgument, "Argument max-keys must be an integer between 0 and 2147483647")
        }),
    }
}

pub(super) fn shown_limit(limit: Option<i32>) -> i32 {
    limit.unwrap_or(i32::MAX).min(1000)
}

fn shown_page(
    asked: &Asked,
    page: &ListPage,
    owner: Option<&Owner>,
) -> S3Result<(Vec<Object>, Vec<CommonPrefix>)> {
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    for item in &page.items {
        match item {
            ListItem::Entry(entry) => objects.push(shown_object(asked, entry, owner)?),
            ListItem::Prefix(prefix) => prefixes.push(CommonPrefix { prefix: Some(asked.text(prefix)) }),
        }
    }
    Ok((objects, prefixes))
}

fn shown_object(asked: &Asked, entry: &ListedEntry, owner: Option<&Owner>) -> S3Result<Object> {
    let brief = ObjectBrief::from_bytes(entry.brief.clone()).map_err(record_error)?;
    let algorithm = Algorithm::from_number(brief.algorithm);
    let checksum_type = algorithm.map(|_| match brief.is_composite {
        true => ChecksumType::from_static(ChecksumType::COMPOSITE),
        false => ChecksumType::from_static(ChecksumType::FULL_OBJECT),
    });
    Ok(Object {
        checksum_algorithm: algorithm.map(|algorithm| vec![ChecksumAlgorithm::from_static(algorithm.name())]),
        checksum_type,
        e_tag: Some(etag(&entry.etag)),
        key: Some(asked.text(&entry.key)),
        last_modified: Some(timestamp(entry.modified_ms)),
        owner: owner.cloned(),
        restore_status: None,
        size: i64::try_from(entry.size).ok(),
        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
    })
}

fn item_name(item: &ListItem) -> &str {
    match item {
        ListItem::Entry(entry) => &entry.key,
        ListItem::Prefix(prefix) => prefix,
    }
}

/// Tells where a page ended in a way that only we read.
fn token_after(item: &ListItem) -> String {
    let (kind, name) = match item {
        ListItem::Entry(entry) => ('k', &entry.key),
        ListItem::Prefix(prefix) => ('p', prefix),
    };
    base64_simd::URL_SAFE_NO_PAD.encode_to_string(format!("{kind}{name}"))
}

fn position_of_token(token: &str) -> S3Result<ListPosition> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    match text.split_at_checked(1) {
        Some(("k", key)) if !key.is_empty() => Ok(ListPosition::Key(key.to_owned())),
        Some(("p", prefix)) if !prefix.is_empty() => Ok(ListPosition::Prefix(prefix.to_owned())),
        _ => Err(s3_error!(InvalidArgument, "The continuation token provided is incorrect")),
    }
}
