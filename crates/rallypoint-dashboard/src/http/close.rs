//! The one write: a run is ended for all its nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use rallypoint_core::text::plain;
use serde::Deserialize;
use tokio::time::timeout;

use super::{Peer, Site, json, refusal, topic};
use crate::feed::Topic;
use crate::source;
use crate::token::Verdict;

/// Bytes of a request.
const BODY: usize = 8 << 10;
/// Until it has come in whole.
const BODY_TIME: Duration = Duration::from_secs(5);
/// Until etcd has taken it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Letters of a reason.
const REASON: usize = 500;

#[derive(Deserialize)]
struct Wish {
    reason: String,
}

pub(super) async fn close(State(site): State<Arc<Site>>, request: Request) -> Response {
    let headers = request.headers();
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let kind = text(header::CONTENT_TYPE).and_then(|kind| kind.split(';').next()).map(str::trim);
    if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        return refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "write the reason as application/json");
    }
    let Some(Peer(from)) = request.extensions().get::<Peer>().copied() else {
        return refusal(StatusCode::FORBIDDEN, "it is not known who asks");
    };
    let shown = text(header::AUTHORIZATION).and_then(|shown| shown.strip_prefix("Bearer "));
    if let Some(refused) = refused(&site.gate.judge(from, shown, Instant::now())) {
        tracing::warn!(%from, "somebody without the token asked to close a run");
        return refused;
    }
    let run = match topic(request.uri().query()) {
        Ok(Topic::Run(run)) => run,
        Ok(_) => return refusal(StatusCode::BAD_REQUEST, "name the run, as in /api/close?run=job42"),
        Err(why) => return refusal(StatusCode::BAD_REQUEST, &why),
    };
    let body = timeout(BODY_TIME, Limited::new(request.into_body(), BODY).collect()).await;
    let Ok(Ok(body)) = body else {
        return refusal(StatusCode::BAD_REQUEST, "the reason is too long, or did not come in time");
    };
    let reason = match serde_json::from_slice::<Wish>(&body.to_bytes()) {
        Ok(Wish { reason }) if !reason.trim().is_empty() => {
            reason.trim().chars().take(REASON).collect::<String>()
        }
        _ => return refusal(StatusCode::BAD_REQUEST, "say why, in words"),
    };
    match timeout(PATIENCE, source::close(site.feeds.client(), &run, &reason)).await {
        Ok(Ok(None)) => refusal(StatusCode::NOT_FOUND, "there is no such run on this etcd"),
        Ok(Ok(Some(false))) => refusal(StatusCode::CONFLICT, "the run is closed already"),
        Ok(Ok(Some(true))) => {
            tracing::info!(%from, "run {} is closed from the dashboard: {}", plain(&run), plain(&reason));
            json(
                StatusCode::OK,
                &serde_json::json!({ "text": "The run is closed. Its nodes stop their workers." }),
            )
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot close a run");
            refusal(StatusCode::BAD_GATEWAY, &format!("etcd did not take it: {error}"))
        }
        Err(_) => {
            refusal(StatusCode::GATEWAY_TIMEOUT, "etcd does not answer; look whether the run is closed")
        }
    }
}

fn refused(verdict: &Verdict) -> Option<Response> {
    match verdict {
        Verdict::Right => None,
        Verdict::Wrong => {
            let mut response = refusal(StatusCode::UNAUTHORIZED, "that is not the token");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            Some(response)
        }
        Verdict::Later(wait) => {
            let seconds = wait.as_secs().max(1);
            let why = format!("too many wrong tokens: wait {seconds} s");
            let mut response = refusal(StatusCode::TOO_MANY_REQUESTS, &why);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            Some(response)
        }
        Verdict::ReadOnly => Some(refusal(
            StatusCode::FORBIDDEN,
            "this dashboard is read-only: it was started without a token",
        )),
    }
}
