//! Asking the api listeners of nodes, for `join` and for the command line.

use std::time::Duration;

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;

use crate::admin::AdminToken;

/// Asks `url` with GET, and reads the JSON of the answer.
///
/// # Errors
/// Nobody answered in time, or something else than JSON of that shape.
pub async fn get_json<T: DeserializeOwned>(url: &str, timeout: Duration) -> Result<T, HttpError> {
    call_json(Method::GET, url, None, None, timeout).await
}

/// Calls `url` with a method, a JSON text, and what operators show, and reads the JSON of the answer.
///
/// # Errors
/// Nobody answered in time, or something else than JSON of that shape.
pub async fn call_json<T: DeserializeOwned>(
    method: Method,
    url: &str,
    body: Option<String>,
    token: Option<&AdminToken>,
    timeout: Duration,
) -> Result<T, HttpError> {
    let failed = |reason: String| HttpError::Unreachable { url: url.to_owned(), reason };
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(timeout));
    let client = Client::builder(TokioExecutor::new()).build::<_, Full<bytes::Bytes>>(connector);
    let request = Request::builder().method(method).uri(url);
    let request = match token {
        Some(token) => request.header(http::header::AUTHORIZATION, token.header()),
        None => request,
    };
    let request = match &body {
        Some(_) => request.header(http::header::CONTENT_TYPE, "application/json"),
        None => request,
    };
    let request = request.body(Full::from(body.unwrap_or_default()));
    let request = request.map_err(|error| failed(error.to_string()))?;
    let answered = async {
        let response = client.request(request).await.map_err(|error| failed(chain(&error)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| failed(error.to_string()))?.to_bytes();
        if !status.is_success() {
            let said = serde_json::from_slice::<serde_json::Value>(&body).ok();
            let said = said.and_then(|said| said.get("error")?.as_str().map(str::to_owned));
            let reason = said.unwrap_or_else(|| String::from_utf8_lossy(&body).trim().to_owned());
            return Err(HttpError::Refused { url: url.to_owned(), status: status.as_u16(), reason });
        }
        serde_json::from_slice(&body)
            .map_err(|error| failed(format!("the answer is not understood: {error}")))
    };
    match tokio::time::timeout(timeout, answered).await {
        Ok(answer) => answer,
        Err(_) => Err(failed(format!("no answer within {timeout:?}"))),
    }
}

/// A node was asked in vain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// Nobody answered, or not in time, or not what was asked for.
    #[error("{url}: {reason}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// The node said no.
    #[error("{url} answered {status}: {reason}")]
    Refused {
        /// What was asked.
        url: String,
        /// The status of the answer.
        status: u16,
        /// What the node said.
        reason: String,
    },
}

/// The causes of an error, the last of which says what really happened.
fn chain(error: &dyn std::error::Error) -> String {
    let mut last = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        last = cause.to_string();
        next = cause.source();
    }
    last
}

/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 16 << 20;
