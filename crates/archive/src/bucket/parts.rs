//! What an upload in parts has already: the one question that the library of the bucket does not know how to ask. It signs
//! the question; the answer is read here, as far as it is needed.

use std::collections::BTreeMap;
use std::time::Duration;

use object_store::multipart::PartId;
use object_store::signer::{SignedUrlOptions, Signer as _};
use reqwest::{Method, StatusCode};
use synod_core::objects::EntryName;

use super::{Archive, LOOK_TIMEOUT, failed};
use crate::settings::ArchiveError;

/// A part that was sent.
#[derive(Clone, Debug)]
pub(crate) struct SentPart {
    /// What completes the upload.
    pub(crate) id: PartId,
    pub(crate) bytes: u64,
}

impl Archive {
    /// The parts that an upload has, by their index. `None` when there is no such upload, or nobody can say.
    pub(crate) async fn sent_parts(
        &self,
        object: &EntryName,
        upload: &str,
    ) -> Result<Option<BTreeMap<usize, SentPart>>, ArchiveError> {
        let mut sent = BTreeMap::new();
        let mut after = 0;
        loop {
            let asked = tokio::time::timeout(LOOK_TIMEOUT, self.ask_for_parts(object, upload, after)).await;
            let Some(text) = asked.map_err(|_| failed("it does not say which parts it has"))?? else {
                return Ok(None);
            };
            let page = PartsPage::parse(&text).ok_or_else(|| failed("its list of parts cannot be read"))?;
            sent.extend(page.parts);
            match page.next {
                None => return Ok(Some(sent)),
                // A list that goes in circles is none.
                Some(next) if next <= after => return Err(failed("its list of parts does not end")),
                Some(next) => after = next,
            }
        }
    }

    async fn ask_for_parts(
        &self,
        object: &EntryName,
        upload: &str,
        after: u32,
    ) -> Result<Option<String>, ArchiveError> {
        let query = [("uploadId", upload.to_owned()), ("part-number-marker", after.to_string())];
        let options = SignedUrlOptions::default().with_query(query);
        let path = self.path(object)?;
        let signed = self.s3.signed_url_opts(Method::GET, &path, SIGNED_FOR, &options).await;
        let url = signed.map_err(|error| failed(&error.to_string()))?;
        // The address would tell whoever reads a log how to ask.
        let unanswered = |error: reqwest::Error| failed(&error.without_url().to_string());
        let mut answer = self.http.get(url).send().await.map_err(unanswered)?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::NOT_IMPLEMENTED => return Ok(None),
            status => return Err(failed(&format!("it does not say which parts it has: {status}"))),
        }
        let mut text = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(unanswered)? {
            if text.len() + piece.len() > ANSWER_BYTES_MAX {
                return Err(failed("its list of parts is too long"));
            }
            text.extend_from_slice(&piece);
        }
        String::from_utf8(text).map(Some).map_err(|_| failed("its list of parts cannot be read"))
    }
}

/// One answer of several.
struct PartsPage {
    parts: Vec<(usize, SentPart)>,
    /// After which number to go on.
    next: Option<u32>,
}

impl PartsPage {
    fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.split_once("<Part>").unwrap_or((text, ""));
        if !head.contains("<ListPartsResult") {
            return None;
        }
        let part = |text: &str| {
            let number: usize = value(text, "PartNumber")?.parse().ok()?;
            let content_id = value(text, "ETag")?.replace("&quot;", "\"").replace("&#34;", "\"");
            let bytes = value(text, "Size")?.parse().ok()?;
            Some((number.checked_sub(1)?, SentPart { id: PartId { content_id }, bytes }))
        };
        let parts = rest.split("<Part>").filter(|_| !rest.is_empty()).map(part).collect::<Option<_>>()?;
        let next = match value(text, "IsTruncated") {
            Some("true") => Some(value(text, "NextPartNumberMarker")?.parse().ok()?),
            _ => None,
        };
        Some(Self { parts, next })
    }
}

/// The text of the first element of a name. No value that is asked for has elements in it.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(value, _)| value.trim())
}

/// It is asked at once.
const SIGNED_FOR: Duration = Duration::from_secs(60);
/// A thousand parts, of some hundred bytes each, are an answer.
const ANSWER_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_parts_is_read_and_nothing_else_is() {
        let part = |number: u32| {
            format!(
                "<Part><ETag>&quot;e{number}&quot;</ETag>\n<PartNumber>{number}</PartNumber><Size>8</Size></Part>"
            )
        };
        let text = format!(
            "<?xml version=\"1.0\"?><ListPartsResult xmlns=\"x\"><IsTruncated>true</IsTruncated>\
             <NextPartNumberMarker>3</NextPartNumberMarker>{}{}</ListPartsResult>",
            part(1),
            part(3)
        );
        let page = PartsPage::parse(&text).expect("a page");
        let read: Vec<_> = page
            .parts
            .iter()
            .map(|(index, part)| (*index, part.id.content_id.as_str(), part.bytes))
            .collect();
        assert_eq!(read, [(0, "\"e1\"", 8), (2, "\"e3\"", 8)]);
        assert_eq!(page.next, Some(3));
        let none = "<ListPartsResult><IsTruncated>false</IsTruncated></ListPartsResult>";
        assert!(PartsPage::parse(none).is_some_and(|page| page.parts.is_empty() && page.next.is_none()));
        let broken = text.replace("<Size>8</Size>", "");
        let zero = text.replace("<PartNumber>1<", "<PartNumber>0<");
        let endless = text.replace("NextPartNumberMarker", "Next");
        for text in ["", "<html>welcome</html>", &broken, &zero, &endless] {
            assert!(PartsPage::parse(text).is_none(), "{text}");
        }
    }
}
