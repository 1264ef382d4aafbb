//! The Watch service.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use etcd_client::proto::{PbEvent, PbKeyValue, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse};
use etcd_client::{EventType, WatchFilterType};
use futures::Stream;
use prost::Message as _;
use tokio::time::{Interval, MissedTickBehavior, interval_at};
use tonic::{Status, Streaming};

use crate::mvcc::{Record, Span};
use crate::shared::Shared;
use crate::watch::{Filter, Message, Polled, StreamKey, Told, WatchRequest};

/// Answers that may wait before requests do.
const MAX_ANSWERS_WAITING: usize = 64;

/// One stream of watches. It is asked for the next message when the connection can take one, and only then
/// looks for it.
pub(super) struct Session {
    shared: Arc<Shared>,
    stream: StreamKey,
    /// None when the client has no more requests. Its watches go on.
    inbound: Option<Streaming<PbWatchRequest>>,
    /// The rest of a message that was cut, last piece first.
    fragments: Vec<PbWatchResponse>,
    /// Ticks once a watch wants to hear of its progress.
    progress: Option<Interval>,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, inbound: Streaming<PbWatchRequest>) -> Self {
        let stream = shared.write(|state| state.hub.open());
        Session { shared, stream, inbound: Some(inbound), fragments: Vec::new(), progress: None }
    }

    /// Carries out the requests that came, unless the client does not read the answers.
    fn take_requests(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        while let Some(inbound) = &mut self.inbound {
            if self.shared.read(|state| state.hub.answers_waiting(self.stream)) >= MAX_ANSWERS_WAITING {
                break;
            }
            match Pin::new(inbound).poll_next(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => self.inbound = None,
                Poll::Ready(Some(request)) => self.carry_out(request?),
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, request: PbWatchRequest) {
        let stream = self.stream;
        match request.request_union {
            Some(PbWatchRequestUnion::CreateRequest(create)) => {
                if create.progress_notify && self.progress.is_none() {
                    let period = self.shared.settings.progress_interval;
                    let mut ticks = interval_at(tokio::time::Instant::now() + period, period);
                    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                    self.progress = Some(ticks);
                }
                // Without a key, from the first one on.
                let key = if create.key.is_empty() { vec![0] } else { create.key };
                let request = WatchRequest {
                    id: create.watch_id,
                    span: Span::new(key.into(), create.range_end.into()),
                    start_revision: create.start_revision,
                    filter: Filter {
                        no_put: create.filters.contains(&(WatchFilterType::NoPut as i32)),
                        no_delete: create.filters.contains(&(WatchFilterType::NoDelete as i32)),
                    },
                    prev_kv: create.prev_kv,
                    fragment: create.fragment,
                    progress_notify: create.progress_notify,
                };
                self.shared.write(|state| state.watch(stream, request));
            }
            Some(PbWatchRequestUnion::CancelRequest(cancel)) => {
                self.shared.write(|state| state.hub.cancel(&state.store, stream, cancel.watch_id));
            }
            Some(PbWatchRequestUnion::ProgressRequest(_)) => {
                self.shared.write(|state| state.hub.ask_progress(stream));
            }
            None => {}
        }
    }
}

impl Stream for Session {
    type Item = Result<PbWatchResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(fragment) = this.fragments.pop() {
            return Poll::Ready(Some(Ok(fragment)));
        }
        if let Err(status) = this.take_requests(cx) {
            return Poll::Ready(Some(Err(status)));
        }
        if let Some(progress) = &mut this.progress
            && progress.poll_tick(cx).is_ready()
        {
            this.shared.write(|state| state.hub.notify_progress(&state.store, this.stream));
            // Ticks again only when asked again.
            cx.waker().wake_by_ref();
        }
        match this.shared.write(|state| state.hub.poll(&state.store, this.stream, cx.waker())) {
            Polled::Message(message) => {
                let mut response = to_proto(&this.shared, message);
                if response.fragment {
                    this.fragments = cut(response, this.shared.settings.fragment_bytes);
                    response = this.fragments.pop().expect("a message has at least one piece");
                }
                Poll::Ready(Some(Ok(response)))
            }
            Polled::Again => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Polled::Pending => Poll::Pending,
            Polled::Closed => Poll::Ready(Some(Err(Status::unavailable("etcdserver: server stopped")))),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.write(|state| state.hub.drop_stream(self.stream));
    }
}

fn to_proto(shared: &Shared, message: Message) -> PbWatchResponse {
    let response = |id: i64, revision: i64| PbWatchResponse {
        header: Some(shared.header_at(revision)),
        watch_id: id,
        ..Default::default()
    };
    match message {
        Message::Created { id, revision } => PbWatchResponse { created: true, ..response(id, revision) },
        Message::Refused { revision, reason } => PbWatchResponse {
            created: true,
            canceled: true,
            cancel_reason: reason.to_owned(),
            ..response(-1, revision)
        },
        Message::Canceled { id, revision } => PbWatchResponse { canceled: true, ..response(id, revision) },
        Message::Compacted { id, compact_revision } => {
            PbWatchResponse { canceled: true, compact_revision, ..response(id, 0) }
        }
        Message::Progress { id, revision } => response(id, revision),
        Message::Events { id, revision, events, fragment } => PbWatchResponse {
            events: events.into_iter().map(event).collect(),
            fragment,
            ..response(id, revision)
        },
    }
}

fn event(told: Told) -> PbEvent {
    let Told { record, prev } = told;
    let (kind, kv) = if record.is_deletion() {
        (EventType::Delete, deletion(&record))
    } else {
        (EventType::Put, record.to_proto())
    };
    PbEvent { r#type: kind as i32, kv: Some(kv), prev_kv: prev.map(|prev| prev.to_proto()) }
}

fn deletion(record: &Record) -> PbKeyValue {
    PbKeyValue { key: record.key.to_vec(), mod_revision: record.mod_revision, ..Default::default() }
}

/// Cuts a message into pieces below a size, though never within an event; the last piece first.
fn cut(mut whole: PbWatchResponse, max_bytes: usize) -> Vec<PbWatchResponse> {
    whole.fragment = false;
    if whole.encoded_len() < max_bytes || whole.events.len() < 2 {
        return vec![whole];
    }
    let events = std::mem::take(&mut whole.events);
    let mut pieces = Vec::new();
    let mut piece = PbWatchResponse { fragment: true, ..whole.clone() };
    let empty = piece.encoded_len();
    let mut bytes = empty;
    for event in events {
        // The event, its tag and its length.
        let size = event.encoded_len() + 1 + prost::length_delimiter_len(event.encoded_len());
        if !piece.events.is_empty() && bytes + size >= max_bytes {
            pieces.push(std::mem::replace(&mut piece, PbWatchResponse { fragment: true, ..whole.clone() }));
            bytes = empty;
        }
        bytes += size;
        piece.events.push(event);
    }
    piece.fragment = false;
    pieces.push(piece);
    pieces.reverse();
    pieces
}
