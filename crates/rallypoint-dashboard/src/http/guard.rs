//! Who is turned away before anything is looked at, and what every answer carries.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};

use super::{Site, refusal};

/// Nothing comes from elsewhere, and nothing is written into the page but by its own files.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

pub(super) async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let mut response = match stranger(&site, &request) {
        Some(refused) => refused,
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Why a request is not looked at: a page of somebody else's made the browser send it.
fn stranger(site: &Site, request: &Request) -> Option<Response> {
    let host = authority(request);
    let Some(name) = host.as_deref().and_then(host_name) else {
        return Some(refusal(StatusCode::BAD_REQUEST, "the request does not say which host it is for"));
    };
    if !is_known(&name, &site.allowed_hosts) {
        // A name of somebody else's can be made to lead here, and his page would then be one of ours.
        let name = crate::text::line(&name, 100);
        let why = format!(
            "this dashboard is not known as {name}; if it should be, start it with --allowed-host {name}"
        );
        return Some(refusal(StatusCode::FORBIDDEN, &why));
    }
    if ![Method::GET, Method::HEAD].contains(request.method())
        && !is_own_origin(site, request, host.as_deref())
    {
        return Some(refusal(StatusCode::FORBIDDEN, "the request comes from a page of another origin"));
    }
    None
}

/// HTTP/2 has it in the place of the URL.
fn authority(request: &Request) -> Option<String> {
    let of_url = request.uri().authority().map(ToString::to_string);
    of_url.or_else(|| Some(request.headers().get(header::HOST)?.to_str().ok()?.to_owned()))
}

/// Without the port.
fn host_name(authority: &str) -> Option<String> {
    if authority.contains('@') {
        return None;
    }
    let uri: Uri = format!("http://{authority}/").parse().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}

/// An address is always its own: only a name can be made to lead elsewhere.
fn is_known(name: &str, allowed: &[String]) -> bool {
    name == "localhost"
        || name.parse::<IpAddr>().is_ok()
        || allowed.iter().any(|allowed| allowed.trim_end_matches('.').eq_ignore_ascii_case(name))
}

/// Whether this page, or no page at all, has sent it. A proxy may speak TLS before us.
fn is_own_origin(site: &Site, request: &Request, host: Option<&str>) -> bool {
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    if text("sec-fetch-site").is_some_and(|site| site != "same-origin") {
        return false;
    }
    let Some(origin) = text("origin") else { return true };
    match origin.split_once("://") {
        Some(("http", of)) => !site.https && Some(of) == host,
        Some(("https", of)) => Some(of) == host,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_localhost_and_names_that_were_given_lead_here() {
        let allowed = ["Ops.example.org".to_owned()];
        for (host, known) in [
            ("localhost:8300", true),
            ("LOCALHOST", true),
            ("127.0.0.1:8300", true),
            ("[::1]:8300", true),
            ("10.1.2.3", true),
            ("ops.example.org", true),
            ("ops.example.org.", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("ops.example.org.evil.example", false),
            ("evil.example@localhost:1x", false),
            ("", false),
        ] {
            let name = host_name(host);
            assert_eq!(name.is_some_and(|name| is_known(&name, &allowed)), known, "{host}");
        }
    }
}
