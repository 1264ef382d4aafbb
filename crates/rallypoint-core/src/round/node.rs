//! One node's part in a run: routes what happens to the parts, and what they say to each other.

use std::time::Duration;

use super::close::CloseRun;
use super::closing::Closing;
use super::context::{Answered, Context, Outbox, Retry, Task};
use super::departure::{Departure, Standing};
use super::election::{Campaigned, Election, Vacancy};
use super::etcd::{Failure, Reply, Update};
use super::exclusion::Exclusion;
use super::keys::Keys;
use super::leader::{Leader, Word};
use super::membership::{Goal, Membership, Verdict};
use super::output::{CloseOutcome, NodeEvent, Output, WatchId};
use super::presence::{Found, Presence};
use super::record::News;
use super::settings::NodeConfig;
use super::silence::Silence;
use super::view::{LeaderKey, View, look, looked};

/// A node that waits for a round makes sure now and then that etcd has it as it should, at least this seldom; more
/// seldom in larger groups.
const CHECK_PER_NODE: Duration = Duration::from_millis(3);

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
    closing: Option<Closing>,
    look: Look,
    /// When etcd last said that this node is in the run.
    contact: Option<Duration>,
    /// When etcd was last found to have lost data.
    lost_at: Option<Duration>,
    /// When the leader has last asked whether this node is there: the epoch, and the revision in it.
    asked: (u64, i64),
    /// When all parts were last asked what they have to do.
    driven: Duration,
}

/// The looks at all that concerns this node.
#[derive(Debug, Default)]
struct Look {
    busy: bool,
    retry: Retry,
    /// When the last one was answered.
    last: Duration,
    /// One is wanted, whatever else there is to do.
    wanted: bool,
    /// The plan of the round in which this node is called lost, once it has looked why.
    lost_in: Option<String>,
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
            self.look.retry.succeeded();
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
        let check = self.check_at();
        let parts = [self.presence.retries_at(), self.election.timeout(), leader, departure, closing];
        let all = parts.into_iter().chain([check, self.look.retry.at()]).flatten();
        // What was due before, and was not done, waits for something else.
        all.filter(|at| *at > now).min()
    }

    /// Does what is to be done now.
    fn drive(&mut self, now: Duration) {
        self.driven = now;
        self.presence.retry().is_due(now);
        if self.view.take_loss() {
            self.data_was_lost(now);
        }
        self.view.note_last_call(now);
        self.answer_leader();
        self.decide();
        self.lead_or_not(now);
        match self.membership.goal() {
            Goal::Out => {}
            Goal::Working => {
                self.drive_in(now);
                self.drive_election(now);
            }
            Goal::Joining { .. } => {
                // Whoever closes the run asks for no round before that is done.
                if self.closing.is_none() {
                    self.drive_in(now);
                }
                self.drive_election(now);
            }
            Goal::Leaving { .. } => self.drive_departure(now),
        }
        if let Some(leader) = self.leader.as_mut().filter(|_| !self.view.is_blind()) {
            let spoken = self.presence.has_said(|record| self.membership.is_said_by(record));
            leader.drive(context!(self, now), &self.view, &self.silence, spoken);
            if leader.is_denied(now) {
                // Some servers refresh the lease all the same, and the others would wait for this leader for ever.
                self.presence.give_up_lease(context!(self, now));
                return self.drive(now);
            }
        }
        self.drive_close(now);
    }

    fn data_was_lost(&mut self, now: Duration) {
        self.lost_at = Some(now);
        self.silence.forget();
        if let Some(leader) = &mut self.leader {
            leader.data_was_lost(now);
        }
    }

    /// Registers again if the leader asks whether this node is there.
    fn answer_leader(&mut self) {
        let asked = self
            .view
            .place()
            .filter(|place| place.record.asked && place.record.incarnation == self.config.incarnation);
        // A question of another history may have the same revision.
        let asked = asked.map(|place| (self.out.epoch(), place.modified));
        if let Some(asked) = asked.filter(|asked| *asked != self.asked && !self.view.is_blind()) {
            self.asked = asked;
            self.presence.is_missed();
        }
    }

    /// Draws the conclusions from what is known of the group.
    fn decide(&mut self) {
        if self.view.is_blind() {
            return;
        }
        // Whoever is called lost may have been replaced, and should hear that rather.
        if let Some(plan) = self.membership.is_called_lost(&self.config, &self.view)
            && self.look.lost_in.as_deref() != Some(plan)
        {
            self.look.wanted = true;
            return;
        }
        let unanswered = self.presence.is_unanswered();
        while let Some(verdict) = self.membership.decide(&self.config, &self.view, unanswered) {
            self.tell(verdict);
        }
    }

    fn tell(&mut self, verdict: Verdict) {
        self.out.tell(match verdict {
            Verdict::Joined(joined) => NodeEvent::Joined(joined),
            Verdict::Changed(change) => NodeEvent::Changed(change),
            Verdict::Refused(refusal) => NodeEvent::Refused(refusal),
            Verdict::Progress(progress) => progress,
        });
    }

    fn drive_in(&mut self, now: Duration) {
        let check_is_due = self.check_at().is_some_and(|at| at <= now);
        let context = context!(self, now);
        if !self.presence.hold_lease(context) {
            return;
        }
        // Not before there is a lease: where many come at once, most then come after the first events of the group,
        // which would go to every one of them.
        self.view.open(context);
        if !self.view.is_open() {
            return;
        }
        let membership = &self.membership;
        let stands = self.presence.register(
            context,
            || membership.record(&self.config),
            |record| membership.is_said_by(record),
        );
        self.look.retry.is_due(now);
        let wanted = self.view.is_blind() || check_is_due || self.look.wanted;
        if stands && wanted && !self.look.busy && !self.look.retry.waits() {
            self.look.busy = true;
            let request = look(context);
            context.out.request(Task::Look, request);
        }
    }

    /// When a node that waits for a round looks whether etcd still has it as it should: whoever took its name may have
    /// died before this one could be told.
    fn check_at(&self) -> Option<Duration> {
        let joined = self.view.known().map_or(0, |known| known.record.news.joined);
        let every = CHECK_PER_NODE.saturating_mul(u32::try_from(joined).unwrap_or(u32::MAX));
        let waits = self.membership.is_joining() && self.presence.stands().is_some() && !self.look.busy;
        waits.then(|| self.look.last + every.max(self.config.lease_ttl * 2))
    }

    fn looked(&mut self, now: Duration, reply: Result<Reply, Failure>) {
        self.look.busy = false;
        let Ok(Reply::Txn(reply)) = reply else { return self.look.retry.failed(context!(self, now)) };
        self.look.retry.succeeded();
        self.look.last = now;
        if !self.membership.is_in() {
            return;
        }
        let sight = looked(reply);
        let context = context!(self, now);
        self.view.see(context, &sight);
        let found = self.presence.looked(context, &sight);
        self.found(now, found);
        if std::mem::take(&mut self.look.wanted) {
            let lost_in = self.membership.is_called_lost(&self.config, &self.view);
            self.look.lost_in = lost_in.map(str::to_owned);
        }
        self.decide();
        self.membership.catch_up(&self.view, sight.revision);
    }

    /// What has turned out about this node's own key.
    fn found(&mut self, now: Duration, found: Found) {
        match found {
            Found::Nothing | Found::LeaseLost => {}
            Found::Registered(sight) => {
                self.look.last = now;
                let context = context!(self, now);
                self.view.see(context, &sight);
                if self.view.is_told() {
                    self.contact = Some(now);
                }
            }
            Found::Replaced { by } => self.replaced(by),
            Found::Mismatch(refusal) => {
                if self.membership.is_in() {
                    self.membership.leave();
                    self.out.tell(NodeEvent::Refused(refusal));
                }
            }
        }
    }

    fn replaced(&mut self, by: String) {
        self.presence.key_is_gone();
        if let Some(verdict) = self.membership.replaced(by) {
            self.tell(verdict);
        }
    }

    /// Leads if etcd says so, and not if not.
    fn lead_or_not(&mut self, now: Duration) {
        if self.view.is_blind() {
            return;
        }
        // Of a closed run the leader is needed to its end: it tidies up.
        let closes = self.view.is_closed() || self.closing.is_some();
        let leaving = matches!(self.membership.goal(), Goal::Leaving { .. });
        let willing = self.membership.is_in() || (leaving && closes);
        let term = match self.view.leader() {
            LeaderKey::Held { lease, created } if willing && self.presence.lease() == Some(lease) => {
                Some(created)
            }
            _ => None,
        };
        if self.leader.as_ref().map(|leader| leader.began()) == term {
            return;
        }
        let context = context!(self, now);
        if let Some(leader) = self.leader.take() {
            leader.step_down(context);
        }
        let last_call = self.view.last_call();
        self.leader = term.map(|term| Box::new(Leader::new(context, term, self.lost_at, last_call)));
    }

    fn leaders_word(&mut self, now: Duration, word: Word) {
        match word {
            Word::Nothing => {}
            Word::NotLeading => {
                if let Some(leader) = self.leader.take() {
                    leader.step_down(context!(self, now));
                }
            }
            Word::OwnKeyGone => self.presence.key_is_gone(),
            Word::Replaced { by } => self.replaced(by),
        }
    }

    fn drive_election(&mut self, now: Duration) {
        let (lease, stands) = (self.presence.lease(), self.presence.stands());
        let vacancy = match self.view.leader() {
            LeaderKey::Free => Some(Vacancy::Free),
            LeaderKey::Nobodys { modified } => Some(Vacancy::Nobodys { modified }),
            LeaderKey::Unknown | LeaderKey::Held { .. } => None,
        };
        match (vacancy, lease, stands) {
            (Some(vacancy), Some(lease), Some(own)) if !self.view.is_blind() => {
                let round = self.view.known().map(|known| &known.record);
                let nodes = round.map_or(2, |record| record.world_size.max(record.news.joined));
                self.election.run(context!(self, now), vacancy, nodes, lease, own);
            }
            _ => self.election.call_off(),
        }
    }

    fn campaigned(&mut self, now: Duration, reply: Result<Reply, Failure>) {
        match self.election.campaigned(context!(self, now), reply) {
            Campaigned::Nothing => {}
            Campaigned::Won(revision) => {
                if let Some(lease) = self.presence.lease() {
                    self.view.leads_since(revision, lease);
                }
            }
            Campaigned::Freed(revision) => self.view.see_leader(revision, None),
            Campaigned::Led(revision, leader) => self.view.see_leader(revision, Some(&leader)),
            // A registration that is under way will tell.
            Campaigned::KeyGone if self.presence.is_busy() => {}
            Campaigned::KeyGone => self.presence.key_is_gone(),
            Campaigned::LeaseLost => self.presence.lose_lease(context!(self, now)),
        }
    }

    fn drive_departure(&mut self, now: Duration) {
        self.election.call_off();
        // What is under way may leave something behind.
        if self.presence.is_busy() || self.election.is_asking() || self.closing.is_some() {
            return;
        }
        let departure = self.departure.get_or_insert_with(|| Departure::new(now));
        let lease = self.presence.lease();
        let standing = Standing {
            lease,
            key: self.presence.stands(),
            leads: matches!(self.view.leader(), LeaderKey::Held { lease: on, .. } if lease == Some(on)),
            sees_others: self.leader.as_ref().is_some_and(|leader| leader.sees_others()),
        };
        let farewell = self.membership.record(&self.config);
        let context = context!(self, now);
        departure.drive(context, &self.view, &standing, &farewell);
        if !departure.is_gone() {
            return;
        }
        self.departure = None;
        self.presence.lose_lease(context);
        if let Some(leader) = self.leader.take() {
            leader.step_down(context);
        }
        self.view.close(context);
        self.membership.gone();
        self.out.tell(NodeEvent::Left);
        // A round may have been asked for meanwhile.
        if self.membership.is_in() {
            self.drive(now);
        }
    }

    fn drive_close(&mut self, now: Duration) {
        let outcome = self.closing.as_mut().and_then(|closing| closing.drive(context!(self, now)));
        if let Some(outcome) = outcome {
            self.closing = None;
            self.out.tell(NodeEvent::Closed(outcome));
            self.drive(now);
        }
    }
}
