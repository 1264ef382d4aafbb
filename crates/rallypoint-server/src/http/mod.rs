//! The HTTP/1.1 side, a thin shell: the v2 API and what monitors ask for.
//!
//! [`keys`] turns requests on keys into calls of the store and events into bodies, [`info`] answers what is
//! about the server itself, [`metrics`] writes Prometheus' text, [`service`] holds the store with its clock
//! and ends what has a TTL, [`reply`] has what they share.

mod body;
mod info;
mod keys;
mod metrics;
mod reply;
mod service;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;

use crate::admission::Account;
use crate::identity::Identity;
use crate::v2::{self, unescape_percent};
pub(crate) use service::{Limits, Service, V3};

/// Everything that is not gRPC.
pub(crate) fn router(service: Arc<Service>) -> Router {
    // Not axum's routes: etcd matches paths after it has undone their escapes.
    Router::new().fallback(dispatch).with_state(service)
}

async fn dispatch(State(service): State<Arc<Service>>, request: Request) -> Response {
    let Ok(path) = unescape_percent(request.uri().path().as_bytes()) else { return reply::bad_request() };
    if let Some(clean) = unclean(&path) {
        return reply::moved(&clean, request.uri().query());
    }
    match path.as_slice() {
        b"/v2/keys" => keys::serve(&service, b"", request).await,
        [b'/', b'v', b'2', b'/', b'k', b'e', b'y', b's', b'/', ..] => {
            let key = &path[b"/v2/keys".len()..];
            keys::serve(&service, key, request).await
        }
        path => info::serve(&service, path, &request),
    }
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
    let v3 = V3 { metrics: Box::new(String::new), is_full: Box::new(|| false) };
    let limits = Limits { body: max_body, ..Limits::default() };
    let service = Service::start(identity.into(), v3, limits, v2::Store::new(store));
    // All connections have one account.
    router(service).layer(axum::Extension(Account::alone(max_held)))
}
