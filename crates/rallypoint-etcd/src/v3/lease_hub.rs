//! All leases of a client refreshed on one gRPC stream, opened when the first is due and again when it breaks.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender as Requests, unbounded as request_stream};
use rallypoint_core::Backoff;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::Streaming;
use tracing::{debug, warn};

use super::connections::{Connection, Connections};
use super::lease_state::LeaseState;
use super::refresh::{Refresh, Refreshed, WHAT};
use super::stream_task::{End, Mailbox};
use crate::{Error, ErrorKind};

/// The way to the task that holds the stream. The task ends with the last handle.
#[derive(Debug, Clone)]
pub(super) struct LeaseHub(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connections: Arc<Connections>,
    next_number: AtomicU64,
    task: Mailbox<Command>,
}

#[derive(Debug)]
enum Command {
    Keep(i64, Kept),
    Forget(i64, u64),
}

/// A lease that is refreshed until this is dropped.
#[derive(Debug)]
pub(super) struct KeepAlive {
    hub: LeaseHub,
    lease: i64,
    number: u64,
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.hub.0.task.send_if_running(Command::Forget(self.lease, self.number));
    }
}

impl LeaseHub {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        LeaseHub(Arc::new(Shared { connections, next_number: AtomicU64::new(1), task: Mailbox::new() }))
    }

    /// Refreshes a lease from now on, and tells of each answer.
    pub(super) fn keep(&self, lease: i64, ttl: Duration, report: watch::Sender<LeaseState>) -> KeepAlive {
        let number = self.0.next_number.fetch_add(1, Ordering::Relaxed);
        // Three refreshes fit into the time to live, so that one that fails is no death.
        let (now, interval) = (Instant::now(), ttl / 3);
        // Not all at once, when many leases were granted together; and soon enough for a second try.
        let turn = Turn::Due(now + interval.mul_f64(1.2 + 0.3 * fastrand::f64()));
        let kept = Kept { number, interval, last_answer: now, turn, report };
        self.0.task.send(Command::Keep(lease, kept), |commands| {
            tokio::spawn(Task::new(Arc::clone(&self.0.connections), commands).run());
        });
        KeepAlive { hub: self.clone(), lease, number }
    }
}

#[derive(Debug)]
struct Kept {
    /// Tells it from another that was kept under the same id.
    number: u64,
    interval: Duration,
    /// When the last refresh that was answered had been sent.
    last_answer: Instant,
    turn: Turn,
    report: watch::Sender<LeaseState>,
}

/// Where a lease is in its round of refreshes.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Due(Instant),
    Sent(Instant),
}

struct Task {
    connections: Arc<Connections>,
    commands: mpsc::UnboundedReceiver<Command>,
    leases: HashMap<i64, Kept>,
    due: BTreeSet<(Instant, i64)>,
    sent: BTreeSet<(Instant, i64)>,
    /// How long a stream may be silent: the shortest interval of a lease, or the time for a request.
    limit: Duration,
    /// When the server was last heard on the stream.
    heard: Option<Instant>,
}

impl Task {
    fn new(connections: Arc<Connections>, commands: mpsc::UnboundedReceiver<Command>) -> Self {
        let limit = connections.settings.request_timeout;
        let (leases, due, sent) = (HashMap::new(), BTreeSet::new(), BTreeSet::new());
        Task { connections, commands, leases, due, sent, limit, heard: None }
    }

    async fn run(mut self) {
        let mut backoff = self.backoff();
        // After a failure, not before then.
        let mut not_before = Instant::now();
        loop {
            let begin = self.due.first().map(|(at, _)| not_before.max(*at));
            tokio::select! {
                command = self.commands.recv() => match command {
                    None => return,
                    Some(command) => {
                        self.apply(command);
                        continue;
                    }
                },
                () = sleep_until(begin.unwrap_or(not_before)), if begin.is_some() => {}
            }
            self.heard = None;
            match self.refresh().await {
                End::Unused => return,
                End::Idle => {}
                End::Failed(error) => {
                    if self.heard.is_some() {
                        backoff = self.backoff();
                    }
                    debug!(%error, leases = self.leases.len(), "refreshes failed");
                    self.unanswered();
                    not_before = Instant::now() + backoff.next(fastrand::f64());
                }
            }
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(Duration::from_millis(50), self.limit.min(Duration::from_secs(2)))
    }

    /// Refreshes on one stream for as long as that goes well.
    async fn refresh(&mut self) -> End {
        let connection = match self.connections.current().await {
            Ok(connection) => connection,
            Err(error) => return End::Failed(error),
        };
        let (requests, queue) = request_stream();
        // A server answers an open stream with the first of its answers, and that needs a request.
        self.send_due(&requests);
        let opened = timeout_at(Instant::now() + self.limit, connection.refreshes(queue)).await;
        let end = match opened {
            Ok(Ok(answers)) => self.serve(&connection, &requests, answers).await,
            Ok(Err(error)) => End::Failed(error),
            Err(_) => End::Failed(late(&connection)),
        };
        if matches!(end, End::Failed(_)) {
            self.connections.failed(&connection);
        }
        end
    }

    async fn serve(
        &mut self,
        on: &Connection,
        requests: &Requests<Refresh>,
        mut answers: Streaming<Refreshed>,
    ) -> End {
        loop {
            if self.leases.is_empty() {
                return End::Idle;
            }
            self.send_due(requests);
            // A server that answers others is slow and not gone.
            let silent = self.sent.first().map(|(sent, _)| self.heard.max(Some(*sent)));
            let silent = silent.flatten().map(|since| since + self.limit);
            let due = self.due.first().map(|(at, _)| *at);
            let wake = [silent, due].into_iter().flatten().min();
            tokio::select! {
                command = self.commands.recv() => match command {
                    None => return End::Unused,
                    Some(command) => self.apply(command),
                },
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => self.answered(&answer),
                    Ok(None) => {
                        return End::Failed(Error::new(ErrorKind::Interrupted, WHAT).endpoint(&on.url));
                    }
                    Err(status) => {
                        return End::Failed(on.error(WHAT, etcd_client::Error::GRpcStatus(status)));
                    }
                },
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                    if silent.is_some_and(|at| at <= Instant::now()) {
                        return End::Failed(late(on));
                    }
                }
            }
        }
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Keep(id, kept) => {
                self.remove(id);
                if self.leases.is_empty() {
                    self.limit = self.connections.settings.request_timeout;
                }
                self.limit = self.limit.min(kept.interval);
                let turn = kept.turn;
                self.leases.insert(id, kept);
                self.file(id, turn);
            }
            Command::Forget(id, number) => {
                if self.leases.get(&id).is_some_and(|kept| kept.number == number) {
                    self.remove(id);
                }
            }
        }
    }

    fn remove(&mut self, id: i64) -> Option<Kept> {
        let kept = self.leases.remove(&id)?;
        self.unfile(id, kept.turn);
        Some(kept)
    }

    fn file(&mut self, id: i64, turn: Turn) {
        match turn {
            Turn::Due(at) => self.due.insert((at, id)),
            Turn::Sent(at) => self.sent.insert((at, id)),
        };
    }

    fn unfile(&mut self, id: i64, turn: Turn) {
        match turn {
            Turn::Due(at) => self.due.remove(&(at, id)),
            Turn::Sent(at) => self.sent.remove(&(at, id)),
        };
    }

    fn turn(&mut self, id: i64, turn: Turn) {
        if let Some(kept) = self.leases.get_mut(&id) {
            let before = std::mem::replace(&mut kept.turn, turn);
            self.unfile(id, before);
            self.file(id, turn);
        }
    }

    fn send_due(&mut self, requests: &Requests<Refresh>) {
        let now = Instant::now();
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.turn(id, Turn::Sent(now));
            // A stream that is over already shows in its answers.
            let _ = requests.unbounded_send(Refresh { id });
        }
    }

    fn answered(&mut self, answer: &Refreshed) {
        self.heard = Some(Instant::now());
        let Some(kept) = self.leases.get_mut(&answer.id) else { return };
        if answer.ttl <= 0 {
            warn!(lease = answer.id, "the lease is lost");
            kept.report.send_replace(LeaseState::Lost);
            self.remove(answer.id);
        } else if let Turn::Sent(sent) = kept.turn {
            kept.last_answer = sent;
            kept.report.send_replace(LeaseState::Alive);
            let next = sent + kept.interval;
            self.turn(answer.id, Turn::Due(next));
        }
    }

    /// The stream is gone: whoever waits for an answer, or for a stream to ask on, does not know how things are.
    fn unanswered(&mut self) {
        let now = Instant::now();
        let late = self.due.iter().take_while(|(at, _)| *at <= now);
        let late: Vec<i64> = self.sent.iter().chain(late).map(|(_, id)| *id).collect();
        for id in late {
            self.turn(id, Turn::Due(now));
            if let Some(kept) = self.leases.get(&id) {
                kept.report.send_replace(LeaseState::Unsure { since: kept.last_answer });
            }
        }
    }
}

fn late(on: &Connection) -> Error {
    Error::new(ErrorKind::Timeout, WHAT).endpoint(&on.url)
}
