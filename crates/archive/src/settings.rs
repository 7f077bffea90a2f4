//! What the configuration of a cluster says of its archive.

use std::fmt;

use serde::Deserialize;

/// Where the archive is, and who may use it.
#[derive(Clone, PartialEq, Eq)]
pub struct ArchiveSettings {
    /// The bucket.
    pub bucket: String,
    /// Its region.
    pub region: String,
    /// The service, if it is not that of AWS: `https://host` or `http://host:port`.
    pub endpoint: Option<String>,
    /// Whether the endpoint may be plain HTTP.
    pub allow_http: bool,
    /// The access key. Without it, credentials come from the environment as AWS tools take them.
    pub access_key_id: Option<String>,
    /// Its secret.
    pub secret_access_key: Option<String>,
}

impl ArchiveSettings {
    /// Reads the text of the bootstrap state. The secret is not part of it: it stays on each node.
    ///
    /// # Errors
    /// The text is not that of an archive, or there is a key without its secret.
    pub fn parse(text: &str, secret: Option<&str>) -> Result<Self, ArchiveError> {
        let ArchiveText { archive_type, s3 } = serde_json::from_str(text)
            .map_err(|error| ArchiveError::Settings { reason: error.to_string() })?;
        if archive_type != "s3" {
            let reason = format!("there is no archive of type `{archive_type}`");
            return Err(ArchiveError::Settings { reason });
        }
        let S3Text { bucket, region, endpoint, allow_http, access_key_id } = s3;
        if access_key_id.is_some() && secret.is_none() {
            return Err(ArchiveError::Secret);
        }
        let secret_access_key = access_key_id.as_ref().and(secret).map(str::to_owned);
        Ok(Self { bucket, region, endpoint, allow_http, access_key_id, secret_access_key })
    }
}

impl fmt::Debug for ArchiveSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveSettings")
            .field("bucket", &self.bucket)
            .field("endpoint", &self.endpoint)
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct ArchiveText {
    archive_type: String,
    s3: S3Text,
}

#[derive(Deserialize)]
struct S3Text {
    bucket: String,
    region: String,
    endpoint: Option<String>,
    #[serde(default)]
    allow_http: bool,
    access_key_id: Option<String>,
}

/// Something could not be done with the archive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The configuration cannot be used.
    #[error("the archive cannot be used: {reason}")]
    Settings {
        /// Why.
        reason: String,
    },
    /// A node has the access key and not its secret.
    #[error(
        "the archive has an access key, and this node does not have its secret; it is `secret_access_key` in the \
         configuration, or AWS_SECRET_ACCESS_KEY in the environment of a node that joins"
    )]
    Secret,
    /// The archive did not do it, or did not answer.
    #[error("the archive failed: {reason}")]
    Failed {
        /// What it said.
        reason: String,
    },
    /// The copy is not the one that was expected. Somebody is replacing it, or has.
    #[error("the copy in the archive is another one")]
    Changed,
    /// The cluster did not do what was asked of it.
    #[error(transparent)]
    Store(#[from] synod_store::objects::contract::StoreError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_the_configuration_is_read_and_a_key_needs_its_secret() {
        let text = r#"{"archive_type":"s3","s3":{"bucket":"b","region":"r","endpoint":"http://h:1","allow_http":true,
            "access_key_id":"id"}}"#;
        let settings = ArchiveSettings::parse(text, Some("hidden")).unwrap();
        assert_eq!((settings.bucket.as_str(), settings.allow_http), ("b", true));
        assert_eq!(settings.secret_access_key.as_deref(), Some("hidden"));
        assert!(!format!("{settings:?}").contains("hidden"));
        assert_eq!(ArchiveSettings::parse(text, None), Err(ArchiveError::Secret));
        assert!(matches!(
            ArchiveSettings::parse(&text.replace("\"s3\",", "\"tape\","), None),
            Err(ArchiveError::Settings { .. })
        ));
    }
}
