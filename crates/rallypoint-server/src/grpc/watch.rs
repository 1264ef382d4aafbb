//! The Watch service.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use etcd_client::WatchFilterType;
use etcd_client::proto::{PbWatchRequest, PbWatchRequestUnion, PbWatchResponse};
use futures::Stream;
use tokio::time::{Interval, MissedTickBehavior, interval_at};
use tonic::{Status, Streaming};

use super::answer;
use super::call::OwnedCall;
use super::pause::Pause;
use super::rope::Rope;
use super::streaming::Outgoing;
use crate::admission::{Account, Full, Share};
use crate::auth::{AuthError, Caller};
use crate::mvcc::Span;
use crate::shared::Shared;
use crate::watch::{Filter, Message, Polled, StreamKey, WatchRequest};

/// Answers that may wait before requests do.
const MAX_ANSWERS_WAITING: usize = 64;

/// Roughly the memory of a watch beside its keys.
pub(super) const WATCH_BYTES: usize = 1024;
/// Messages up to it are not counted: a stream has only one or two.
pub(super) const SMALL_BYTES: usize = 4096;

/// One stream of watches. It is asked for the next message when the connection can take one, and only then
/// looks for it.
pub(super) struct Session {
    shared: Arc<Shared>,
    stream: StreamKey,
    /// None when the client has no more requests. Its watches go on.
    inbound: Option<Streaming<PbWatchRequest>>,
    /// Whom its watches and messages are counted for.
    account: Account,
    /// Who opened it.
    caller: Caller,
    /// The rest of a message that was cut, last piece first.
    fragments: Vec<Rope>,
    /// What was taken for the next message, or the one that is being sent.
    share: Option<Arc<Share>>,
    /// Until there may be room for the next message.
    pause: Pause,
    /// Ticks once a watch wants to hear of its progress.
    progress: Option<Interval>,
}

impl Session {
    pub(super) fn new(call: OwnedCall, inbound: Streaming<PbWatchRequest>) -> Self {
        let OwnedCall { shared, account, caller } = call;
        let stream = shared.write(|state| state.hub.open());
        Session {
            shared,
            stream,
            inbound: Some(inbound),
            account,
            caller,
            fragments: Vec::new(),
            share: None,
            pause: Pause::default(),
            progress: None,
        }
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
                self.caller.again();
                let asked = Span::new(&key[..], &create.range_end[..]);
                if let Err(error) = self.shared.read(|state| state.auth.check_watch(&self.caller, &asked)) {
                    let reason = not_permitted(error);
                    return self.shared.write(|state| state.hub.refuse(&state.store, stream, reason));
                }
                // Its message stays in the buffer that it was read into, for as long as the stream is silent.
                let keys = 2 * (key.len() + create.range_end.len());
                let Ok(share) = self.account.take(WATCH_BYTES + keys) else {
                    let reason = "etcdserver: too many requests";
                    return self.shared.write(|state| state.hub.refuse(&state.store, stream, reason));
                };
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
                    share: Some(share),
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

impl Session {
    /// The next message, whose parts then wait to be sent, last first.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        loop {
            ready!(self.pause.poll(cx));
            let room = self.share.as_ref().map_or(SMALL_BYTES, |share| share.bytes());
            match self.shared.write(|state| state.hub.poll(&state.store, self.stream, room, cx.waker())) {
                Polled::Message(message) => {
                    self.fragments = to_proto(&self.shared, message);
                    self.fragments.reverse();
                    return Poll::Ready(Ok(()));
                }
                // It stays where it is until there is room. If that takes too long it is compacted, as for any watcher
                // that is slow.
                Polled::NoRoom(bytes) => match self.account.take_or_wait(bytes) {
                    Ok(share) => {
                        self.pause.end();
                        self.share = Some(Arc::new(share));
                    }
                    Err(Full) => self.pause.begin(),
                },
                Polled::Again => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Polled::Pending => return Poll::Pending,
                Polled::Closed => {
                    return Poll::Ready(Err(Status::unavailable("etcdserver: server stopped")));
                }
            }
        }
    }
}

impl Stream for Session {
    type Item = Result<Outgoing, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.fragments.is_empty() {
            // It was for the message before.
            this.share = None;
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
            if let Err(status) = ready!(this.poll_message(cx)) {
                return Poll::Ready(Some(Err(status)));
            }
        }
        let message = this.fragments.pop().expect("a message has at least one part");
        Poll::Ready(Some(Ok(Outgoing { message, share: this.share.clone() })))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.write(|state| state.hub.drop_stream(self.stream));
    }
}

/// Why a watch was not made, as etcd says it.
fn not_permitted(error: AuthError) -> &'static str {
    match error {
        AuthError::InvalidToken => "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token",
        AuthError::UserEmpty => "rpc error: code = InvalidArgument desc = etcdserver: user name is empty",
        _ => "rpc error: code = PermissionDenied desc = etcdserver: permission denied",
    }
}

fn to_proto(shared: &Shared, message: Message) -> Vec<Rope> {
    let response = |id: i64, revision: i64| PbWatchResponse {
        header: Some(shared.header_at(revision)),
        watch_id: id,
        ..Default::default()
    };
    let answer = match message {
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
        Message::Events { id, revision, events, fragment } => {
            let fragment = fragment.then_some(shared.settings.fragment_bytes);
            return answer::events(&response(id, revision), events, fragment);
        }
    };
    vec![Rope::of(&answer)]
}
