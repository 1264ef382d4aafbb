//! What is asked and answered: the page, its data, and what changes a run.
//!
//! [`guard`] turns strangers away and puts the headers on every answer, [`live`] is the stream of views, [`write`]
//! ends a run or keeps nodes out of it, [`files`] is the page.

mod files;
mod guard;
mod live;
mod write;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware;
use axum::response::Response;
use axum::routing::{get, post};
use http::{HeaderValue, StatusCode, header};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

use crate::Config;
use crate::feed::{Feeds, Topic};
use crate::token::Gatekeeper;

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// What is served, to whom.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) feeds: Feeds,
    pub(crate) gate: Gatekeeper,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) https: bool,
    /// One for each page that is open.
    pub(crate) viewers: Arc<Semaphore>,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Site {
    pub(crate) fn new(config: &Config, feeds: Feeds, stopping: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Site {
            feeds,
            gate: Gatekeeper::new(config.token.as_deref()),
            allowed_hosts: config.allowed_hosts.clone(),
            https: config.tls.is_some(),
            viewers: Arc::new(Semaphore::new(config.max_viewers)),
            stopping,
        })
    }
}

pub(crate) fn router(site: &Arc<Site>) -> Router {
    Router::new()
        .route("/", get(files::index))
        .route("/page/{file}", get(files::file))
        .route("/favicon.ico", get(files::icon))
        .route("/api/live", get(live::live))
        .route("/api/run", get(live::once))
        .route("/api/runs", get(live::once))
        .route("/api/close", post(write::close))
        .route("/api/exclude", post(write::exclude))
        .route("/api/include", post(write::include))
        .fallback(nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(site), guard::guard))
        .with_state(Arc::clone(site))
}

async fn nothing(State(_): State<Arc<Site>>, request: Request) -> Response {
    let path = crate::text::line(request.uri().path(), 100);
    refusal(StatusCode::NOT_FOUND, &format!("there is nothing at {path}"))
}

/// What is looked at: the run that the query names, or all.
fn topic(query: Option<&str>) -> Result<Topic, String> {
    let value = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("run="));
    let Some(value) = value else { return Ok(Topic::Runs) };
    let id = percent_decode_str(value).decode_utf8().map_err(|_| "the run's name is not UTF-8".to_owned())?;
    rallypoint_rendezvous::native::check_run_id(&id).map_err(|error| error.to_string())?;
    Ok(Topic::Run(id.into_owned()))
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    answer(status, "application/json", serde_json::to_string(value).unwrap_or_default())
}

/// Why not, in one sentence.
fn refusal(status: StatusCode, why: &str) -> Response {
    json(status, &serde_json::json!({ "error": why }))
}

/// The address of a peer, without the clothes of version 6.
pub(crate) fn peer(address: SocketAddr) -> Peer {
    Peer(address.ip().to_canonical())
}
