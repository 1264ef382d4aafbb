//! `/v2/keys`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Method, StatusCode, header};

use super::{Site, body, login, reply};
use crate::admission::{Account, Share, counted};
use crate::v2::{self, Answer, Answered, Code, Error, Event, Events, Listing, Path};

/// Serves a request on `key`, whose escapes are undone.
pub(super) async fn serve(site: &Site, key: &[u8], request: Request) -> Response {
    let allowed = [Method::HEAD, Method::GET, Method::PUT, Method::POST, Method::DELETE];
    if let Err(response) = reply::allow(request.method(), &allowed) {
        return *response;
    }
    let response = answer(site, key, request).await.unwrap_or_else(|error| {
        let response = reply::json(error.status(), error.to_json());
        reply::with_number(response, "x-etcd-index", error.index)
    });
    reply::from_cluster(site.keys.cluster_id(), response)
}

async fn answer(site: &Site, key: &[u8], request: Request) -> Result<Response, Error> {
    let (head, incoming) = request.into_parts();
    let account = head.extensions.get::<Account>().expect("every connection has one");
    let mut share = body::take(account, 0)?;
    let content_type = head.headers.get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    // Go reads no form from other methods.
    let writes = matches!(head.method, Method::PUT | Method::POST);
    let form = if writes && v2::is_form(content_type)? {
        body::read(&site.limits, incoming, &mut share).await?
    } else {
        Bytes::new()
    };
    let query = head.uri.query().unwrap_or_default();
    let request = v2::Request::parse(&head.method, Path::clean(key), query.as_bytes(), &form)?;
    drop(form);
    let no_value = request.no_value;
    let login = login::of(&head.headers);
    let answered = site.keys.apply(request, login).await?;
    respond(site, account, share, answered, no_value).await
}

async fn respond(
    site: &Site,
    account: &Account,
    mut share: Share,
    answered: Answered,
    no_value: bool,
) -> Result<Response, Error> {
    let Answered { answer, index, raft_index, raft_term } = answered;
    let response = match answer {
        Answer::Event(event) => {
            let status = if event.is_new_node() { StatusCode::CREATED } else { StatusCode::OK };
            reply::json(status, event_body(&event, no_value, share)?)
        }
        Answer::Listing(listing) => reply::json(StatusCode::OK, listing_body(site, listing, share).await?),
        Answer::Watch(watch) => {
            share.shrink_to(body::REQUEST_BYTES);
            reply::json(StatusCode::OK, body_of(account.clone(), share, watch))
        }
    };
    let response = reply::with_number(response, "x-etcd-index", index);
    let response = reply::with_number(response, "x-raft-index", raft_index);
    Ok(reply::with_number(response, "x-raft-term", raft_term))
}

/// The answer to a request, which is counted before it is built.
fn event_body(event: &Event, no_value: bool, mut share: Share) -> Result<Body, Error> {
    share.resize(body::REQUEST_BYTES + event.weight_below()).map_err(body::full)?;
    let json = if no_value { event.to_json_without_nodes() } else { event.to_json() };
    // Escapes make it longer.
    share.resize(body::REQUEST_BYTES + json.len()).map_err(body::full)?;
    Ok(body::answer(json, share))
}

/// The answer to a read, which is counted before it is built. A large one takes long, so others are not kept waiting.
async fn listing_body(site: &Site, listing: Listing, mut share: Share) -> Result<Body, Error> {
    let is_small = listing.is_small();
    let write = move || {
        share.resize(body::REQUEST_BYTES + listing.weight()).map_err(body::full)?;
        event_body(&listing.event(), false, share)
    };
    if is_small {
        return write();
    }
    let failed = |error: tokio::task::JoinError| Error::new(Code::Internal, error.to_string(), 0);
    site.aside.run(write).await.map_err(failed)?
}

/// The events of a watch, a line each, until it has had its one or was cut off. When the client goes, so does
/// the watch.
fn body_of(account: Account, share: Share, events: Events) -> Body {
    let watching = Watching { events, account, sending: None, _share: share };
    Body::from_stream(stream::unfold(watching, |mut watching| async {
        let piece = watching.next_piece().await?;
        Some((Ok::<_, Infallible>(piece), watching))
    }))
}

struct Watching {
    events: Events,
    account: Account,
    /// The rest of an event, and what was taken for it.
    sending: Option<(Bytes, Arc<Share>)>,
    _share: Share,
}

impl Watching {
    /// The next piece of an event. One for which there is no room ends the watch, as one that comes too fast does: the
    /// client can come back with the index it has.
    async fn next_piece(&mut self) -> Option<Bytes> {
        loop {
            if let Some((left, share)) = &mut self.sending
                && let Some(piece) = body::next_piece(left)
            {
                return Some(counted(piece, Arc::clone(share)));
            }
            self.sending = None;
            let event = self.events.next().await?;
            let mut share = self.account.take(event.weight_below()).ok()?;
            let json = event.to_json();
            share.resize(json.len()).ok()?;
            self.sending = Some((json, Arc::new(share)));
        }
    }
}
