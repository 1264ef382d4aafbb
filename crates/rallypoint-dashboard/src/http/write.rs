//! The writes, each for whoever has the token: a run is ended for all its nodes, a node is excluded from it, or included again.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderName, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use rallypoint_core::text::plain;
use rallypoint_etcd::Result as FromEtcd;
use rallypoint_rendezvous::native::{
    self, LONGEST_EXCLUSION, LONGEST_NAME, MOST_EXCLUSIONS, SHORTEST_EXCLUSION,
};
use rallypoint_rendezvous::{ExclusionOutcome, Whom};
use serde::Deserialize;
use serde::de::DeserializeOwned;
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

/// Why something is not done, as the answer says it.
struct Refused {
    status: StatusCode,
    why: String,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Refused {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Refused { status, why: why.into(), header: None }
    }

    fn with(self, name: HeaderName, value: HeaderValue) -> Self {
        Refused { header: Some((name, value)), ..self }
    }

    fn answer(self) -> Response {
        let mut response = refusal(self.status, &self.why);
        response.headers_mut().extend(self.header);
        response
    }
}

/// `{"reason": "maintenance"}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Close {
    reason: String,
}

/// `{"node": "gpu-17", "reason": "GPU 3 is broken", "seconds": 3600}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exclude {
    node: Option<String>,
    host: Option<String>,
    reason: String,
    /// None for as long as the run lives.
    seconds: Option<u64>,
}

/// `{"node": "gpu-17"}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Include {
    node: Option<String>,
    host: Option<String>,
}

/// The one that is named: a node or a host.
fn whom(node: Option<String>, host: Option<String>) -> Result<Whom, Refused> {
    let refused = |why: String| Err(Refused::new(StatusCode::BAD_REQUEST, why));
    let (name, whom) = match (node, host) {
        (Some(node), None) => (node.clone(), Whom::Node(node)),
        (None, Some(host)) => (host.clone(), Whom::Host(host)),
        _ => return refused("name a node or a host, and not both".to_owned()),
    };
    match name.len() {
        _ if name.trim().is_empty() => refused("name the one that is meant".to_owned()),
        length if length > LONGEST_NAME => refused(format!("no name has more than {LONGEST_NAME} bytes")),
        _ => Ok(whom),
    }
}

/// A wish of somebody who has the token.
struct Asked<W> {
    from: IpAddr,
    run: String,
    wish: W,
}

pub(super) async fn close(State(site): State<Arc<Site>>, request: Request) -> Response {
    let done = async {
        let form = r#"{"reason": "maintenance"}"#;
        let Asked { from, run, wish } = asked::<Close>(&site, request, form).await?;
        let reason = in_words(&wish.reason)?;
        match taken(source::close(site.feeds.client(), &run, &reason)).await? {
            None => Err(no_run()),
            Some(false) => Err(Refused::new(StatusCode::CONFLICT, "the run is closed already")),
            Some(true) => {
                tracing::info!(%from, "run {} is closed from the dashboard: {}", plain(&run), plain(&reason));
                Ok("The run is closed. Its nodes stop their workers.".to_owned())
            }
        }
    };
    answered(done.await)
}

pub(super) async fn exclude(State(site): State<Arc<Site>>, request: Request) -> Response {
    let done = async {
        let form = r#"{"node": "gpu-17", "reason": "GPU 3 is broken"}"#;
        let Asked { from, run, wish } = asked::<Exclude>(&site, request, form).await?;
        let Exclude { node, host, reason, seconds } = wish;
        let whom = whom(node, host)?;
        let (reason, time) = (in_words(&reason)?, seconds.map(Duration::from_secs));
        if time.is_some_and(|time| !(SHORTEST_EXCLUSION..=LONGEST_EXCLUSION).contains(&time)) {
            let (least, most) = (SHORTEST_EXCLUSION.as_secs(), LONGEST_EXCLUSION.as_secs());
            let why = format!("seconds are from {least} to {most}");
            return Err(Refused::new(StatusCode::BAD_REQUEST, why));
        }
        let client = site.feeds.client();
        done(taken(native::exclude(client, &run, whom.clone(), &reason, time)).await?)?;
        tracing::info!(%from, "{whom} is excluded from run {} from the dashboard: {}", plain(&run), plain(&reason));
        let there = native::status(client, &run).await.ok().flatten();
        let is_there = there.is_none_or(|run| run.nodes.iter().any(|node| whom.is(&node.node, &node.host)));
        let note = if is_there { "" } else { " It is not among the nodes that are there." };
        Ok(format!("{whom} is excluded from the run.{note}"))
    };
    answered(done.await)
}

pub(super) async fn include(State(site): State<Arc<Site>>, request: Request) -> Response {
    let done = async {
        let Asked { from, run, wish } = asked::<Include>(&site, request, r#"{"node": "gpu-17"}"#).await?;
        let whom = whom(wish.node, wish.host)?;
        let client = site.feeds.client();
        done(taken(native::include(client, &run, Some(whom.clone()))).await?)?;
        tracing::info!(%from, "{whom} is included in run {} again from the dashboard", plain(&run));
        Ok(format!("{whom} may join again."))
    };
    answered(done.await)
}

/// What is asked for, once it is certain that who asks may.
async fn asked<W: DeserializeOwned>(site: &Site, request: Request, form: &str) -> Result<Asked<W>, Refused> {
    let headers = request.headers();
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let kind = text(header::CONTENT_TYPE).and_then(|kind| kind.split(';').next()).map(str::trim);
    if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        let why = format!("write what is asked for as application/json: {form}");
        return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    let Some(Peer(from)) = request.extensions().get::<Peer>().copied() else {
        return Err(Refused::new(StatusCode::FORBIDDEN, "it is not known who asks"));
    };
    let shown = text(header::AUTHORIZATION).and_then(|shown| shown.strip_prefix("Bearer "));
    let verdict = site.gate.judge(from, shown, Instant::now());
    if let Verdict::Wrong(Some(count)) = verdict {
        tracing::warn!(%from, count, "somebody asked to change a run with a wrong token; the next ones are counted for a minute");
    }
    admitted(&verdict)?;
    let run = match topic(request.uri().query()) {
        Ok(Topic::Run(run)) => run,
        Ok(_) => return Err(Refused::new(StatusCode::BAD_REQUEST, "name the run, as in ?run=job42")),
        Err(why) => return Err(Refused::new(StatusCode::BAD_REQUEST, why)),
    };
    let body = timeout(BODY_TIME, Limited::new(request.into_body(), BODY).collect()).await;
    let Ok(Ok(body)) = body else {
        return Err(Refused::new(
            StatusCode::BAD_REQUEST,
            "the request is too long, or did not come in time",
        ));
    };
    let wish = serde_json::from_slice(&body.to_bytes());
    let wish =
        wish.map_err(|error| Refused::new(StatusCode::BAD_REQUEST, format!("{error}; write it so: {form}")))?;
    Ok(Asked { from, run, wish })
}

fn in_words(reason: &str) -> Result<String, Refused> {
    match reason.trim() {
        "" => Err(Refused::new(StatusCode::BAD_REQUEST, "say why, in words")),
        reason => Ok(reason.chars().take(REASON).collect()),
    }
}

/// What etcd said, if it did in time.
async fn taken<T>(write: impl Future<Output = FromEtcd<T>>) -> Result<T, Refused> {
    match timeout(PATIENCE, write).await {
        Ok(Ok(taken)) => Ok(taken),
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot change a run");
            Err(Refused::new(StatusCode::BAD_GATEWAY, format!("etcd did not take it: {error}")))
        }
        Err(_) => {
            Err(Refused::new(StatusCode::GATEWAY_TIMEOUT, "etcd does not answer; look whether it was done"))
        }
    }
}

fn done(outcome: ExclusionOutcome) -> Result<(), Refused> {
    match outcome {
        ExclusionOutcome::Done => Ok(()),
        ExclusionOutcome::NoRun => Err(no_run()),
        ExclusionOutcome::RunClosed => {
            Err(Refused::new(StatusCode::CONFLICT, "the run is closed: no node can join it any more"))
        }
        ExclusionOutcome::TooMany => {
            let why = format!("{MOST_EXCLUSIONS} are excluded already; include some first");
            Err(Refused::new(StatusCode::CONFLICT, why))
        }
        // An operator needs no place in the run.
        ExclusionOutcome::NotExcluded | ExclusionOutcome::NotAMember => {
            Err(Refused::new(StatusCode::NOT_FOUND, "nobody by that name is excluded"))
        }
    }
}

fn no_run() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "there is no such run on this etcd")
}

fn answered(done: Result<String, Refused>) -> Response {
    done.map_or_else(Refused::answer, |text| json(StatusCode::OK, &serde_json::json!({ "text": text })))
}

fn admitted(verdict: &Verdict) -> Result<(), Refused> {
    match verdict {
        Verdict::Right => Ok(()),
        Verdict::Wrong(_) => {
            let refused = Refused::new(StatusCode::UNAUTHORIZED, "that is not the token");
            Err(refused.with(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
        }
        Verdict::Later(wait) => {
            let seconds = wait.as_secs().max(1);
            let why = format!("too many wrong tokens: wait {seconds} s");
            let refused = Refused::new(StatusCode::TOO_MANY_REQUESTS, why);
            Err(refused.with(header::RETRY_AFTER, HeaderValue::from(seconds)))
        }
        Verdict::ReadOnly => Err(Refused::new(
            StatusCode::FORBIDDEN,
            "this dashboard is read-only: it was started without a token",
        )),
    }
}
