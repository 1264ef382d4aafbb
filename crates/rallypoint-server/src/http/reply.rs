//! Answers that several handlers give.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

const CLUSTER_ID_HEADER: HeaderName = HeaderName::from_static("x-etcd-cluster-id");

/// What needs no escape in a path, as Go sees it.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// A body in JSON.
pub(super) fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    with_type(status, "application/json", body)
}

/// An answer that says which cluster it is from, as most do, if that is known.
pub(super) fn from_cluster(cluster_id: u64, mut response: Response) -> Response {
    if cluster_id != 0 {
        response.headers_mut().insert(CLUSTER_ID_HEADER, text_value(&format!("{cluster_id:x}")));
    }
    response
}

/// A header of a number.
pub(super) fn with_number(mut response: Response, name: &'static str, number: u64) -> Response {
    response.headers_mut().insert(HeaderName::from_static(name), number.into());
    response
}

/// Plain text.
pub(super) fn text(body: impl Into<Body>) -> Response {
    with_type(StatusCode::OK, "text/plain; charset=utf-8", body)
}

/// The same, with another status.
pub(super) fn text_with(status: StatusCode, body: impl Into<Body>) -> Response {
    with_type(status, "text/plain; charset=utf-8", body)
}

/// Text of another type.
pub(super) fn of_type(content_type: &'static str, body: impl Into<Body>) -> Response {
    with_type(StatusCode::OK, content_type, body)
}

/// Whether the method is among the allowed ones; if not, the answer that names those.
pub(super) fn allow(method: &Method, allowed: &[Method]) -> Result<(), Box<Response>> {
    if allowed.contains(method) {
        return Ok(());
    }
    let names: Vec<&str> = allowed.iter().map(Method::as_str).collect();
    let mut response = plain_error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
    response.headers_mut().insert(header::ALLOW, text_value(&names.join(",")));
    Err(Box::new(response))
}

pub(super) fn not_found() -> Response {
    plain_error(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// A path with a broken escape.
pub(super) fn bad_request() -> Response {
    plain_error(StatusCode::BAD_REQUEST, "400 Bad Request")
}

/// Sends the client to another path. The query goes with it. A body is for people, who ask with GET.
pub(super) fn moved(method: &Method, path: &[u8], query: Option<&str>) -> Response {
    let mut location = percent_encode(path, PATH).to_string();
    if let Some(query) = query {
        location.push('?');
        location.push_str(query);
    }
    let mut response = match *method {
        Method::GET => {
            let link = format!("<a href=\"{}\">Moved Permanently</a>.\n\n", escaped(&location));
            with_type(StatusCode::MOVED_PERMANENTLY, HTML, link)
        }
        Method::HEAD => with_type(StatusCode::MOVED_PERMANENTLY, HTML, Body::empty()),
        _ => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
            response
        }
    };
    response.headers_mut().insert(header::LOCATION, text_value(&location));
    response
}

const HTML: &str = "text/html; charset=utf-8";

/// A text in HTML, as Go escapes it.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// What every path answers to OPTIONS. Web pages of others, for whom etcd says more, are not served.
pub(super) fn options() -> Response {
    Response::new(Body::empty())
}

pub(super) fn plain_error(status: StatusCode, body: &'static str) -> Response {
    plain(status, body)
}

/// Plain text that no browser takes for anything else.
pub(super) fn plain(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = text_with(status, body);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn text_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("made of escaped text, or of a URI that was parsed")
}
