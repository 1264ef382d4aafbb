//! The HTTP/1.1 side, a thin shell: the v2 API and what monitors ask for.
//!
//! [`keys`] turns requests on keys into calls of whoever holds them and events into bodies, [`info`] answers what is
//! about the server itself, [`metrics`] writes Prometheus' text, [`login`] reads who a client is, [`reply`] has what
//! they share.

mod body;
mod info;
mod keys;
mod login;
mod metrics;
mod reply;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;

use crate::admission::Account;
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
}

/// Everything that is not gRPC.
pub(crate) fn router(
    keys: Arc<dyn Keys>,
    identity: Arc<Identity>,
    limits: Limits,
    traffic: Arc<Traffic>,
) -> Router {
    let clock = Clock::new();
    let site = Site { keys, identity, limits, started: clock.now(), clock, traffic };
    // Not axum's routes: etcd matches paths after it has undone their escapes.
    Router::new().fallback(dispatch).with_state(Arc::new(site))
}

async fn dispatch(State(site): State<Arc<Site>>, request: Request) -> Response {
    let Ok(path) = unescape_percent(request.uri().path().as_bytes()) else { return reply::bad_request() };
    if let Some(clean) = unclean(&path) {
        return reply::moved(&clean, request.uri().query());
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
    let v3 = V3 { metrics: Box::new(|_| {}), is_full: Box::new(|| false) };
    let limits = Limits { body: max_body, ..Limits::default() };
    let identity = Arc::new(identity);
    let service = Service::start(Arc::clone(&identity), v3, v2::Store::new(store));
    // All connections have one account.
    router(service, identity, limits, Arc::default()).layer(axum::Extension(Account::alone(max_held)))
}
