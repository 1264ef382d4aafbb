//! One request to one endpoint: what is sent, what comes back, and what kind of failure a failure is.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_metrics::Etcd as Metrics;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, StatusCode};
use tokio::time::{Instant, timeout_at};

use super::Refusal;
use crate::cause::bottom;
use crate::failover::after;
use crate::http;
use crate::{Error, ErrorKind, Repeat, Result};

/// The largest form that is sent; a value counts as it is encoded. etcd reads forms of 10 MiB, but it cannot
/// start again once its log has an entry of that size, so this stays a little below.
pub const MAX_FORM: usize = (10 << 20) - (64 << 10);

/// The largest reply that is read: a bound for what a hostile server can make us hold, and room for the listing
/// of a large directory, which has all values in it.
pub const MAX_REPLY: usize = 256 << 20;

/// A request, wherever it is sent.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) what: &'static str,
    pub(super) key: &'a str,
    pub(super) method: Method,
    /// With its query.
    pub(super) path: String,
    pub(super) form: Option<String>,
    /// A poll, whose answer begins at once and goes on when something happens.
    pub(super) poll: bool,
}

impl Request<'_> {
    pub(super) fn error(&self, kind: ErrorKind) -> Error {
        let error = Error::new(kind, self.what);
        if self.key.is_empty() { error } else { error.key(self.key) }
    }

    /// What it is counted as.
    fn kind(&self) -> &'static str {
        match self.method {
            _ if self.poll => "watch",
            Method::GET => "get",
            Method::PUT | Method::POST => "put",
            Method::DELETE => "delete",
            _ => "other",
        }
    }

    /// Whether it can be sent twice without harm.
    pub(super) fn repeat(&self) -> Repeat {
        if self.method == Method::GET { Repeat::Safe } else { Repeat::Unsafe }
    }
}

/// An answer that is no refusal.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) etcd_index: u64,
    pub(super) body: Body,
}

impl Reply {
    pub(super) fn text(&self) -> &[u8] {
        match &self.body {
            Body::Whole(text) => text,
            Body::Begun(_) => b"",
        }
    }
}

#[derive(Debug)]
pub(super) enum Body {
    Whole(Vec<u8>),
    /// Of a poll.
    Begun(Box<reqwest::Response>),
}

/// How the answer to a poll went on.
#[derive(Debug)]
pub(super) enum Rest {
    Whole(Vec<u8>),
    /// Nothing happened while it lasted; or the server is not there any more, which nobody has said.
    Quiet,
    /// It broke off.
    Cut,
}

#[derive(Debug)]
pub(super) struct Transport {
    http: reqwest::Client,
    settings: EtcdSettings,
    metrics: Metrics,
}

impl Transport {
    pub(super) fn new(settings: EtcdSettings, metrics: Metrics) -> Result<Self> {
        let http = http::client(&settings)?;
        Ok(Transport { http, settings, metrics })
    }

    pub(super) fn settings(&self) -> &EtcdSettings {
        &self.settings
    }

    /// Sends `request` to the server at `url` and reads the answer, until `deadline` or the end of one try.
    pub(super) async fn send(&self, url: &str, request: &Request<'_>, deadline: Instant) -> Result<Reply> {
        let asked = Instant::now();
        let answer = self.try_once(url, request, deadline).await;
        self.metrics.request(request.kind(), answer.is_ok(), asked.elapsed());
        if !answer.as_ref().is_err_and(Error::is_transient) {
            self.metrics.answered();
        }
        answer
    }

    async fn try_once(&self, url: &str, request: &Request<'_>, deadline: Instant) -> Result<Reply> {
        let error = |kind| request.error(kind).endpoint(url);
        let deadline = deadline.min(after(self.settings.request_timeout));
        let sending = self.build(url, request).send();
        let response = match timeout_at(deadline, sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(cause)) => return Err(why(error(failure(&cause)), cause)),
            Err(_) => return Err(error(ErrorKind::Timeout)),
        };
        let status = response.status();
        let etcd_index = response.headers().get("x-etcd-index").and_then(index).unwrap_or_default();

        if request.poll && status.is_success() {
            return Ok(Reply { etcd_index, body: Body::Begun(Box::new(response)) });
        }
        let body = match timeout_at(deadline, read(response)).await {
            Ok(Ok(Some(body))) => body,
            Ok(Ok(None)) => return Err(too_large(error(ErrorKind::Protocol))),
            Ok(Err(cause)) => return Err(why(error(failure(&cause)), cause)),
            Err(_) => return Err(error(ErrorKind::Timeout)),
        };
        if status.is_success() {
            return Ok(Reply { etcd_index, body: Body::Whole(body) });
        }
        if let Some(refusal) = Refusal::parse(&body) {
            return Err(error(refusal.kind()).because(refusal));
        }
        let (kind, help) = unexpected(status);
        let text: String = String::from_utf8_lossy(&body).trim().chars().take(200).collect();
        Err(error(kind).because(format!("HTTP {status}{help}: {text:?}")))
    }

    /// Waits for the rest of the answer to a poll, for so long.
    pub(super) async fn listen(
        request: &Request<'_>,
        response: reqwest::Response,
        time: Duration,
    ) -> Result<Rest> {
        match timeout_at(after(time), read(response)).await {
            Ok(Ok(Some(body))) if body.is_empty() => Ok(Rest::Cut),
            Ok(Ok(Some(body))) => Ok(Rest::Whole(body)),
            Ok(Ok(None)) => Err(too_large(request.error(ErrorKind::Protocol))),
            Ok(Err(_)) => Ok(Rest::Cut),
            Err(_) => Ok(Rest::Quiet),
        }
    }

    fn build(&self, url: &str, request: &Request<'_>) -> reqwest::RequestBuilder {
        let mut builder = self.http.request(request.method.clone(), format!("{url}{}", request.path));
        if let Some(form) = &request.form {
            let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
            builder = builder.header(CONTENT_TYPE, kind).body(form.clone());
        }
        if let Some(credentials) = &self.settings.credentials {
            builder = builder.basic_auth(&credentials.user, Some(&credentials.password));
        }
        builder
    }
}

fn index(header: &HeaderValue) -> Option<u64> {
    header.to_str().ok()?.parse().ok()
}

fn why(error: Error, cause: reqwest::Error) -> Error {
    error.because(bottom(&cause.without_url()).to_string())
}

fn too_large(error: Error) -> Error {
    error.because(format!("it is larger than {MAX_REPLY} bytes"))
}

/// The body, or nothing if it is too large.
async fn read(mut response: reqwest::Response) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_REPLY {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

/// What is said of a server that has no v2 API.
pub const NO_V2: &str = " (is the v2 API on? etcd 3.4 and 3.5 need --enable-v2, and a later one a `rallypoint gateway` before it)";

/// What a reply that is not of the v2 API means.
fn unexpected(status: StatusCode) -> (ErrorKind, &'static str) {
    match status {
        StatusCode::NOT_FOUND => (ErrorKind::Rejected, NO_V2),
        StatusCode::UNAUTHORIZED => (ErrorKind::Auth, ""),
        StatusCode::FORBIDDEN => (ErrorKind::PermissionDenied, ""),
        StatusCode::PAYLOAD_TOO_LARGE => (ErrorKind::TooLarge, ""),
        StatusCode::TOO_MANY_REQUESTS => (ErrorKind::Busy, ""),
        // A gateway in between: the request may have gone through.
        status if status.is_server_error() => (ErrorKind::Interrupted, ""),
        _ => (ErrorKind::Rejected, ""),
    }
}

fn failure(error: &reqwest::Error) -> ErrorKind {
    if is_tls(error) {
        ErrorKind::Tls
    } else if error.is_connect() {
        ErrorKind::Unreachable
    } else if error.is_builder() {
        ErrorKind::Settings
    } else if error.is_timeout() {
        ErrorKind::Timeout
    } else {
        ErrorKind::Interrupted
    }
}

fn is_tls(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        // An IO error skips what it wraps when asked for its source.
        let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if cause.is::<rustls::Error>() || wrapped.is_some_and(|wrapped| is_tls(wrapped)) {
            return true;
        }
        next = cause.source();
    }
    false
}
