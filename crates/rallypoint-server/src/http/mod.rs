//! The HTTP/1.1 side, a thin shell: the v2 API and what monitors ask for.
//!
//! [`keys`] turns requests on keys into calls of whoever holds them and events into bodies, [`info`] answers what is
//! about the server itself, [`json`] is etcd's JSON gateway to v3, [`metrics`] writes Prometheus' text, [`login`] reads who a client is, [`reply`] has what
//! they share.

mod body;
mod info;
mod json;
mod keys;
mod login;
mod metrics;
mod reply;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, Method, StatusCode};

pub(crate) use json::Json;

use crate::admission::Account;
use crate::aside::Aside;
use crate::identity::Identity;
use crate::traffic::Traffic;
use crate::v2::{self, Clock, Keys, Service, Time, V3, unescape_percent};

/// What a client may ask for at most.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// The bytes of a body.
    pub(crate) body: usize,
    /// How long a body may take to arrive.
    pub(crate) body_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        // A form of 10 MiB is etcd's limit on v2.
        Limits { body: 10 << 20, body_time: Duration::from_secs(60) }
    }
}

/// What is served, and as whom.
#[derive(Debug)]
struct Site {
    keys: Arc<dyn Keys>,
    identity: Arc<Identity>,
    limits: Limits,
    clock: Clock,
    started: Time,
    traffic: Arc<Traffic>,
    /// Where large listings are written.
    aside: Aside,
    /// v3 in JSON, where it is served.
    json: Option<Json>,
}

/// Everything that is not gRPC.
pub(crate) fn router(
    keys: Arc<dyn Keys>,
    identity: Arc<Identity>,
    limits: Limits,
    traffic: Arc<Traffic>,
    json: Option<Json>,
) -> Router {
    let clock = Clock::new();
    let site =
        Site { keys, identity, limits, started: clock.now(), clock, traffic, aside: Aside::default(), json };
    // Not axum's routes: etcd matches paths after it has undone their escapes.
    Router::new().fallback(dispatch).with_state(Arc::new(site))
}

async fn dispatch(State(site): State<Arc<Site>>, request: Request) -> Response {
    if is_of_a_page(request.headers()) {
        return reply::plain_error(StatusCode::FORBIDDEN, "web pages of other origins are not served\n");
    }
    if request.method() == Method::OPTIONS {
        return reply::options();
    }
    let Ok(path) = unescape_percent(request.uri().path().as_bytes()) else { return reply::bad_request() };
    if let Some(clean) = unclean(&path) {
        return reply::moved(request.method(), &clean, request.uri().query());
    }
    if let Some(json) = site.json.as_ref().filter(|_| path.starts_with(b"/v3/")) {
        return json.serve(&site.limits, &String::from_utf8_lossy(&path), request).await;
    }
    match path.as_slice() {
        b"/v2/keys" => keys::serve(&site, b"", request).await,
        [b'/', b'v', b'2', b'/', b'k', b'e', b'y', b's', b'/', ..] => {
            let key = &path[b"/v2/keys".len()..];
            keys::serve(&site, key, request).await
        }
        path => info::serve(&site, path, &request.into_parts().0).await,
    }
}

/// Whether a web page of somebody else's made a browser send this: a form needs nobody's leave to write here.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if text("sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site)) {
        return true;
    }
    let (origin, host) = (text("origin"), text("host").unwrap_or_default());
    origin.is_some_and(|origin| origin.split_once("://").map(|(_, host)| host) != Some(host))
}

/// The path that the client is sent to, if the one it asked for is not clean. A slash at the end is.
fn unclean(path: &[u8]) -> Option<Vec<u8>> {
    let mut clean = v2::Path::clean(path).as_bytes().to_vec();
    if clean.is_empty() || path.ends_with(b"/") {
        clean.push(b'/');
    }
    (clean != path).then_some(clean)
}

/// The v2 API alone, for tests of it.
#[doc(hidden)]
pub fn v2_alone(client_url: String, max_watchers: usize, max_body: usize, max_held: usize) -> Router {
    let identity = Identity::new("default".to_owned(), vec![client_url]);
    let store = v2::Limits { watchers: max_watchers, ..v2::Limits::default() };
    let v3 = V3 { metrics: Box::new(|_| {}), is_full: Box::new(|| false), users: Box::new(|_| None) };
    let limits = Limits { body: max_body, ..Limits::default() };
    let identity = Arc::new(identity);
    let service = Service::start(Arc::clone(&identity), v3, v2::Store::new(store));
    // All connections have one account.
    router(service, identity, limits, Arc::default(), None).layer(axum::Extension(Account::alone(max_held)))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn pages_of_others_are_told_from_programs_and_from_what_somebody_types() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                (name.parse::<http::HeaderName>().unwrap(), HeaderValue::from_static(value))
            });
            is_of_a_page(&pairs.collect())
        };
        let host = ("host", "127.0.0.1:2379");
        assert!(!of(&[host]));
        assert!(!of(&[host, ("sec-fetch-site", "none")]));
        assert!(!of(&[host, ("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:2379")]));
        assert!(of(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(of(&[host, ("origin", "http://evil.example")]));
        assert!(of(&[host, ("origin", "null")]));
    }
}
