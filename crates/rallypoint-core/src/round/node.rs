//! One node's part in a run: routes what happens to the parts, and what they say to each other.

use std::time::Duration;

use super::close::CloseRun;
use super::closing::Closing;
use super::context::{Answered, Context, Outbox, Task};
use super::departure::Departure;
use super::election::Election;
use super::etcd::{Failure, Reply, Update};
use super::exclusion::Exclusion;
use super::keys::Keys;
use super::leader::Leader;
use super::look::Look;
use super::membership::{Goal, Membership};
use super::output::{CloseOutcome, NodeEvent, Output, WatchId};
use super::presence::Presence;
use super::record::{Lost, News};
use super::settings::NodeConfig;
use super::silence::Silence;
use super::view::View;

/// One node's part in a run.
///
/// After each call of `join`, `leave`, `close` or `handle_*`, drain [`poll_output`](Node::poll_output), then
/// call [`handle_timeout`](Node::handle_timeout) when the time of [`poll_timeout`](Node::poll_timeout) has
/// come. `now` is the time since any one moment.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    keys: Keys,
    random: fastrand::Rng,
    out: Outbox,
    silence: Silence,
    view: View,
    membership: Membership,
    presence: Presence,
    election: Election,
    leader: Option<Box<Leader>>,
    departure: Option<Departure>,
    /// It leaves because too few nodes have come, since then.
    gave_up_ms: Option<u64>,
    closing: Option<Closing>,
    look: Look,
    /// When etcd last said that this node is in the run.
    contact: Option<Duration>,
    /// When etcd was last found to have lost data, if no round was completed since.
    lost_at: Option<Duration>,
    /// When the leader has last asked whether this node is there: the epoch, and the revision in it.
    asked: (u64, i64),
    /// When all parts were last asked what they have to do.
    driven: Duration,
}

/// What the parts are given. A macro, since it borrows some fields of a node and leaves the others free.
macro_rules! context {
    ($node:ident, $now:expr) => {
        &mut Context {
            now: $now,
            config: &$node.config,
            keys: &$node.keys,
            random: &mut $node.random,
            out: &mut $node.out,
        }
    };
}

mod drive;

impl Node {
    /// A node that is not in the run yet.
    #[must_use]
    pub fn new(config: NodeConfig, seed: u64) -> Self {
        Node {
            keys: Keys::new(&config.run),
            silence: Silence::new(config.lease_ttl),
            config,
            random: fastrand::Rng::with_seed(seed),
            out: Outbox::default(),
            view: View::new(),
            membership: Membership::new(),
            presence: Presence::new(),
            election: Election::new(),
            leader: None,
            departure: None,
            gave_up_ms: None,
            closing: None,
            look: Look::default(),
            contact: None,
            lost_at: None,
            asked: (0, 0),
            driven: Duration::ZERO,
        }
    }

    /// Asks for a round after the last one this node was in. `port` is free here, should it become the master.
    pub fn join(&mut self, now: Duration, port: u16) {
        self.gave_up_ms = None;
        if let Some(refusal) = self.membership.join(port) {
            self.out.tell(NodeEvent::Refused(refusal));
            if self.membership.goal() == Goal::Out {
                self.out.tell(NodeEvent::Left);
            }
        }
        self.drive(now);
    }

    /// Leaves in good order. [`NodeEvent::Left`] tells when it is done.
    pub fn leave(&mut self, now: Duration) {
        self.membership.leave();
        self.drive(now);
    }

    /// The same, as too few nodes have come; the time is in milliseconds since 1970. Others who wait for as long find that they
    /// were here together.
    pub fn give_up(&mut self, now: Duration, at_ms: u64) {
        self.gave_up_ms = Some(at_ms);
        self.leave(now);
    }

    /// Closes the run. Only a member of the last round can. [`NodeEvent::Closed`] tells what became of it.
    pub fn close(&mut self, now: Duration, reason: &str) {
        match self.membership.seat_at_work() {
            None => self.out.tell(NodeEvent::Closed(CloseOutcome::NotAMember)),
            // One wish is enough.
            Some(_) if self.closing.is_some() => {}
            Some(seat) => {
                let member = (seat.clone(), self.config.settings);
                let known = self.view.known().filter(|_| !self.view.is_blind());
                let run = CloseRun::by_member(&self.config, now, reason, member, known);
                self.closing = Some(Closing::new(run, self.out.epoch()));
            }
        }
        self.drive(now);
    }

    /// What came of a request.
    pub fn handle_reply(&mut self, now: Duration, id: u64, reply: Result<Reply, Failure>) {
        match &reply {
            Ok(Reply::Txn(_) | Reply::Range { .. }) => self.silence.served(now),
            Err(Failure::Refused | Failure::Denied) => self.silence.forget(),
            Ok(_) => self.heard(now),
            Err(_) => {}
        }
        let Some(Answered { task, reply, history_lost }) = self.out.answered(id, reply) else { return };
        if history_lost {
            self.view.distrust(context!(self, now));
            self.data_was_lost(now);
        }
        match task {
            Task::Grant => {
                let wanted = self.membership.is_in();
                self.presence.granted(context!(self, now), &reply, wanted);
            }
            Task::Register { lease, record, created } => {
                let context = context!(self, now);
                let found = self.presence.registered(context, lease, record, created, reply);
                self.found(now, found);
            }
            Task::Evict => self.presence.evicted(context!(self, now), &reply),
            Task::Look => self.looked(now, reply),
            Task::Campaign => self.campaigned(now, reply),
            Task::Close => {
                if let Some(closing) = &mut self.closing {
                    closing.handle(context!(self, now), &mut self.view, reply);
                }
            }
            Task::Departure(task) => {
                if let Some(departure) = &mut self.departure {
                    let context = context!(self, now);
                    if let Some(own) = departure.handle(context, &self.view, task, reply) {
                        self.presence.found(context, Some(&own), None);
                    }
                }
            }
            Task::Leader { term, task } => {
                if let Some(leader) = self.leader.as_mut().filter(|leader| leader.number() == term) {
                    let context = context!(self, now);
                    let word = leader.handle(context, &mut self.view, task, reply);
                    self.leaders_word(now, word);
                }
            }
            Task::Forgotten => {}
        }
        self.drive(now);
    }

    /// What happened to the keys of a watch.
    pub fn handle_update(&mut self, now: Duration, watch: WatchId, update: Update) {
        self.heard(now);
        if let Update::Snapshot { .. } = update {
            // etcd can be reached again: who has lost its key is missed from now on.
            self.presence.retry().succeeded();
            self.look.may_be_asked();
            self.silence.cut(now);
        }
        if watch == WatchId::Nodes {
            if let Some(leader) = &mut self.leader {
                let context = context!(self, now);
                context.out.saw(update.revision());
                let word = leader.update(context, update);
                self.leaders_word(now, word);
            }
        } else {
            self.view.handle(context!(self, now), watch, update);
        }
        self.drive(now);
    }

    /// A refresh of the lease was answered.
    pub fn handle_renewed(&mut self, now: Duration, lease: i64) {
        // A lease without keys is anybody's to refresh.
        if self.presence.stands().is_some() && self.presence.lease() == Some(lease) {
            self.silence.served(now);
            // Some servers refresh one with keys for anybody too, also for who may not hear of the group any more.
            if self.view.is_told() {
                self.contact = Some(now);
            }
        }
        self.drive(now);
    }

    /// etcd refuses to refresh the lease.
    pub fn handle_refused(&mut self, now: Duration) {
        self.silence.forget();
        self.drive(now);
    }

    /// etcd refuses to let this node watch.
    pub fn handle_watch_refused(&mut self, now: Duration, watch: WatchId) {
        self.view.is_refused(watch);
        self.handle_refused(now);
    }

    /// When etcd last said that this node is in the run: it took the node's key, or refreshed the lease that this hangs on,
    /// while it tells the node what happens to the group.
    #[must_use]
    pub fn contact(&self) -> Option<Duration> {
        self.contact
    }

    /// The news of the last completed round, as far as this node knows them.
    #[must_use]
    pub fn news(&self) -> Option<&News> {
        self.view.known().map(|known| &known.record.news)
    }

    /// Whom the round that this node works in has lost, the first few, as far as this node knows.
    #[must_use]
    pub fn lost(&self) -> &[Lost] {
        let seat = self.membership.seat_at_work();
        let known = self.view.known().filter(|known| seat.is_some_and(|seat| seat.plan == known.record.plan));
        known.map_or(&[], |known| &known.record.news.lost)
    }

    /// All who are kept out of the run, as far as this node knows.
    pub fn exclusions(&self) -> impl Iterator<Item = &Exclusion> {
        self.view.exclusions().all()
    }

    /// The lease that was kept is gone.
    pub fn handle_lease_lost(&mut self, now: Duration, lease: i64) {
        if self.presence.lease() == Some(lease) {
            self.presence.lose_lease(context!(self, now));
        }
        self.drive(now);
    }

    /// etcd has said something. What it says to a node without a key it says to anybody.
    fn heard(&mut self, now: Duration) {
        if self.presence.stands().is_some() {
            self.silence.heard(now);
        }
    }

    /// The time of [`poll_timeout`](Node::poll_timeout) has come.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.drive(now);
    }

    /// What to do next; none if there is nothing.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop()
    }

    /// When to call [`handle_timeout`](Node::handle_timeout), unless something else happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let now = self.driven;
        let leads_others = self.leader.as_ref().is_some_and(|leader| leader.sees_others());
        let leader = self.leader.as_ref().and_then(|it| it.timeout(now, &self.view, &self.silence));
        let departure = self.departure.as_ref().and_then(|it| it.timeout(now, leads_others));
        let closing = self.closing.as_ref().and_then(Closing::retries_at);
        let looks = [self.check_at(), self.look.retries_at()];
        let parts = [self.presence.retries_at(), self.election.timeout(), leader, departure, closing];
        let all = parts.into_iter().chain(looks).flatten();
        // What was due before, and was not done, waits for something else.
        all.filter(|at| *at > now).min()
    }
}
