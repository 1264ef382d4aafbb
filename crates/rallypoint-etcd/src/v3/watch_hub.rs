//! All watches of a client on one gRPC stream.
//!
//! A stream that was cut is never taken up again where it was. Who answers next may have lost its data or been restored
//! to an earlier state, with the same name and a revision that is as high: its events would not be of the history that
//! a watch was told before. So every watch on the stream ends, and its owner reads afresh.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream};
use rallypoint_core::Backoff;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::connections::{Connection, Connections};
use super::entry::Change;
use super::mailbox::Mailbox;
use super::range::KeyRange;
use super::watch_ids::{self, WatchIds};
use crate::{Error, ErrorKind, Result};

/// How many messages may lie between the hub and a slow reader. Beyond that the reader gets a fresh read
/// instead, so that nobody's memory grows with somebody else's writes.
const BACKLOG: usize = 1024;

/// A stream that was there for so long was cut by chance.
const LASTED: Duration = Duration::from_secs(5);

/// After a silence of this length the server is asked whether it still serves the stream.
const SILENCE: Duration = Duration::from_secs(30);

/// How long it has for an answer where a newer connection was answered and this one was not.
const SUSPECTED: Duration = Duration::from_secs(1);

/// The way to the task that holds the stream. The task ends with the last handle.
#[derive(Debug, Clone)]
pub(super) struct WatchHub(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connections: Arc<Connections>,
    next_id: AtomicI64,
    task: Mailbox<Command>,
    pause: Pause,
}

/// After a cut, nobody reads and no stream is opened before then: all clients of a server are cut at once, and must not
/// be back at once.
#[derive(Debug, Clone)]
struct Pause(Arc<Mutex<Instant>>);

impl Pause {
    fn end(&self) -> Instant {
        *self.0.lock().expect("no code panics while it holds this lock")
    }

    fn begin(&self, time: Duration) {
        *self.0.lock().expect("no code panics while it holds this lock") = Instant::now() + time;
    }
}

#[derive(Debug)]
enum Command {
    Subscribe(i64, Watcher),
    Cancel(i64),
}

#[derive(Debug)]
struct Watcher {
    range: KeyRange,
    /// The first revision whose events it has not been sent. None until the server has told where now is.
    next_revision: Option<i64>,
    /// Whether the server has taken it in, on the stream that is open.
    created: bool,
    /// The highest revision that an answer to it has named, that to its creation apart: a write of the same moment may
    /// be told after it.
    highest: i64,
    /// Whether to ask for what was before.
    before: bool,
    messages: mpsc::Sender<Result<Vec<Change>>>,
}

/// What the hub sends to a watch. The channel's end means: read afresh.
type Messages = mpsc::Receiver<Result<Vec<Change>>>;

/// A place in the hub, given back when dropped.
#[derive(Debug)]
pub(super) struct Subscription {
    hub: WatchHub,
    id: i64,
    pub(super) messages: Messages,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.0.task.send_if_running(Command::Cancel(self.id));
    }
}

impl WatchHub {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        let pause = Pause(Arc::new(Mutex::new(Instant::now())));
        WatchHub(Arc::new(Shared {
            connections,
            next_id: AtomicI64::new(watch_ids::FIRST),
            task: Mailbox::new(),
            pause,
        }))
    }

    /// When ranges may be read afresh.
    pub(super) fn not_before(&self) -> Instant {
        self.0.pause.end()
    }

    /// Watches from this revision on; if there is none, from now on, of which an empty message tells.
    pub(super) fn subscribe(&self, range: KeyRange, from: Option<i64>, before: bool) -> Subscription {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, messages) = mpsc::channel(BACKLOG);
        let watcher =
            Watcher { range, next_revision: from, created: false, highest: 0, before, messages: sender };
        self.0.task.send(Command::Subscribe(id, watcher), |commands| {
            let (connections, pause) = (Arc::clone(&self.0.connections), self.0.pause.clone());
            let watchers = HashMap::new();
            let (ids, heard, cluster, answer_by) = (WatchIds::new(), false, 0, None);
            let task = Task { connections, commands, pause, watchers, ids, heard, cluster, answer_by };
            tokio::spawn(task.run());
        });
        Subscription { hub: self.clone(), id, messages }
    }
}

struct Task {
    connections: Arc<Connections>,
    commands: mpsc::UnboundedReceiver<Command>,
    pause: Pause,
    watchers: HashMap<i64, Watcher>,
    /// What the server calls them.
    ids: WatchIds,
    /// The server has said something on the stream that was no refusal.
    heard: bool,
    /// The cluster that answers on the stream; 0 before the first answer.
    cluster: u64,
    /// The server was asked something, and must say anything at all by then.
    answer_by: Option<Instant>,
}

/// The requests of one stream, sent by a task of their own: whoever reads answers must not wait for room to
/// send, or both sides could wait for each other.
type Requests = mpsc::UnboundedSender<Request>;

enum Request {
    Create(i64, KeyRange, Option<i64>, bool),
    Cancel(i64),
    Progress,
}

/// Why a stream is over.
enum End {
    /// All handles are gone.
    Unused,
    /// There is nobody to hold it for; it would only cost.
    Idle,
    Failed(Error),
}

impl Task {
    async fn run(mut self) {
        let new_backoff = || Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
        let mut backoff = new_backoff();
        loop {
            while self.watchers.is_empty() || self.pause.end() > Instant::now() {
                tokio::select! {
                    command = self.commands.recv() => match command {
                        None => return,
                        Some(command) => self.apply(command, None),
                    },
                    () = sleep_until(self.pause.end()), if !self.watchers.is_empty() => {}
                }
            }
            let end = match self.open().await {
                Ok((connection, requests, mut answers)) => {
                    let opened = Instant::now();
                    let end = self.serve(&connection, &requests, &mut answers).await;
                    // One that opens and refuses everything, or is cut again and again, must not be opened at once each
                    // time: after every cut all is read afresh.
                    if self.heard && opened.elapsed() >= LASTED {
                        backoff = new_backoff();
                    }
                    if matches!(end, End::Failed(_)) {
                        self.connections.failed(&connection);
                    }
                    end
                }
                Err(error) => End::Failed(error),
            };
            match end {
                End::Unused => return,
                End::Idle => {}
                End::Failed(error) if error.is_transient() => {
                    debug!(%error, watches = self.watchers.len(), "the watch stream broke");
                    self.connections.metrics.watches_cut();
                    self.pause.begin(backoff.next(fastrand::f64()));
                    self.distrust();
                }
                // Waiting does not mend it: each watch tells its owner, who reads afresh and sees for himself.
                End::Failed(error) => {
                    debug!(%error, watches = self.watchers.len(), "the watch stream cannot be opened");
                    for (_, watcher) in self.watchers.drain() {
                        let error = Error::new(error.kind(), "watch").because(error.to_string());
                        let _ = watcher.messages.try_send(Err(error));
                    }
                }
            }
        }
    }

    /// Ends every watch that knows of a revision: it is one of a history that may be over. What was to begin with the
    /// next stream still does.
    fn distrust(&mut self) {
        // Whoever asked before the cut was known had its revision from before the cut as well.
        while let Ok(command) = self.commands.try_recv() {
            self.apply(command, None);
        }
        self.watchers.retain(|_, watcher| watcher.next_revision.is_none());
    }

    /// Opens a stream with all watches on it, each from where it was.
    async fn open(&mut self) -> Result<(Arc<Connection>, Requests, WatchResponseStream)> {
        let connection = self.connections.current().await?;
        (self.heard, self.cluster, self.ids) = (false, 0, WatchIds::new());
        let mut watchers = self.watchers.iter();
        let (&id, first) = watchers.next().expect("a stream is opened only for watches");
        let options = options(id, &first.range, first.next_revision, first.before);
        let mut client = connection.watch();
        self.ids.ask(id);
        let opening = client.watch(first.range.start.clone(), Some(options));
        let opened = tokio::time::timeout(self.connections.settings.request_timeout, opening).await;
        let (sender, answers) = match opened {
            Ok(Ok(stream)) => stream.split(),
            failed => {
                self.connections.failed(&connection);
                return Err(match failed {
                    Ok(Err(error)) => connection.error("watch", error),
                    _ => Error::new(ErrorKind::Timeout, "watch").endpoint(&connection.url),
                });
            }
        };
        let (requests, queue) = mpsc::unbounded_channel();
        tokio::spawn(send_requests(sender, queue));
        for (&id, watcher) in watchers {
            self.ids.ask(id);
            // A stream that is over already shows in its answers.
            let create = Request::Create(id, watcher.range.clone(), watcher.next_revision, watcher.before);
            let _ = requests.send(create);
        }
        self.answer_by = Some(self.limit());
        Ok((connection, requests, answers))
    }

    /// When a server that was asked something now is late.
    fn limit(&self) -> Instant {
        Instant::now() + self.connections.settings.request_timeout
    }

    async fn serve(
        &mut self,
        on: &Connection,
        requests: &Requests,
        answers: &mut WatchResponseStream,
    ) -> End {
        let mut heard_at = Instant::now();
        loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    None => return End::Unused,
                    Some(command) => {
                        self.apply(command, Some(requests));
                        if self.watchers.is_empty() {
                            return End::Idle;
                        }
                    }
                },
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => {
                        heard_at = Instant::now();
                        self.answer_by = None;
                        if let Err(error) = self.handle(&answer, on, requests) {
                            return End::Failed(error);
                        }
                    }
                    Ok(None) => {
                        return End::Failed(Error::new(ErrorKind::Interrupted, "watch").endpoint(&on.url));
                    }
                    Err(error) => return End::Failed(on.error("watch", error)),
                },
                () = on.suspected(), if self.answer_by.is_none() => {
                    self.ask(requests);
                    self.answer_by = Some(self.limit().min(Instant::now() + SUSPECTED));
                }
                () = sleep_until(self.answer_by.unwrap_or(heard_at + SILENCE)) => {
                    if self.answer_by.is_some() {
                        return End::Failed(Error::new(ErrorKind::Timeout, "watch").endpoint(&on.url));
                    }
                    // Pings tell of a connection that hangs, and nothing of a stream that does.
                    self.ask(requests);
                    self.answer_by = Some(self.limit());
                }
            }
        }
    }

    /// Asks for an answer, whatever it is.
    fn ask(&mut self, requests: &Requests) {
        let probe = self.watchers.values().next().filter(|_| self.ids.are_servers());
        let request = match probe {
            // A proxy has nothing to say of its progress.
            Some(watcher) => Request::Create(watch_ids::PROBE, watcher.range.clone(), None, false),
            None => Request::Progress,
        };
        if let Request::Create(id, ..) = request {
            self.ids.ask(id);
        }
        let _ = requests.send(request);
    }

    fn apply(&mut self, command: Command, requests: Option<&Requests>) {
        let request = match command {
            Command::Subscribe(id, watcher) => {
                if requests.is_some() {
                    self.ids.ask(id);
                }
                let request =
                    Request::Create(id, watcher.range.clone(), watcher.next_revision, watcher.before);
                self.watchers.insert(id, watcher);
                self.answer_by = self.answer_by.or(Some(self.limit()));
                request
            }
            Command::Cancel(id) => match self.watchers.remove(&id) {
                Some(_) => Request::Cancel(self.ids.end(id)),
                None => return,
            },
        };
        if let Some(requests) = requests {
            let _ = requests.send(request);
        }
    }

    /// Passes an answer on to its watch. An error is the stream's, not the watch's.
    fn handle(&mut self, answer: &WatchResponse, on: &Connection, requests: &Requests) -> Result<()> {
        if answer.canceled() {
            return self.canceled(answer, on);
        }
        let id = self.ids.ours(answer.watch_id(), answer.created());
        self.heard = true;
        let (cluster, revision) =
            answer.header().map_or((0, 0), |header| (header.cluster_id(), header.revision()));
        // A proxy does not always tell.
        if cluster != 0 && ![0, cluster].contains(&std::mem::replace(&mut self.cluster, cluster)) {
            return Err(interrupted(on, "another cluster answers"));
        }
        let Some(watcher) = self.watchers.get_mut(&id) else {
            // Its owner has gone meanwhile, or it was only to be answered.
            if answer.created() {
                let _ = requests.send(Request::Cancel(self.ids.end(id)));
            }
            return Ok(());
        };
        if answer.created() {
            watcher.created = true;
            // A server behind what this watch has seen has lost data, or lags: what it would send from there on
            // says nothing of what happened before.
            match watcher.next_revision {
                Some(next) if revision < next - 1 => self.read_afresh(id, requests),
                Some(_) => {}
                None => {
                    watcher.next_revision = Some(revision + 1);
                    // The first message of all: there is room for it.
                    let _ = watcher.messages.try_send(Ok(Vec::new()));
                }
            }
            return Ok(());
        }
        if revision < watcher.highest {
            self.read_afresh(id, requests);
            return Ok(());
        }
        watcher.highest = revision;
        let prefix = self.connections.settings.prefix.len();
        let changes: Vec<Change> =
            answer.events().iter().filter_map(|event| Change::from_api(event, prefix)).collect();
        let Some(last) = changes.last() else {
            // No events up to here: a later reconnection need not start further back.
            watcher.next_revision = watcher.next_revision.max(Some(revision + 1));
            return Ok(());
        };
        watcher.next_revision = Some(last.event.revision() + 1);
        if watcher.messages.try_send(Ok(changes)).is_err() {
            // Too slow, or gone.
            self.read_afresh(id, requests);
        }
        Ok(())
    }

    /// Ends a watch's channel, which tells its owner to read afresh.
    fn read_afresh(&mut self, id: i64, requests: &Requests) {
        self.watchers.remove(&id);
        let _ = requests.send(Request::Cancel(self.ids.end(id)));
    }

    /// The server has ended a watch. Its owner reads afresh: that renews a password's token if that was the
    /// matter, and fails by itself if the keys may not be read.
    fn canceled(&mut self, answer: &WatchResponse, on: &Connection) -> Result<()> {
        let reason = answer.cancel_reason();
        debug!(reason, compact_revision = answer.compact_revision(), "the server cancelled a watch");
        let before = self.watchers.len();
        match answer.watch_id() {
            // Some versions do not say which one they refuse.
            -1 => self.watchers.retain(|_, watcher| watcher.created),
            id => {
                let ours = self.ids.ours(id, false);
                self.ids.end(ours);
                self.watchers.remove(&ours);
            }
        }
        // One that is gone already was cancelled by its owner; the server only says that it has heard.
        let asked_for = self.watchers.len() == before;
        if asked_for || answer.compact_revision() > 0 {
            return Ok(());
        }
        // Whatever else it was, it is the stream's affair: its token, or its server. On this one a new watch would fare
        // no better.
        Err(interrupted(on, reason))
    }
}

fn interrupted(on: &Connection, reason: &str) -> Error {
    Error::new(ErrorKind::Interrupted, "watch").endpoint(&on.url).because(reason.to_owned())
}

async fn send_requests(mut sender: WatchRequestSender, mut queue: mpsc::UnboundedReceiver<Request>) {
    while let Some(request) = queue.recv().await {
        let sent = match request {
            Request::Create(id, range, from, before) => {
                let options = options(id, &range, from, before);
                sender.watch(range.start, Some(options)).await
            }
            Request::Cancel(id) => sender.cancel(id).await,
            Request::Progress => sender.request_progress().await,
        };
        if sent.is_err() {
            return;
        }
    }
}

fn options(id: i64, range: &KeyRange, from: Option<i64>, before: bool) -> WatchOptions {
    let options = WatchOptions::new().with_watch_id(id).with_progress_notify();
    let options = options.with_start_revision(from.unwrap_or(0));
    let options = if before { options.with_prev_key() } else { options };
    if range.end.is_empty() { options } else { options.with_range(range.end.clone()) }
}

#[cfg(test)]
#[path = "watch_hub_tests.rs"]
mod tests;
