//! `/v2/keys`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::{Method, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::reply;
use super::service::{Answered, Service};
use crate::identity::RAFT_TERM;
use crate::v2::{self, Answer, Code, Error, Path, Watch};

/// Serves a request on `key`, whose escapes are undone.
pub(super) async fn serve(service: &Arc<Service>, key: &[u8], request: Request) -> Response {
    let allowed = [Method::HEAD, Method::GET, Method::PUT, Method::POST, Method::DELETE];
    if let Err(response) = reply::allow(request.method(), &allowed) {
        return *response;
    }
    let response = answer(service, key, request).await.unwrap_or_else(|error| {
        let response = reply::json(error.status(), error.to_json());
        reply::with_number(response, "x-etcd-index", error.index)
    });
    reply::from_cluster(&service.identity, response)
}

async fn answer(service: &Arc<Service>, key: &[u8], request: Request) -> Result<Response, Error> {
    let (head, body) = request.into_parts();
    let content_type = head.headers.get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    // Go reads no form from other methods.
    let writes = matches!(head.method, Method::PUT | Method::POST);
    let (body, _room) =
        if writes && v2::is_form(content_type)? { read(service, body).await? } else { Default::default() };
    let query = head.uri.query().unwrap_or_default();
    let request = v2::Request::parse(&head.method, Path::clean(key), query.as_bytes(), &body)?;
    let no_value = request.no_value;
    let Answered { answer, index, raft_index } = service.apply(request)?;
    let response = match answer {
        Answer::Event(event) => {
            let status = if event.is_new_node() { StatusCode::CREATED } else { StatusCode::OK };
            let body = if no_value { event.to_json_without_nodes() } else { event.to_json() };
            reply::json(status, body)
        }
        Answer::Watch(watch) => reply::json(StatusCode::OK, events(Arc::clone(service), watch)),
    };
    let response = reply::with_number(response, "x-etcd-index", index);
    let response = reply::with_number(response, "x-raft-index", raft_index);
    Ok(reply::with_number(response, "x-raft-term", RAFT_TERM))
}

/// The body, and the room that it takes until the request is carried out.
async fn read(service: &Service, body: Body) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Error> {
    let limits = &service.limits;
    // One that does not say how large it is may become as large as any.
    let size = body.size_hint().upper().and_then(|size| usize::try_from(size).ok()).unwrap_or(usize::MAX);
    let kibibytes = u32::try_from(size.min(limits.body).div_ceil(1 << 10)).unwrap_or(u32::MAX);
    let room = service.room.try_acquire_many(kibibytes).map_err(|_| {
        let cause = format!("too many requests: their bodies are limited to {} bytes", limits.bodies);
        Error::new(Code::Internal, cause, 0)
    })?;
    let failed = |cause: String| Error::parse(Code::InvalidForm, cause);
    match timeout(limits.body_time, Limited::new(body, limits.body).collect()).await {
        Ok(Ok(body)) => Ok((body.to_bytes(), Some(room))),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(failed("http: POST too large".to_owned())),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed(format!("the body did not arrive within {:?}", limits.body_time))),
    }
}

/// The events of a watch, a line each, until it has had its one or was cut off. When the client goes, so does
/// the watch.
fn events(service: Arc<Service>, watch: Watch) -> Body {
    Body::from_stream(stream::unfold(Watching { service, watch }, |mut watching| async {
        let event = watching.watch.events.recv().await?;
        Some((Ok::<_, Infallible>(event.to_json()), watching))
    }))
}

struct Watching {
    service: Arc<Service>,
    watch: Watch,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.service.unwatch(&self.watch.place);
    }
}
