//! The configuration of a bucket: what can be set, and what is truly never set.

use http::StatusCode;
use s3s::dto::{
    AbortIncompleteMultipartUpload, CORSRule, DeleteBucketCorsInput, DeleteBucketCorsOutput,
    DeleteBucketLifecycleInput, DeleteBucketLifecycleOutput, ExpirationStatus, GetBucketAclInput,
    GetBucketAclOutput, GetBucketCorsInput, GetBucketCorsOutput, GetBucketEncryptionInput,
    GetBucketEncryptionOutput, GetBucketLifecycleConfigurationInput, GetBucketLifecycleConfigurationOutput,
    GetBucketLoggingInput, GetBucketLoggingOutput, GetBucketOwnershipControlsInput,
    GetBucketOwnershipControlsOutput, GetBucketPolicyInput, GetBucketPolicyOutput, GetBucketReplicationInput,
    GetBucketReplicationOutput, GetBucketRequestPaymentInput, GetBucketRequestPaymentOutput,
    GetBucketTaggingInput, GetBucketTaggingOutput, GetBucketVersioningInput, GetBucketVersioningOutput,
    GetBucketWebsiteInput, GetBucketWebsiteOutput, GetObjectLockConfigurationInput,
    GetObjectLockConfigurationOutput, GetPublicAccessBlockInput, GetPublicAccessBlockOutput,
    LifecycleExpiration, LifecycleRule, LifecycleRuleAndOperator, LifecycleRuleFilter, ObjectOwnership,
    OwnershipControls, OwnershipControlsRule, Payer, PutBucketAclInput, PutBucketAclOutput,
    PutBucketCorsInput, PutBucketCorsOutput, PutBucketLifecycleConfigurationInput,
    PutBucketLifecycleConfigurationOutput, Tag,
};
use s3s::{S3Error, S3Request, S3Response, S3Result, s3_error};
use synod_store::objects::contract::ObjectStore;

use super::attributes::full_control;
use super::{Service, bucket_of};
use crate::errors::{custom, not_here};
use crate::records::{CorsRecord, LifecycleRecord, Pair};
use crate::text::{milliseconds, timestamp};

impl<S: ObjectStore> Service<S> {
    pub(super) async fn put_bucket_cors(
        &self,
        request: S3Request<PutBucketCorsInput>,
    ) -> S3Result<S3Response<PutBucketCorsOutput>> {
        let input = request.input;
        let rules = input.cors_configuration.cors_rules;
        if rules.is_empty() || rules.len() > CORS_RULES_MAX {
            return Err(malformed());
        }
        let rules = rules.into_iter().map(cors_record).collect::<S3Result<Vec<_>>>()?;
        self.change_bucket(&input.bucket, |record| record.cors.clone_from(&rules)).await?;
        Ok(S3Response::new(PutBucketCorsOutput::default()))
    }

    pub(super) fn get_bucket_cors(
        &self,
        request: &S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        let bucket = bucket_of(request)?;
        if bucket.record.cors.is_empty() {
            return Err(s3_error!(NoSuchCORSConfiguration, "The CORS configuration does not exist"));
        }
        let cors_rules = Some(bucket.record.cors.iter().map(shown_cors).collect());
        Ok(S3Response::new(GetBucketCorsOutput { cors_rules }))
    }

    pub(super) async fn delete_bucket_cors(
        &self,
        request: S3Request<DeleteBucketCorsInput>,
    ) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
        self.change_bucket(&request.input.bucket, |record| record.cors.clear()).await?;
        Ok(S3Response::new(DeleteBucketCorsOutput::default()))
    }

    pub(super) async fn put_bucket_lifecycle_configuration(
        &self,
        request: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<PutBucketLifecycleConfigurationOutput>> {
        let input = request.input;
        let rules = input.lifecycle_configuration.ok_or_else(malformed)?.rules;
        if rules.is_empty() || rules.len() > LIFECYCLE_RULES_MAX {
            return Err(malformed());
        }
        let mut records: Vec<LifecycleRecord> = Vec::with_capacity(rules.len());
        for (place, rule) in rules.into_iter().enumerate() {
            let record = lifecycle_record(rule, place)?;
            if records.iter().any(|other| other.id == record.id) {
                return Err(s3_error!(
                    InvalidArgument,
                    "Rule ID must be unique. Found same ID for more than one rule"
                ));
            }
            records.push(record);
        }
        self.change_bucket(&input.bucket, |bucket| bucket.lifecycle.clone_from(&records)).await?;
        Ok(S3Response::new(PutBucketLifecycleConfigurationOutput::default()))
    }

    pub(super) fn get_bucket_lifecycle_configuration(
        &self,
        request: &S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        let bucket = bucket_of(request)?;
        if bucket.record.lifecycle.is_empty() {
            return Err(s3_error!(
                NoSuchLifecycleConfiguration,
                "The lifecycle configuration does not exist"
            ));
        }
        let rules = Some(bucket.record.lifecycle.iter().map(shown_lifecycle).collect());
        Ok(S3Response::new(GetBucketLifecycleConfigurationOutput { rules, ..<_>::default() }))
    }

    pub(super) async fn delete_bucket_lifecycle(
        &self,
        request: S3Request<DeleteBucketLifecycleInput>,
    ) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
        self.change_bucket(&request.input.bucket, |record| record.lifecycle.clear()).await?;
        Ok(S3Response::new(DeleteBucketLifecycleOutput::default()))
    }

    pub(super) fn get_bucket_acl(
        &self,
        request: &S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        let owner = bucket_of(request)?.owner();
        let grants = Some(vec![full_control(&owner)]);
        Ok(S3Response::new(GetBucketAclOutput { grants, owner: Some(owner) }))
    }

    /// Sets what is so in any case; anything else is refused.
    pub(super) fn put_bucket_acl(
        &self,
        request: &S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        bucket_of(request)?;
        match request.input.acl.as_ref().map(s3s::dto::BucketCannedACL::as_str) {
            Some("private") => Ok(S3Response::new(PutBucketAclOutput::default())),
            _ => Err(not_here("An ACL other than private")),
        }
    }

    /// Versioning was never enabled, which is told by saying nothing.
    pub(super) fn get_bucket_versioning(
        &self,
        request: &S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        bucket_of(request)?;
        Ok(S3Response::new(GetBucketVersioningOutput::default()))
    }

    pub(super) fn get_bucket_logging(
        &self,
        request: &S3Request<GetBucketLoggingInput>,
    ) -> S3Result<S3Response<GetBucketLoggingOutput>> {
        bucket_of(request)?;
        Ok(S3Response::new(GetBucketLoggingOutput::default()))
    }

    pub(super) fn get_bucket_request_payment(
        &self,
        request: &S3Request<GetBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
        bucket_of(request)?;
        let payer = Some(Payer::from_static(Payer::BUCKET_OWNER));
        Ok(S3Response::new(GetBucketRequestPaymentOutput { payer }))
    }

    pub(super) fn get_bucket_ownership_controls(
        &self,
        request: &S3Request<GetBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
        bucket_of(request)?;
        let object_ownership = ObjectOwnership::from_static(ObjectOwnership::BUCKET_OWNER_ENFORCED);
        let rules = vec![OwnershipControlsRule { object_ownership }];
        let ownership_controls = Some(OwnershipControls { rules });
        Ok(S3Response::new(GetBucketOwnershipControlsOutput { ownership_controls }))
    }

    pub(super) fn get_bucket_policy(
        &self,
        request: &S3Request<GetBucketPolicyInput>,
    ) -> S3Result<S3Response<GetBucketPolicyOutput>> {
        bucket_of(request)?;
        Err(s3_error!(NoSuchBucketPolicy, "The bucket policy does not exist"))
    }

    pub(super) fn get_bucket_tagging(
        &self,
        request: &S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        bucket_of(request)?;
        Err(s3_error!(NoSuchTagSet, "The TagSet does not exist"))
    }

    pub(super) fn get_bucket_website(
        &self,
        request: &S3Request<GetBucketWebsiteInput>,
    ) -> S3Result<S3Response<GetBucketWebsiteOutput>> {
        bucket_of(request)?;
        Err(s3_error!(
            NoSuchWebsiteConfiguration,
            "The specified bucket does not have a website configuration"
        ))
    }

    pub(super) fn get_bucket_replication(
        &self,
        request: &S3Request<GetBucketReplicationInput>,
    ) -> S3Result<S3Response<GetBucketReplicationOutput>> {
        bucket_of(request)?;
        Err(s3_error!(ReplicationConfigurationNotFoundError, "The replication configuration was not found"))
    }

    pub(super) fn get_bucket_encryption(
        &self,
        request: &S3Request<GetBucketEncryptionInput>,
    ) -> S3Result<S3Response<GetBucketEncryptionOutput>> {
        bucket_of(request)?;
        Err(custom(
            "ServerSideEncryptionConfigurationNotFoundError",
            StatusCode::NOT_FOUND,
            "The server side encryption configuration was not found",
        ))
    }

    pub(super) fn get_object_lock_configuration(
        &self,
        request: &S3Request<GetObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
        bucket_of(request)?;
        Err(s3_error!(
            ObjectLockConfigurationNotFoundError,
            "Object Lock configuration does not exist for this bucket"
        ))
    }

    pub(super) fn get_public_access_block(
        &self,
        request: &S3Request<GetPublicAccessBlockInput>,
    ) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
        bucket_of(request)?;
        Err(custom(
            "NoSuchPublicAccessBlockConfiguration",
            StatusCode::NOT_FOUND,
            "The public access block configuration was not found",
        ))
    }
}

fn malformed() -> S3Error {
    s3_error!(
        MalformedXML,
        "The XML you provided was not well-formed or did not validate against our published schema"
    )
}

fn cors_record(rule: CORSRule) -> S3Result<CorsRecord> {
    if rule.allowed_methods.is_empty() || rule.allowed_origins.is_empty() {
        return Err(malformed());
    }
    let known = ["GET", "PUT", "POST", "DELETE", "HEAD"];
    if let Some(method) = rule.allowed_methods.iter().find(|method| !known.contains(&method.as_str())) {
        return Err(s3_error!(
            InvalidRequest,
            "Found unsupported HTTP method in CORS config. Unsupported method is {method}"
        ));
    }
    let headers = rule.allowed_headers.unwrap_or_default();
    for pattern in rule.allowed_origins.iter().chain(&headers) {
        if pattern.matches('*').count() > 1 {
            return Err(s3_error!(InvalidRequest, "\"{pattern}\" can not have more than one wildcard."));
        }
    }
    let exposed = rule.expose_headers.unwrap_or_default();
    if let Some(pattern) = exposed.iter().find(|name| name.contains('*')) {
        return Err(s3_error!(
            InvalidRequest,
            "ExposeHeader \"{pattern}\" contains wildcard. We currently do not support wildcard for ExposeHeader."
        ));
    }
    if rule.id.as_ref().is_some_and(|id| id.len() > RULE_ID_BYTES_MAX) {
        return Err(s3_error!(
            InvalidArgument,
            "ID length should not exceed allowed limit of {RULE_ID_BYTES_MAX}"
        ));
    }
    let max_age_seconds = rule.max_age_seconds.map(u32::try_from).transpose().map_err(|_| malformed())?;
    Ok(CorsRecord {
        id: rule.id,
        origins: rule.allowed_origins,
        methods: rule.allowed_methods,
        headers,
        exposed,
        max_age_seconds,
    })
}

fn shown_cors(rule: &CorsRecord) -> CORSRule {
    let some = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
    CORSRule {
        id: rule.id.clone(),
        allowed_origins: rule.origins.clone(),
        allowed_methods: rule.methods.clone(),
        allowed_headers: some(&rule.headers),
        expose_headers: some(&rule.exposed),
        max_age_seconds: rule.max_age_seconds.and_then(|seconds| i32::try_from(seconds).ok()),
    }
}

fn lifecycle_record(rule: LifecycleRule, place: usize) -> S3Result<LifecycleRecord> {
    if rule.transitions.is_some_and(|transitions| !transitions.is_empty()) {
        return Err(not_here("Transition to another storage class"));
    }
    if rule.noncurrent_version_expiration.is_some() || rule.noncurrent_version_transitions.is_some() {
        return Err(not_here("Lifecycle of noncurrent versions"));
    }
    let is_enabled = match rule.status.as_str() {
        ExpirationStatus::ENABLED => true,
        ExpirationStatus::DISABLED => false,
        _ => return Err(malformed()),
    };
    let id = rule.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("rule-{}", place + 1));
    if id.len() > RULE_ID_BYTES_MAX {
        return Err(s3_error!(
            InvalidArgument,
            "ID length should not exceed allowed limit of {RULE_ID_BYTES_MAX}"
        ));
    }
    let mut record = LifecycleRecord { id, is_enabled, ..LifecycleRecord::default() };
    match (rule.filter, rule.prefix) {
        (Some(_), Some(_)) | (None, None) => return Err(malformed()),
        (None, Some(prefix)) => (record.prefix, record.filter_form) = (prefix, FORM_BARE_PREFIX),
        (Some(filter), None) => take_filter(&mut record, filter)?,
    }
    let size = |bytes: Option<u64>| bytes.unwrap_or(u64::MAX);
    if record.larger_than.is_some() && size(record.larger_than) >= size(record.smaller_than) {
        return Err(s3_error!(
            InvalidRequest,
            "'ObjectSizeLessThan' has to be a value greater than 'ObjectSizeGreaterThan'"
        ));
    }
    if let Some(expiration) = rule.expiration {
        if expiration.expired_object_delete_marker.is_some() {
            return Err(not_here("Expiration of delete markers"));
        }
        match (expiration.days, expiration.date) {
            (Some(days), None) => record.expire_days = Some(positive(days, "Expiration")?),
            (None, Some(date)) => {
                let ms = milliseconds(&date);
                if !ms.is_multiple_of(DAY_MS) {
                    return Err(s3_error!(InvalidArgument, "'Date' must be at midnight GMT"));
                }
                record.expire_date_ms = Some(ms);
            }
            _ => return Err(malformed()),
        }
    }
    if let Some(abort) = rule.abort_incomplete_multipart_upload {
        if !record.tags.is_empty() || record.larger_than.is_some() || record.smaller_than.is_some() {
            return Err(s3_error!(
                InvalidRequest,
                "AbortIncompleteMultipartUpload cannot be specified with Tags or object sizes."
            ));
        }
        let days = abort.days_after_initiation.ok_or_else(malformed)?;
        record.abort_days = Some(positive(days, "AbortIncompleteMultipartUpload")?);
    }
    if record.expire_days.is_none() && record.expire_date_ms.is_none() && record.abort_days.is_none() {
        return Err(s3_error!(InvalidRequest, "At least one action needs to be specified in a rule"));
    }
    Ok(record)
}

fn take_filter(record: &mut LifecycleRecord, filter: LifecycleRuleFilter) -> S3Result<()> {
    let LifecycleRuleFilter { and, object_size_greater_than, object_size_less_than, prefix, tag, .. } =
        filter;
    let pair = |tag: Tag| Pair { key: tag.key.unwrap_or_default(), value: tag.value.unwrap_or_default() };
    let bytes = |bytes: Option<i64>| bytes.map(u64::try_from).transpose().map_err(|_| malformed());
    let given = usize::from(object_size_greater_than.is_some())
        + usize::from(object_size_less_than.is_some())
        + usize::from(prefix.is_some())
        + usize::from(tag.is_some());
    match and {
        Some(_) if given > 0 => return Err(malformed()),
        None if given > 1 => return Err(malformed()),
        Some(and) => {
            let tags = and.tags.unwrap_or_default();
            record.filter_form = FORM_AND;
            record.prefix = and.prefix.unwrap_or_default();
            record.tags = tags.into_iter().map(pair).collect();
            record.larger_than = bytes(and.object_size_greater_than)?;
            record.smaller_than = bytes(and.object_size_less_than)?;
        }
        None => {
            record.filter_form = if prefix.is_some() { FORM_PREFIX } else { FORM_OTHER };
            record.prefix = prefix.unwrap_or_default();
            record.tags = tag.into_iter().map(pair).collect();
            record.larger_than = bytes(object_size_greater_than)?;
            record.smaller_than = bytes(object_size_less_than)?;
        }
    }
    for (place, tag) in record.tags.iter().enumerate() {
        if tag.key.is_empty() || record.tags[..place].iter().any(|other| other.key == tag.key) {
            return Err(s3_error!(InvalidRequest, "Duplicate Tag Keys are not allowed."));
        }
    }
    Ok(())
}

fn shown_lifecycle(rule: &LifecycleRecord) -> LifecycleRule {
    let tags: Vec<Tag> = super::metadata::shown_tags(&rule.tags);
    let bytes = |bytes: Option<u64>| bytes.and_then(|bytes| i64::try_from(bytes).ok());
    let days = |days: u32| i32::try_from(days).ok();
    let mut shown = LifecycleRule {
        abort_incomplete_multipart_upload: rule
            .abort_days
            .map(|count| AbortIncompleteMultipartUpload { days_after_initiation: days(count) }),
        expiration: (rule.expire_days.is_some() || rule.expire_date_ms.is_some()).then(|| {
            LifecycleExpiration {
                date: rule.expire_date_ms.map(timestamp),
                days: rule.expire_days.and_then(days),
                expired_object_delete_marker: None,
            }
        }),
        filter: None,
        id: Some(rule.id.clone()),
        noncurrent_version_expiration: None,
        noncurrent_version_transitions: None,
        prefix: None,
        status: ExpirationStatus::from_static(match rule.is_enabled {
            true => ExpirationStatus::ENABLED,
            false => ExpirationStatus::DISABLED,
        }),
        transitions: None,
    };
    match rule.filter_form {
        FORM_BARE_PREFIX => shown.prefix = Some(rule.prefix.clone()),
        FORM_AND => {
            let and = LifecycleRuleAndOperator {
                object_size_greater_than: bytes(rule.larger_than),
                object_size_less_than: bytes(rule.smaller_than),
                prefix: Some(rule.prefix.clone()).filter(|prefix| !prefix.is_empty()),
                tags: Some(tags),
            };
            shown.filter = Some(LifecycleRuleFilter { and: Some(and), ..<_>::default() });
        }
        form => {
            shown.filter = Some(LifecycleRuleFilter {
                prefix: (form == FORM_PREFIX).then(|| rule.prefix.clone()),
                tag: tags.into_iter().next(),
                object_size_greater_than: bytes(rule.larger_than),
                object_size_less_than: bytes(rule.smaller_than),
                ..<_>::default()
            });
        }
    }
    shown
}

fn positive(days: i32, action: &str) -> S3Result<u32> {
    u32::try_from(days)
        .ok()
        .filter(|days| *days > 0)
        .ok_or_else(|| s3_error!(InvalidArgument, "'Days' for {action} action must be a positive integer"))
}

/// The rule has a prefix and no filter.
const FORM_BARE_PREFIX: u32 = 0;
/// The filter is a prefix.
const FORM_PREFIX: u32 = 1;
/// The filter is something else, or nothing.
const FORM_OTHER: u32 = 2;
/// The filter is several things.
const FORM_AND: u32 = 3;
/// Most rules for other origins.
const CORS_RULES_MAX: usize = 100;
/// Most rules for the life of objects.
const LIFECYCLE_RULES_MAX: usize = 1000;
/// Longest id of a rule.
const RULE_ID_BYTES_MAX: usize = 255;
/// A day in milliseconds.
const DAY_MS: u64 = 86_400_000;
