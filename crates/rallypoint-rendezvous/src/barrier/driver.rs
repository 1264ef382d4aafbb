//! The task that runs a node's machine: carries out what it wants, and tells it what happens.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use rallypoint_core::barrier::{
    Change, Failure, Loss, Node, NodeEvent, Output, Reply, Update, VersionRank, WatchId,
};
use rallypoint_core::text::are;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::watching::Watching;
use super::wire::Wire;
use crate::error::{RendezvousError, Result};
use crate::handler::GroupChange;
use crate::progress::Progress;

/// What the handler asks of the task.
#[derive(Debug)]
pub(super) enum Command {
    Join { time: Duration, done: oneshot::Sender<Result<Joined, NoVersion>> },
    Close { reason: String, done: oneshot::Sender<Result<()>> },
    Leave { done: oneshot::Sender<()> },
}

/// A final version with this node in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joined {
    pub(super) place: VersionRank,
    pub(super) world: usize,
}

/// Why there is no version.
#[derive(Debug)]
pub(super) enum NoVersion {
    Closed {
        reason: String,
    },
    /// The time is over; if etcd has been silent, for how long.
    OutOfTime {
        silent: Option<Duration>,
    },
    Failed(RendezvousError),
    /// The node was told to leave.
    Left,
}

/// What the task tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Group {
    /// This node's place, while it is a member.
    pub(super) place: Option<VersionRank>,
    /// Why the last group is no longer as it was.
    pub(super) change: Option<GroupChange>,
}

type Watch = BoxFuture<'static, (Watching, Result<Update>)>;

pub(super) struct Driver {
    node: Node,
    wire: Wire,
    began: Instant,
    commands: mpsc::UnboundedReceiver<Command>,
    requests: FuturesUnordered<BoxFuture<'static, (u64, Result<Reply>)>>,
    watches: [Option<Watch>; 2],
    group: watch::Sender<Group>,
    progress: watch::Sender<Progress>,
    /// When etcd last did what it was asked.
    contact: watch::Sender<Option<Instant>>,
    joining: Option<oneshot::Sender<Result<Joined, NoVersion>>>,
    /// A version that became final after its caller had gone.
    undelivered: Option<Joined>,
    closing: Vec<oneshot::Sender<Result<()>>>,
    leaving: Vec<oneshot::Sender<()>>,
}

impl Driver {
    pub(super) fn new(
        node: Node,
        wire: Wire,
        commands: mpsc::UnboundedReceiver<Command>,
        group: watch::Sender<Group>,
        progress: watch::Sender<Progress>,
    ) -> Self {
        Driver {
            node,
            wire,
            began: Instant::now(),
            commands,
            requests: FuturesUnordered::new(),
            watches: [None, None],
            group,
            progress,
            contact: watch::Sender::new(None),
            joining: None,
            undelivered: None,
            closing: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// When etcd last did what it was asked. At work that is to renew this node's keep-alive.
    pub(super) fn contact(&self) -> watch::Receiver<Option<Instant>> {
        self.contact.subscribe()
    }

    /// Runs until the handler is gone.
    pub(super) async fn run(mut self) {
        loop {
            self.drain();
            let [record, members] = &mut self.watches;
            // A time that no clock reaches is never.
            let timeout = self.node.poll_timeout().and_then(|after| self.began.checked_add(after));
            tokio::select! {
                command = self.commands.recv() => match command {
                    None => return,
                    Some(command) => self.command(command),
                },
                Some((id, result)) = self.requests.next() => self.replied(id, result),
                (watching, update) = next(record) => self.updated(WatchId::Record, watching, update),
                (watching, update) = next(members) => self.updated(WatchId::Members, watching, update),
                () = until(timeout) => self.node.handle_timeout(self.began.elapsed()),
            }
        }
    }

    fn command(&mut self, command: Command) {
        let now = self.began.elapsed();
        match command {
            Command::Join { time, done } => {
                let whole = self.group.borrow().change.is_none();
                match self.undelivered.take().filter(|_| whole) {
                    Some(joined) => self.undelivered = done.send(Ok(joined)).err().and_then(Result::ok),
                    None => {
                        self.joining = Some(done);
                        self.group.send_modify(|group| group.place = None);
                        self.node.join(now, time);
                    }
                }
            }
            Command::Close { reason, done } => {
                self.closing.push(done);
                self.node.close(now, &reason);
            }
            Command::Leave { done } => {
                self.leaving.push(done);
                self.undelivered = None;
                self.group.send_modify(|group| group.place = None);
                if let Some(joining) = self.joining.take() {
                    let _ = joining.send(Err(NoVersion::Left));
                }
                self.node.leave(now);
            }
        }
    }

    fn replied(&mut self, id: u64, result: Result<Reply>) {
        if result.is_ok() {
            self.contact.send_replace(Some(Instant::now()));
        }
        let reply = result.map_err(|error| {
            debug!(run = self.wire.run_id, %error, "a request of the rendezvous failed");
            self.give_up(error);
            Failure::Unknown
        });
        self.node.handle_reply(self.began.elapsed(), id, reply);
    }

    fn updated(&mut self, id: WatchId, watching: Watching, update: Result<Update>) {
        let update = update.unwrap_or_else(|error| {
            debug!(run = self.wire.run_id, %error, "a watch of the rendezvous failed");
            self.give_up(error);
            Update::Failed
        });
        // The machine watches again from where it wants to after a failure.
        let goes_on = !matches!(update, Update::Failed | Update::Cleared);
        *self.watch(id) = goes_on.then(|| watching.next());
        self.node.handle_update(self.began.elapsed(), id, update);
    }

    fn watch(&mut self, id: WatchId) -> &mut Option<Watch> {
        &mut self.watches[match id {
            WatchId::Record => 0,
            WatchId::Members => 1,
        }]
    }

    /// If waiting does not mend it, whoever waits is told. The machine tries again all the same, for the sake of
    /// a group that is at work.
    fn give_up(&mut self, error: RendezvousError) {
        if self.wire.may_pass(&error) {
            return;
        }
        warn!(run = self.wire.run_id, %error, "etcd refuses the rendezvous");
        if let Some(closing) = self.closing.pop() {
            let _ = closing.send(Err(error));
        } else if let Some(joining) = self.joining.take() {
            let _ = joining.send(Err(NoVersion::Failed(error)));
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Request { id, request } => {
                    let wire = self.wire.clone();
                    self.requests.push(Box::pin(async move { (id, wire.carry_out(&request).await) }));
                }
                Output::Watch { id, keys, from } => {
                    *self.watch(id) = Some(Watching::new(&self.wire, keys, from).next());
                }
                Output::Unwatch(id) => *self.watch(id) = None,
                Output::Event(event) => self.event(event),
            }
        }
    }

    fn event(&mut self, event: NodeEvent) {
        let run = &self.wire.run_id;
        match event {
            NodeEvent::Joined { place, world } => {
                info!(run, version = place.version, rank = place.rank, world, "met");
                self.group.send_replace(Group { place: Some(place), change: None });
                let joined = Joined { place, world };
                self.undelivered = match self.joining.take() {
                    Some(joining) => joining.send(Ok(joined)).err().and_then(Result::ok),
                    None => Some(joined),
                };
            }
            NodeEvent::Changed(change) => {
                match &change {
                    Change::Closed { reason } => debug!(run, reason, "the run is closed"),
                    change => info!(run, "{}: the group meets again", in_words(change)),
                }
                self.group.send_modify(|group| group.change = Some(translate_change(change)));
            }
            NodeEvent::Recovered(loss) => warn!(run, "the group goes on: {}", because(loss)),
            NodeEvent::Progress { version, joined, last_call, spare } => {
                self.progress.send_modify(|progress| {
                    let round = version.unwrap_or(progress.round);
                    *progress = Progress { round, joined, last_call, spare, ..progress.clone() };
                });
            }
            NodeEvent::OutOfTime { silent } => {
                if let Some(joining) = self.joining.take() {
                    let _ = joining.send(Err(NoVersion::OutOfTime { silent }));
                }
            }
            NodeEvent::Refused { reason } => {
                if let Some(joining) = self.joining.take() {
                    let _ = joining.send(Err(NoVersion::Closed { reason }));
                }
            }
            NodeEvent::Closed => {
                for done in self.closing.drain(..) {
                    let _ = done.send(Ok(()));
                }
            }
            NodeEvent::Left => {
                for done in self.leaving.drain(..) {
                    let _ = done.send(());
                }
            }
        }
    }
}

fn in_words(change: &Change) -> String {
    match change {
        Change::Waiting(count) => are(*count, "node", "waiting to get in"),
        Change::Died { rank, .. } => format!("node {rank} died"),
        Change::Left { rank: Some(rank), .. } => format!("node {rank} left"),
        Change::Left { .. } => "a node asks for another round".to_owned(),
        Change::Excluded => "this node has lost its place".to_owned(),
        Change::Closed { .. } => "the run is closed".to_owned(),
    }
}

fn because(loss: Loss) -> &'static str {
    match loss {
        Loss::KeepAlive => "its keep-alive had ended, and the version still stands",
        Loss::Everything => {
            "etcd had lost the run (its folder ended, or the server lost its data), and what the rendezvous needs \
             was put back; what was in the group's store is gone"
        }
        Loss::Latest => "etcd had gone back to an earlier state, and what the rendezvous needs was put back",
    }
}

fn translate_change(change: Change) -> GroupChange {
    match change {
        Change::Waiting(count) => GroupChange::Waiting { count },
        Change::Died { node, rank } => GroupChange::Died { node, rank: Some(rank) },
        Change::Left { node, rank } => GroupChange::Left { node, rank },
        Change::Excluded => GroupChange::Excluded,
        Change::Closed { reason } => GroupChange::Closed { reason },
    }
}

/// The watch's next update; pending where there is no watch.
async fn next(watch: &mut Option<Watch>) -> (Watching, Result<Update>) {
    match watch {
        Some(watch) => watch.await,
        None => std::future::pending().await,
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending::<()>().await,
    }
}

/// How long leaving and closing may take before the caller is told that they have not come to an end.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
