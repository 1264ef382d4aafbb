//! The task that runs a node's machine: carries out what it wants, and tells it what happens.

use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use rallypoint_core::round::{
    CloseOutcome, Failure, Joined, Node, NodeConfig, NodeEvent, Output, Refusal, Reply, WatchId,
};
use rallypoint_core::time::millis;
use rallypoint_etcd::v3::{Client, Lease, LeaseState, Watch, WatchUpdate};
use rallypoint_etcd::{Error, ErrorKind};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::command::{Command, Departing, Group, NoRound};
use super::identity::incarnation;
use super::news;
use super::reach::{Complaint, Reach};
use super::settings::NativeSettings;
use super::translate;
use crate::handler::{Census, GroupChange};
use crate::progress::Progress;

/// To tidy up at an etcd that has done nothing for a node for as long as that could wait. What is left goes with its lease.
const TIDYING: Duration = Duration::from_secs(1);

/// Who waits for a round.
struct Joining {
    since: Duration,
    done: oneshot::Sender<Result<Joined, NoRound>>,
}

/// What came of a request.
struct Answer {
    id: u64,
    /// Whether etcd was to take something.
    writes: bool,
    result: Result<Reply, Error>,
}

pub(super) struct Driver {
    node: Node,
    /// As it was made.
    config: NodeConfig,
    /// It has left, or is about to.
    departing: Option<Departing>,
    client: Client,
    endpoints: String,
    lease_ttl: Duration,
    join_timeout: Duration,
    began: Instant,
    commands: mpsc::UnboundedReceiver<Command>,
    requests: FuturesUnordered<BoxFuture<'static, Answer>>,
    watches: [Option<Watch>; 3],
    lease: Option<Lease>,
    reach: Reach,
    /// When etcd last said that this node is in the run, as the machine sees it.
    contact: watch::Sender<Option<Instant>>,
    census: watch::Sender<Census>,
    /// etcd has let this node write here: what it refuses now it may allow again.
    let_in: bool,
    group: watch::Sender<Group>,
    progress: watch::Sender<Progress>,
    joining: Option<Joining>,
    /// When nothing more was expected of etcd.
    gave_up: Option<Duration>,
    /// A round that was completed after its caller had gone.
    undelivered: Option<Joined>,
    closing: Vec<oneshot::Sender<CloseOutcome>>,
    leaving: Vec<oneshot::Sender<()>>,
}

impl Driver {
    pub(super) fn new(
        config: NodeConfig,
        client: Client,
        settings: &NativeSettings,
        commands: mpsc::UnboundedReceiver<Command>,
        group: watch::Sender<Group>,
        progress: watch::Sender<Progress>,
    ) -> Self {
        Driver {
            node: Node::new(config.clone(), fastrand::u64(..)),
            config,
            departing: None,
            client,
            endpoints: settings.etcd.endpoints.to_string(),
            lease_ttl: settings.lease,
            join_timeout: settings.join_timeout,
            began: Instant::now(),
            commands,
            requests: FuturesUnordered::new(),
            watches: [None, None, None],
            lease: None,
            reach: Reach::default(),
            contact: watch::Sender::new(None),
            census: watch::Sender::new(Census::default()),
            let_in: false,
            group,
            progress,
            joining: None,
            gave_up: None,
            undelivered: None,
            closing: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// When etcd last said that this node is in the run.
    pub(super) fn contact(&self) -> watch::Receiver<Option<Instant>> {
        self.contact.subscribe()
    }

    /// How many nodes wait and stand by.
    pub(super) fn census(&self) -> watch::Receiver<Census> {
        self.census.subscribe()
    }

    /// Runs until the handler is gone.
    pub(super) async fn run(mut self) {
        loop {
            // Whoever is told of a round can ask for it at once.
            self.tell_contact();
            self.tell_census();
            self.tell_exclusions();
            self.drain();
            self.look_at_reach();
            let reach = self.reach_at().and_then(|after| self.began.checked_add(after));
            let [group, rank, nodes] = &mut self.watches;
            // A time that no clock reaches is never.
            let timeout = self.node.poll_timeout().and_then(|after| self.began.checked_add(after));
            tokio::select! {
                command = self.commands.recv() => match command {
                    None => return,
                    Some(command) => self.command(command),
                },
                Some(answer) = self.requests.next() => self.replied(answer),
                update = next_update(group) => self.updated(WatchId::Group, update),
                update = next_update(rank) => self.updated(WatchId::Rank, update),
                update = next_update(nodes) => self.updated(WatchId::Nodes, update),
                state = next_report(&mut self.lease) => self.lease_report(state),
                () = until(timeout) => self.node.handle_timeout(self.began.elapsed()),
                () = until(reach) => {}
            }
        }
    }

    fn tell_contact(&self) {
        let at = self.node.contact().map(|at| self.began + at);
        self.contact.send_if_modified(|contact| std::mem::replace(contact, at) != at);
    }

    fn tell_census(&self) {
        let now = self
            .node
            .news()
            .map_or_else(Census::default, |news| Census { waiting: news.waiting, spares: news.spares });
        self.census.send_if_modified(|census| std::mem::replace(census, now) != now);
    }

    fn tell_exclusions(&self) {
        self.progress.send_if_modified(|progress| {
            let changed = !self.node.exclusions().eq(&progress.exclusions);
            if changed {
                progress.exclusions = self.node.exclusions().cloned().collect();
            }
            changed
        });
    }

    /// When to look again whether etcd does what it is asked.
    fn reach_at(&self) -> Option<Duration> {
        let now = self.began.elapsed();
        let says = self.reach.says_at().filter(|_| self.let_in);
        let lasts = self.reach.lasts(now).filter(|_| !self.leaving.is_empty());
        let gives_up = lasts.map(|lasts| (now + self.lease_ttl).saturating_sub(lasts));
        let tidied = self.gave_up.map(|at| at + TIDYING).filter(|_| !self.leaving.is_empty());
        let late = self.reach.late_at(now).filter(|_| self.is_spare());
        [says, gives_up, tidied, late, self.ends_at(now)].into_iter().flatten().min()
    }

    fn is_spare(&self) -> bool {
        self.joining.is_some() && self.progress.borrow().spare
    }

    /// When a spare has waited for etcd for long enough. For a round it waits for as long as the run lives.
    fn ends_at(&self, now: Duration) -> Option<Duration> {
        let joining = self.joining.as_ref().filter(|_| self.is_spare())?;
        let since = self.reach.in_vain_since(now)?.max(joining.since);
        since.checked_add(self.join_timeout)
    }

    fn look_at_reach(&mut self) {
        let now = self.began.elapsed();
        // Who was never let in is told once, by an error.
        if self.let_in
            && let Some(line) = self.reach.say(now, &self.endpoints)
        {
            warn!("{line}");
        }
        // What this node had in etcd is gone by then, or will be without its help.
        let tidied = self.gave_up.is_some_and(|at| now >= at + TIDYING);
        if tidied || self.reach.lasts(now).is_some_and(|lasts| lasts >= self.lease_ttl) {
            self.leaving.clear();
        }
        if self.ends_at(now).is_some_and(|at| at <= now)
            && let Some(complaint) = self.complaint(now)
            && let Some(joining) = self.joining.take()
        {
            let _ = joining.done.send(Err(NoRound::InVain(complaint)));
        }
    }

    /// Why nothing comes of what is asked, if that is etcd's fault. Then nothing more is expected of it.
    fn complaint(&mut self, now: Duration) -> Option<Complaint> {
        let complaint = self.reach.complaint(now)?;
        self.gave_up = Some(now);
        Some(complaint)
    }

    fn command(&mut self, command: Command) {
        let now = self.began.elapsed();
        match command {
            Command::Join { port, done } => {
                if self.departing == Some(Departing::ForNow) {
                    self.come_again();
                }
                let whole = self.group.borrow().change.is_none();
                match self.undelivered.take().filter(|_| whole) {
                    Some(joined) => self.undelivered = done.send(Ok(joined)).err().and_then(Result::ok),
                    None => {
                        // What was so when they last met says nothing of this time.
                        self.progress.send_if_modified(|progress| {
                            let before = progress.clone();
                            (progress.spare, progress.joined, progress.last_call) = (false, 0, None);
                            (progress.kept_out, progress.seatable) = (None, None);
                            *progress != before
                        });
                        (self.joining, self.gave_up) = (Some(Joining { since: now, done }), None);
                        self.node.join(now, port);
                    }
                }
            }
            Command::Close { reason, done } => {
                self.closing.push(done);
                self.node.close(now, &reason);
            }
            Command::Leave { departing, done } => {
                self.departing = Some(departing);
                self.leaving.push(done);
                self.undelivered = None;
                if let Some(joining) = self.joining.take() {
                    let _ = joining.done.send(Err(NoRound::Left));
                }
                match departing {
                    Departing::InVain => self.node.give_up(now, millis(SystemTime::now())),
                    Departing::ForGood | Departing::ForNow => self.node.leave(now),
                }
            }
            Command::Complain { done } => drop(done.send(self.complaint(now))),
        }
    }

    /// A node that had left comes as a newcomer: another process of its name, as far as others can tell. What is left of the one
    /// before goes with its lease, at the latest.
    fn come_again(&mut self) {
        self.config.incarnation = incarnation();
        self.config.since = (self.config.clock + self.began.elapsed()).as_secs();
        self.node = Node::new(self.config.clone(), fastrand::u64(..));
        (self.departing, self.undelivered, self.lease) = (None, None, None);
        (self.requests, self.watches) = (FuturesUnordered::new(), [None, None, None]);
        self.reach = Reach::default();
    }

    fn replied(&mut self, Answer { id, writes, result }: Answer) {
        let now = self.began.elapsed();
        let failed = result.as_ref().err().map(translate::failure);
        if failed != Some(Failure::Unknown) {
            self.reach.answered(id, now);
        }
        match &result {
            Ok(Reply::Txn(_) | Reply::Range { .. }) => {
                self.let_in = true;
                self.reach.served(writes);
            }
            Ok(_) => self.reach.heard(),
            Err(_) => {}
        }
        let reply = result.map_err(|error| {
            let failure = translate::failure(&error);
            debug!(%error, ?failure, "a request of the rendezvous failed");
            match failure {
                Failure::Refused | Failure::Denied => self.refused(error, writes),
                Failure::Unknown => self.reach.unanswered(id, now),
                Failure::LeaseGone => self.reach.heard(),
            }
            failure
        });
        self.node.handle_reply(now, id, reply);
    }

    fn updated(&mut self, id: WatchId, update: Result<WatchUpdate, Error>) {
        let now = self.began.elapsed();
        match update {
            Ok(update) => {
                self.reach.heard();
                self.node.handle_update(now, id, translate::update(update));
            }
            Err(error) => {
                self.refused(error, false);
                self.node.handle_watch_refused(now, id);
            }
        }
    }

    fn watch(&mut self, id: WatchId) -> &mut Option<Watch> {
        &mut self.watches[match id {
            WatchId::Group => 0,
            WatchId::Rank => 1,
            WatchId::Nodes => 2,
        }]
    }

    fn lease_report(&mut self, state: LeaseState) {
        let now = self.began.elapsed();
        let Some(lease) = self.lease.as_ref().map(Lease::id) else { return };
        match state {
            LeaseState::Alive => {
                self.reach.lease_is_well();
                self.node.handle_renewed(now, lease);
            }
            LeaseState::Lost => {
                self.reach.lease_is_lost();
                self.node.handle_lease_lost(now, lease);
            }
            LeaseState::Unsure { since, refused } => {
                let since = since.saturating_duration_since(self.began);
                if refused {
                    self.reach.lease_is_refused(now, since, refused_refresh());
                    self.node.handle_refused(now);
                } else {
                    self.reach.lease_is_unsure(since);
                }
            }
        }
    }

    /// etcd refuses what this node asks. Whoever was never let in is told, as somebody has made a mistake. Whoever was
    /// waits on: a role that was taken away may be given back, and space be made.
    fn refused(&mut self, error: Error, writes: bool) {
        match self.joining.take_if(|_| !self.let_in) {
            Some(joining) => drop(joining.done.send(Err(NoRound::Etcd(Complaint::Refuses(error))))),
            None => self.reach.refused(self.began.elapsed(), error, writes),
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Request { id, request } => {
                    let (client, writes) = (self.client.clone(), translate::writes(&request));
                    self.reach.asks(id, self.began.elapsed());
                    self.requests.push(Box::pin(async move {
                        let result = translate::carry_out(&client, request).await;
                        Answer { id, writes, result }
                    }));
                }
                Output::Watch { id, keys, from } => {
                    let range = translate::range(keys);
                    *self.watch(id) = Some(match from {
                        Some(from) => self.client.watch(range, from),
                        None => self.client.watch_from_now(range),
                    });
                }
                Output::Unwatch(id) => *self.watch(id) = None,
                Output::Keep(lease) => {
                    self.reach.lease_is_well();
                    self.lease = Some(self.client.lease_keep(lease, self.lease_ttl));
                }
                Output::Forget(lease) => self.lease = self.lease.take().filter(|kept| kept.id() != lease),
                Output::Event(event) => self.event(event),
            }
        }
        self.tell_losses();
    }

    /// `changed` tells of one loss alone.
    fn tell_losses(&self) {
        let lost = self.node.lost();
        self.group.send_if_modified(|group| {
            let is_news = group.lost != lost;
            if is_news {
                group.lost = lost.to_vec();
            }
            is_news
        });
    }

    fn event(&mut self, event: NodeEvent) {
        match event {
            NodeEvent::Joined(joined) => {
                let (round, plan) = (joined.round, joined.plan.clone());
                self.group.send_replace(Group { round, plan, ..Group::default() });
                let unwanted = match self.joining.take() {
                    Some(joining) => joining.done.send(Ok(joined)).err().and_then(Result::ok),
                    None => Some(joined),
                };
                self.undelivered = unwanted;
            }
            NodeEvent::Changed(change) => {
                debug!(?change, "the group is no longer as it was");
                self.group.send_modify(|group| group.change = Some(news::change(change)));
            }
            NodeEvent::Progress { joined, seatable, last_call, spare } => {
                let round = self.group.borrow().round + 1;
                self.progress.send_modify(|progress| {
                    let kept_out = None;
                    *progress =
                        Progress { round, joined, seatable, last_call, spare, kept_out, ..progress.clone() };
                });
            }
            // It waits for as long as the run lives, as a spare does.
            NodeEvent::KeptOut(exclusion) => self.progress.send_modify(|progress| {
                (progress.spare, progress.kept_out) = (true, Some(exclusion));
            }),
            NodeEvent::Refused(refusal) => {
                if let Refusal::Closed(reason) = &refusal {
                    let change = Some(GroupChange::Closed { reason: reason.clone() });
                    self.group.send_modify(|group| group.change = change);
                }
                if let Some(joining) = self.joining.take() {
                    let _ = joining.done.send(Err(NoRound::Refused(refusal)));
                }
            }
            NodeEvent::Closed(closed) => {
                for done in self.closing.drain(..) {
                    let _ = done.send(closed);
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

fn refused_refresh() -> Error {
    Error::new(ErrorKind::PermissionDenied, "lease keep-alive")
}

/// The watch's next update; pending where there is no watch.
async fn next_update(watch: &mut Option<Watch>) -> Result<WatchUpdate, Error> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

async fn next_report(lease: &mut Option<Lease>) -> LeaseState {
    match lease {
        Some(lease) => lease.next().await,
        None => std::future::pending().await,
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
