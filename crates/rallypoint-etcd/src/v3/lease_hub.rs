//! All leases of a client refreshed on one gRPC stream.
//!
//! The stream is opened on the client's connection when the first lease is due. While an answer is late, new connections
//! are tried in short steps beside the stream, and the first that is answered takes over: a connection that was cut hangs
//! for about as long again as the cut took, and a lease has not that much time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, warn};

use super::connections::Connections;
use super::lease_state::LeaseState;
use super::mailbox::Mailbox;
use super::refresh::{Broken, Cause, RefreshStream, Refreshed, WHAT};
use crate::{Error, ErrorKind};

/// A user may have many leases that it may no longer refresh: their streams are not opened all at once.
const BETWEEN_REFUSALS: Duration = Duration::from_millis(20);

/// A password is dear for etcd to check, and one that is wrong stays so until somebody mends it.
const AFTER_A_WRONG_PASSWORD: Duration = Duration::from_secs(1);

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
        let now = Instant::now();
        // Spread over the time between two refreshes, as many leases may have been granted together.
        let turn = Turn::Due(now + ttl.mul_f64(0.05 + 0.25 * fastrand::f64()));
        let kept = Kept { number, ttl, last_answer: now, turn, report };
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
    ttl: Duration,
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
    /// The shortest time to live, by which all go.
    shortest: Duration,
    /// When the server was last heard.
    heard: Instant,
    /// New connections that were taken and then not answered, one after the other.
    unanswered: u32,
}

/// All handles are gone.
struct Unused;

/// A stream that is being opened.
type Opening = BoxFuture<'static, Result<RefreshStream, Broken>>;

impl Task {
    fn new(connections: Arc<Connections>, commands: mpsc::UnboundedReceiver<Command>) -> Self {
        let (leases, due, sent) = (HashMap::new(), BTreeSet::new(), BTreeSet::new());
        let (shortest, heard) = (Duration::MAX, Instant::now());
        Task { connections, commands, leases, due, sent, shortest, heard, unanswered: 0 }
    }

    async fn run(mut self) {
        loop {
            let first = self.due.first().map(|(at, _)| *at);
            tokio::select! {
                command = self.commands.recv() => match command {
                    None => return,
                    Some(command) => self.apply(command),
                },
                () = sleep_until(first.unwrap_or_else(Instant::now)), if first.is_some() => {
                    if let Err(Unused) = self.refresh().await {
                        return;
                    }
                }
            }
        }
    }

    /// Refreshes for as long as there are leases.
    async fn refresh(&mut self) -> Result<(), Unused> {
        let mut stream: Option<RefreshStream> = None;
        let mut opening: Option<Opening> = None;
        // The connection of the client did not do: a new one is needed.
        let mut doubtful = false;
        // After a failure, not before then.
        let mut not_before = Instant::now();
        // There is nobody to hold a stream for without leases; it would only cost.
        while !self.leases.is_empty() {
            if let Some(stream) = &mut stream {
                self.send_due(stream);
            }
            let late = self.late_at(stream.is_some()).map(|at| at.max(not_before));
            if opening.is_none() && late.is_some_and(|at| at <= Instant::now()) {
                opening = self.open(doubtful || stream.is_some());
            }
            let due = self.due.first().map(|(at, _)| *at).filter(|_| stream.is_some());
            let wake = [late.filter(|_| opening.is_none()), due].into_iter().flatten().min();
            tokio::select! {
                command = self.commands.recv() => match command {
                    None => return Err(Unused),
                    Some(command) => self.apply(command),
                },
                answer = async { stream.as_mut().expect("there is one").answer().await }, if stream.is_some() => {
                    match answer {
                        Ok(answer) => {
                            // A server that answers at last is slow and not gone.
                            (opening, doubtful) = (None, false);
                            self.answered(&answer);
                        }
                        Err(Broken { error, cause }) => {
                            debug!(%error, leases = self.leases.len(), "refreshes failed");
                            let broken = stream.take().expect("it was there to break");
                            doubtful = cause == Cause::Connection;
                            match cause {
                                Cause::Connection => self.no_answer(&error),
                                // One that has no leader says so. Its connection will do, or another server's.
                                Cause::Server => {
                                    self.connections.move_on(&broken.link);
                                    not_before = self.pause();
                                    self.no_answer(&error);
                                }
                                // It was good until now, and a new one will be.
                                Cause::Token | Cause::Password => {}
                                Cause::Permission(lease) => self.set_aside(lease),
                            }
                            self.send_again();
                        }
                    }
                }
                opened = async { opening.as_mut().expect("there is one").await }, if opening.is_some() => {
                    opening = None;
                    match opened {
                        Ok(mut opened) => {
                            if doubtful || stream.is_some() {
                                self.connections.adopt(&opened.link);
                            }
                            self.sent.iter().for_each(|(_, id)| opened.send(*id));
                            (stream, self.heard) = (Some(opened), Instant::now());
                        }
                        Err(Broken { error, cause }) => {
                            debug!(%error, leases = self.leases.len(), "no stream for refreshes");
                            self.unanswered += u32::from(error.kind() == ErrorKind::Timeout);
                            doubtful = cause == Cause::Connection;
                            not_before = self.pause();
                            match cause {
                                Cause::Token => {}
                                // The others' turn comes before its next one.
                                Cause::Permission(lease) => {
                                    self.set_aside(lease);
                                    not_before = Instant::now() + BETWEEN_REFUSALS;
                                }
                                Cause::Password => {
                                    self.connections.metrics.refresh_failed();
                                    self.unsure(true);
                                    not_before = Instant::now() + AFTER_A_WRONG_PASSWORD;
                                }
                                Cause::Connection | Cause::Server => self.no_answer(&error),
                            }
                            if stream.is_none() {
                                self.send_again();
                            }
                        }
                    }
                }
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            }
        }
        Ok(())
    }

    /// When something is late: a refresh that has no stream to go out on, or an answer. A server that answers others
    /// is slow and not gone.
    fn late_at(&self, on_stream: bool) -> Option<Instant> {
        if on_stream {
            self.sent.first().map(|(sent, _)| self.heard.max(*sent) + self.silence())
        } else {
            self.due.first().map(|(at, _)| *at)
        }
    }

    /// How long an answer may take before another connection is tried beside.
    fn silence(&self) -> Duration {
        let longest = self.connections.settings.request_timeout;
        (self.shortest / 6).clamp(Duration::from_millis(200).min(longest), longest)
    }

    /// The time between two tries to connect: short, while there is a lease to save.
    fn step(&self) -> Duration {
        let step = (self.shortest / 16).clamp(Duration::from_millis(100), Duration::from_secs(1));
        if self.heard.elapsed() > self.shortest * 2 { step.max(Duration::from_secs(1)) } else { step }
    }

    /// When to try again after a failure.
    fn pause(&self) -> Instant {
        Instant::now() + self.step().mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// Opens a stream by refreshing the lease that is the latest.
    fn open(&mut self, anew: bool) -> Option<Opening> {
        let (_, id) = self.sent.first().or(self.due.first()).copied()?;
        if let Some(Turn::Due(_)) = self.leases.get(&id).map(|kept| kept.turn) {
            self.turn(id, Turn::Sent(Instant::now()));
        }
        let connections = Arc::clone(&self.connections);
        let (step, silence) = (self.step(), self.silence());
        let to_connect = (step * 4).max(Duration::from_secs(1));
        // A server that takes connections and answers on none of them does not need more of them.
        let most = connections.settings.request_timeout.min(self.shortest / 2).max(silence);
        let to_answer = (silence * 2u32.saturating_pow(self.unanswered.min(8))).min(most);
        let past = self.unanswered as usize;
        let opening = async move {
            let late = |url: &str| Error::new(ErrorKind::Timeout, WHAT).endpoint(url);
            let login = Arc::clone(&connections.login);
            let begun = Instant::now();
            if anew {
                let link = connections.fresh(past, step, begun + to_connect).await?;
                let url = link.url.clone();
                let pass = timeout_at(Instant::now() + most, login.pass_on_fresh(&link)).await;
                let pass = pass.map_err(|_| late(&url))??;
                let open = RefreshStream::open(link.clone(), login, pass, id);
                let opened = timeout_at(Instant::now() + to_answer, open).await;
                // It takes connections and answers on none: it hangs, or has lost its cluster and does not know yet.
                return opened.map_err(|_| {
                    connections.move_on(&link);
                    late(&url)
                })?;
            }
            // To look at a password takes etcd longer than to refresh a lease.
            let limit = if login.pass().is_some() { silence } else { most };
            let current = async {
                let link = connections.current().await?.link();
                let pass = login.pass_on(&link).await?;
                let opened = RefreshStream::open(link.clone(), login, pass, id).await;
                opened.inspect_err(|broken| {
                    if matches!(broken.cause, Cause::Connection | Cause::Server) {
                        connections.move_on(&link);
                    }
                })
            };
            let opened = timeout_at(begun + limit, current).await;
            opened.map_err(|_| Error::new(ErrorKind::Interrupted, WHAT).because("no answer in time"))?
        };
        Some(opening.boxed())
    }

    /// A lease that etcd does not let us refresh waits for its next try while the others go on: who may write its keys can
    /// change at any time.
    fn set_aside(&mut self, id: i64) {
        self.connections.metrics.refresh_failed();
        if let Some(kept) = self.leases.get(&id) {
            kept.report.send_replace(LeaseState::Unsure { since: kept.last_answer, refused: true });
            self.turn(id, Turn::Due(self.pause()));
        }
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Keep(id, kept) => {
                self.remove(id);
                if self.leases.is_empty() {
                    (self.shortest, self.heard) = (kept.ttl, Instant::now());
                }
                self.shortest = self.shortest.min(kept.ttl);
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

    fn send_due(&mut self, stream: &mut RefreshStream) {
        let now = Instant::now();
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.turn(id, Turn::Sent(now));
            stream.send(id);
        }
    }

    fn answered(&mut self, answer: &Refreshed) {
        (self.heard, self.unanswered) = (Instant::now(), 0);
        self.connections.failover.reach.answered();
        self.connections.metrics.answered();
        let Some(kept) = self.leases.get_mut(&answer.id) else { return };
        if answer.ttl <= 0 {
            warn!(
                lease = format_args!("{:x}", answer.id),
                "etcd has ended this lease: it was not refreshed in time, or etcd has lost it"
            );
            kept.report.send_replace(LeaseState::Lost);
            self.connections.metrics.lease_lost();
            self.remove(answer.id);
        } else if let Turn::Sent(sent) = kept.turn {
            kept.last_answer = sent;
            self.connections.metrics.refreshed(sent.elapsed());
            kept.report.send_replace(LeaseState::Alive);
            // Four fit into the time to live: a cut may take more than half of it. Never all at the same time.
            let next = sent + kept.ttl.mul_f64(0.225 + 0.025 * fastrand::f64());
            self.turn(answer.id, Turn::Due(next));
        }
    }

    /// No answer came, for this reason.
    fn no_answer(&self, why: &Error) {
        self.connections.failover.reach.unanswered(self.heard, why);
        self.connections.metrics.refresh_failed();
        self.unsure(false);
    }

    /// Whoever waits for an answer, or for a stream to ask on, does not know how things are.
    fn unsure(&self, refused: bool) {
        let now = Instant::now();
        let late = self.due.iter().take_while(|(at, _)| *at <= now);
        for (_, id) in self.sent.iter().chain(late) {
            if let Some(kept) = self.leases.get(id) {
                kept.report.send_replace(LeaseState::Unsure { since: kept.last_answer, refused });
            }
        }
    }

    /// The stream is gone, and with it the answers to what was sent.
    fn send_again(&mut self) {
        let now = Instant::now();
        while let Some((_, id)) = self.sent.first().copied() {
            self.turn(id, Turn::Due(now));
        }
    }
}
