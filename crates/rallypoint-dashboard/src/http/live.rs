//! The stream of views: one whole, then what changes. And the same once, for scripts.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;

use super::{Site, answer, refusal, topic};
use crate::change::View;
use crate::feed::{Feed, Moment, Topic, frame};

/// Proxies cut a connection on which nothing happens, and a viewer that is gone is noticed by writing.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// For the first view, of whoever asks once.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a page is told first.
#[derive(Serialize)]
struct Hello {
    version: &'static str,
    /// Whether there is a token with which a run can be changed.
    writable: bool,
    etcd: String,
    /// Ages are told by this clock.
    now_ms: u64,
}

pub(super) async fn live(State(site): State<Arc<Site>>, request: Request) -> Response {
    let topic = match topic(request.uri().query()) {
        Ok(topic) => topic,
        Err(why) => return refusal(StatusCode::BAD_REQUEST, &why),
    };
    let busy = |why: &str| {
        let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, why);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
        response
    };
    let Ok(permit) = Arc::clone(&site.viewers).try_acquire_owned() else {
        return busy("too many pages look at this dashboard");
    };
    let (Some(feed), Some(etcd)) = (site.feeds.of(&topic), site.feeds.of(&Topic::Etcd)) else {
        return busy("too many runs are being looked at");
    };
    let viewer = Viewer {
        hello: Some(hello(&site)),
        feeds: [Seen::new(etcd), Seen::new(feed)],
        stopping: site.stopping.clone(),
        _permit: permit,
    };
    let frames = stream::unfold(viewer, async |mut viewer| {
        let frame = viewer.next().await?;
        Some((Ok::<Bytes, Infallible>(frame), viewer))
    });
    let mut response = answer(StatusCode::OK, "text/event-stream", Body::from_stream(frames));
    // A proxy that gathers answers would hold it back.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A run, or all runs, as JSON.
pub(super) async fn once(State(site): State<Arc<Site>>, request: Request) -> Response {
    let topic = match topic(request.uri().query()) {
        Ok(topic) => topic,
        Err(why) => return refusal(StatusCode::BAD_REQUEST, &why),
    };
    let Some(feed) = site.feeds.of(&topic) else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "too many runs are being looked at");
    };
    let mut moments = feed.moments();
    let first = match timeout(PATIENCE, moments.wait_for(Option::is_some)).await {
        Ok(Ok(first)) => first.clone(),
        _ => None,
    };
    // What was seen last may be old, which only a page can say beside it.
    let Some(etcd) = site.feeds.of(&Topic::Etcd) else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "too many runs are being looked at");
    };
    let mut health = etcd.moments();
    if let Ok(Ok(now)) = timeout(PATIENCE, health.wait_for(Option::is_some)).await
        && let Some(View::Etcd(etcd)) = now.as_deref().map(Moment::view)
        && !etcd.answers
    {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, &etcd.text);
    }
    match first {
        None => refusal(StatusCode::SERVICE_UNAVAILABLE, "etcd does not answer"),
        Some(moment) => {
            let is_there = !matches!(moment.view(), View::Run(run) if !run.head.there);
            let status = if is_there { StatusCode::OK } else { StatusCode::NOT_FOUND };
            answer(status, "application/json", moment.view().whole().1)
        }
    }
}

fn hello(site: &Site) -> Bytes {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION"),
        writable: site.gate.may_open(),
        etcd: site.feeds.client().settings().endpoints.to_string(),
        now_ms: u64::try_from(now.as_millis()).unwrap_or(0),
    };
    let text = serde_json::to_string(&hello).unwrap_or_default();
    // How long a browser waits before it connects again.
    [Bytes::from_static(b"retry: 1000\n"), frame(&("hello", text))].concat().into()
}

/// Somebody who looks, and what he has seen. He holds no more than the last view.
struct Viewer {
    hello: Option<Bytes>,
    feeds: [Seen; 2],
    stopping: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

struct Seen {
    /// It goes on as long as somebody has it.
    _feed: Arc<Feed>,
    moments: watch::Receiver<Option<Arc<Moment>>>,
    last: Option<Arc<Moment>>,
}

impl Viewer {
    /// None when the dashboard stops.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(hello) = self.hello.take() {
            return Some(hello);
        }
        let [etcd, topic] = &mut self.feeds;
        tokio::select! {
            _ = self.stopping.wait_for(|stopping| *stopping) => None,
            frame = etcd.next() => frame,
            frame = topic.next() => frame,
            () = tokio::time::sleep(KEEP_ALIVE) => Some(Bytes::from_static(b": still here\n\n")),
        }
    }
}

impl Seen {
    fn new(feed: Arc<Feed>) -> Self {
        let mut moments = feed.moments();
        // What is there already is new to whoever comes.
        moments.mark_changed();
        Seen { _feed: feed, moments, last: None }
    }

    /// What comes next, or what has come in the meantime.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.moments.changed().await.ok()?;
            let Some(moment) = self.moments.borrow_and_update().clone() else { continue };
            let frame = moment.after(self.last.as_deref());
            self.last = Some(moment);
            if !frame.is_empty() {
                return Some(frame);
            }
        }
    }
}
