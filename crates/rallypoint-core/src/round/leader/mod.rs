//! What the one node does that plans the rounds.
//!
//! It sees all nodes, decides when a round can be formed, writes each node its place, and commits the round in
//! one transaction. Whatever it writes is on the condition that it still is the leader, and each plan on the
//! condition that no later one was begun: a request that is carried out late changes nothing.
//!
//! ```text
//!                         all was read
//!   Reading ────────────────────────────────────▶ Leading
//!      ▲                                             │
//!      └── the watch on the nodes has read afresh ───┘
//! ```
//!
//! It watches the nodes before it reads them. A watch from a revision that is over is one that etcd has to catch up on,
//! ten times a second, while the group waits.
//!
//! - `reading`: what it has to know first. `roster`: whom it sees, and what has become of the members. `missing`: whether
//!   they are dead. `seating`: who sits where.
//! - `replies`: what comes of its requests.
//! - `plan`: the transactions that make a round. `news`: what else the group is told.
//! - `run_lease`: what everything hangs on that outlives a node. `term`: what makes a late write harmless.

mod missing;
mod news;
mod plan;
mod reading;
mod replies;
mod roster;
mod run_lease;
mod seating;
mod term;

use std::time::Duration;

use self::news::Newsroom;
use self::plan::{Planner, Start};
use self::reading::Reading;
use self::roster::Roster;
use self::run_lease::RunLease;
use self::term::{Term, put_round};
use super::context::{Context, LeaderTask, Retry};
use super::etcd::{Condition, Request};
use super::output::{Output, WatchId};
use super::record::{NodeRecord, RoundRecord};
use super::silence::Silence;
use super::view::{KnownRound, RoundKey, View};

#[derive(Debug)]
pub(super) struct Leader {
    term: Term,
    reading: Option<Reading>,
    /// How often all was read.
    readings: u64,
    roster: Roster,
    planner: Planner,
    newsroom: Newsroom,
    run_lease: RunLease,
    failed: Vec<LeaderTask>,
    retry: Retry,
    /// When etcd was last found to have lost data, if no round was completed since.
    lost_at: Option<Duration>,
    /// This node's own key says what the node wants.
    spoken: bool,
    /// When the record was written that is from before the round that nodes have claimed.
    outdated: Option<i64>,
    /// When all was last read.
    read_at: Option<Duration>,
    /// The epoch in which all was read; none if that is to be done again.
    epoch: Option<u64>,
    /// What of those who are kept out the roster knows.
    exclusions: Option<u64>,
    /// Since when etcd lets this node do nothing of what a leader has to do.
    denied_since: Option<Duration>,
}

/// A leader that may do nothing for so long leaves it to another.
const DENIED: Duration = Duration::from_secs(2);
/// For nodes to notice that etcd has lost data, and to say again what they want.
const SAY_AGAIN: Duration = Duration::from_secs(1);
/// For as long as that, the number of a round does not tell whether it came before or after the loss; unless another is
/// completed sooner.
const LOSS: Duration = Duration::from_secs(60);

/// What concerns the node that leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    Nothing,
    /// Another one leads.
    NotLeading,
    /// This node's own key is gone.
    OwnKeyGone,
    /// Another process's key stands under this node's name, as it was modified then.
    OthersKey {
        record: Box<NodeRecord>,
        modified: i64,
    },
}

impl Leader {
    /// `last_call`: when the one is over that runs. `expired`: so many exclusions have, as far as this node knows.
    pub(super) fn new(
        context: &mut Context<'_>,
        began: i64,
        lost_at: Option<Duration>,
        last_call: Option<Duration>,
        expired: usize,
    ) -> Self {
        Leader {
            term: Term::new(context, began),
            reading: Some(Reading::new(0)),
            readings: 0,
            roster: Roster::new(context.config.settings),
            planner: Planner::new(last_call),
            newsroom: Newsroom::new(context.now, context.config.settings.min_nodes, expired),
            run_lease: RunLease::Recorded { renew_at: context.now },
            failed: Vec::new(),
            retry: Retry::default(),
            lost_at,
            spoken: false,
            outdated: None,
            read_at: None,
            epoch: None,
            exclusions: None,
            denied_since: None,
        }
    }

    /// The revision at which this node became the leader.
    pub(super) fn began(&self) -> i64 {
        self.term.began
    }

    /// Tells its requests from those of an earlier time as the leader.
    pub(super) fn number(&self) -> u64 {
        self.term.number
    }

    /// Whether other nodes are there.
    pub(super) fn sees_others(&self) -> bool {
        self.reading.is_some() || self.roster.ids().nth(1).is_some()
    }

    /// Begins anew with what etcd has: as a new leader, or because events were missed.
    fn read_all(&mut self, context: &mut Context<'_>) {
        self.readings += 1;
        let reading = Reading::new(self.readings);
        reading.begin(context, self.term);
        self.reading = Some(reading);
        self.epoch = Some(context.out.epoch());
        self.roster = Roster::new(context.config.settings);
        self.planner.forget();
        self.newsroom.forget();
        self.outdated = None;
        self.exclusions = None;
        self.failed.retain(|task| matches!(task, LeaderTask::GrantRun));
    }

    /// After a loss of data, the nodes have until then to say again what they want.
    fn not_before(&self) -> Option<Duration> {
        self.lost_at.map(|at| at + SAY_AGAIN)
    }

    /// etcd has lost data. What stands there may be what nodes wanted long ago.
    pub(super) fn data_was_lost(&mut self, now: Duration) {
        self.planner.forget();
        self.lost_at = Some(now);
    }

    /// A round was completed since then.
    pub(super) fn loss_is_over(&mut self) {
        self.lost_at = None;
    }

    /// Whether etcd has denied this node for too long what it asks for as the leader, and others wait for that.
    pub(super) fn is_denied(&self, now: Duration) -> bool {
        self.denied_since.is_some_and(|since| since + DENIED <= now)
    }

    /// Ends what a leader keeps open.
    pub(super) fn step_down(self, context: &mut Context<'_>) {
        context.out.push(Output::Unwatch(WatchId::Nodes));
    }

    pub(super) fn timeout(&self, now: Duration, view: &View, silence: &Silence) -> Option<Duration> {
        let denied = self.denied_since.map(|since| since + DENIED);
        if self.retry.waits() || self.reading.is_some() {
            return [self.retry.at(), denied].into_iter().flatten().min();
        }
        if view.is_closed() {
            return denied;
        }
        let renew_at =
            if let RunLease::Recorded { renew_at } = self.run_lease { Some(renew_at) } else { None };
        let sure = self.roster.is_unsure().then(|| silence.sure_at(now)).flatten();
        let progress = self.newsroom.timeout(now, view, &self.roster, &self.planner);
        let answer = self.roster.answer_due();
        let all = [sure, answer, progress, renew_at, self.not_before(), denied];
        all.into_iter().chain(self.planner.timeouts()).flatten().filter(|at| *at > now).min()
    }

    /// Does what is to be done now. `spoken`: whether this node's own key says what the node wants. After etcd has lost
    /// data, it and the keys of others may say what they wanted long ago, and no round may be formed of that.
    pub(super) fn drive(&mut self, context: &mut Context<'_>, view: &View, silence: &Silence, spoken: bool) {
        self.retry.is_due(context.now);
        self.spoken = spoken;
        if self.epoch != Some(context.out.epoch()) {
            self.read_all(context);
        }
        if !self.retry.waits() {
            for task in std::mem::take(&mut self.failed) {
                self.send_again(context, task);
            }
        }
        // A run without a record will need a lease, whatever else there is to read.
        let recorded = matches!(self.run_lease, RunLease::Recorded { .. });
        if recorded && matches!(view.round(), RoundKey::Missing) && !self.retry.waits() {
            self.grant_run(context, None);
        }
        if self.reading.is_some() || self.retry.waits() {
            return;
        }
        if view.is_closed() {
            return self.drive_closed(context);
        }
        let exclusions = view.exclusions();
        if self.exclusions.replace(exclusions.version()) != Some(exclusions.version()) {
            self.roster.keep_out(exclusions);
            self.planner.exclusions_changed(context, &self.roster);
        }
        // A round was completed that this leader knows nothing of, by a request of its own that had no answer. Or it knows
        // of it from what a member says, and took it for lost.
        let other = view.known().filter(|known| {
            let unknown = known.record.plan != self.roster.plan() && !self.is_outdated(known);
            let found = known.record.plan == self.roster.plan() && self.roster.has_lost_state();
            known.record.has_round() && (unknown || found)
        });
        if other.is_some() && !self.planner.is_planning() {
            return self.read_all(context);
        }
        // The members of a round that was lost come back one by one, and say so. A line of news that is under way is
        // waited for: it would make the record seem to be another one than that which is taken for outdated.
        if other.is_none() && !self.newsroom.is_writing() {
            self.take_claims(context, view);
        }
        // Who is missing may have come back, and the watch lags behind.
        if self.roster.is_unsure() && silence.is_sure(context.now) {
            if self.read_at < silence.sure_at(context.now) {
                return self.read_all(context);
            }
            self.roster.lose_unnamed();
            missing::look_for_the_silent(context, self.term, &mut self.roster);
            if !self.planner.is_planning() && !self.newsroom.is_writing() {
                missing::ask(context, self.term, view, &mut self.roster, &self.planner);
            }
        }
        if view.known().is_none_or(|known| !known.record.has_round()) {
            self.roster.lose_state();
        }
        // This node's own commit, which the watch has told of before the reply, or instead of it; or an earlier leader's.
        if let Some(known) = view.known() {
            self.run_lease.is_named(context, known.record.lease);
        }
        match self.run_lease {
            RunLease::Granting { .. } => return,
            RunLease::New { lease, .. } => return self.make_record(context, view, lease),
            RunLease::Recorded { .. } if view.known().is_none() => return self.grant_run(context, None),
            RunLease::Recorded { renew_at } if renew_at <= context.now => {
                self.run_lease = RunLease::refreshed(context);
                let lease = view.known().map_or(0, |known| known.record.lease);
                self.term.send(context, LeaderTask::RenewRun { lease }, Request::Renew(lease));
            }
            RunLease::Recorded { .. } => {}
        }
        if self.withdraw_record(context, view) {
            return;
        }
        self.newsroom.look_around(&self.roster);
        self.newsroom.note_what_was_told(view, &mut self.roster);
        self.drive_plan(context, view);
        self.newsroom.publish(context, self.term, view, &mut self.roster, &self.planner);
        if let Some(known) = view.known().filter(|_| !self.newsroom.is_writing()) {
            self.planner.tidy(context, self.term, &self.roster, known.modified, known.record.lease);
        }
    }

    fn drive_plan(&mut self, context: &mut Context<'_>, view: &View) {
        if self.not_before().is_some_and(|at| context.now < at) || !self.spoken {
            return;
        }
        let start = match (view.known(), self.run_lease) {
            (Some(known), _) => {
                let RoundRecord { round, lease, events, .. } = known.record;
                Start { round, modified: known.modified, lease, events, found: self.newsroom.found() }
            }
            (None, RunLease::New { lease, .. }) => {
                Start { round: 0, modified: 0, lease, events: 0, found: None }
            }
            _ => return,
        };
        let writing = self.newsroom.is_writing();
        self.planner.drive(context, self.term, &self.roster, start, writing);
    }

    /// `gone`: the one that the record names, and that is gone.
    fn grant_run(&mut self, context: &mut Context<'_>, gone: Option<i64>) {
        self.run_lease = RunLease::Granting { gone };
        self.term.send(context, LeaderTask::GrantRun, Request::Grant(context.config.run_ttl));
    }

    /// Takes back a record that etcd has from before the round that its members were in. Whoever is still in that earlier
    /// round is told so that it is over. True while that is under way.
    fn withdraw_record(&mut self, context: &mut Context<'_>, view: &View) -> bool {
        let outdated = view.known().filter(|known| known.record.has_round() && self.is_outdated(known));
        let Some(known) = outdated.filter(|_| !self.planner.is_planning()) else { return false };
        if !self.newsroom.is_writing() {
            let (settings, lease) = (known.record.settings, known.record.lease);
            let round = self.roster.last_round().max(known.record.round);
            let events = known.record.events;
            let record = RoundRecord { events, ..RoundRecord::without_round(round, settings, lease) };
            let when = known.stands(&context.keys.round());
            self.write_record(context, when, record);
        }
        true
    }

    /// Goes by what nodes say of a round that etcd has lost, instead of by its record of an earlier one.
    fn take_claims(&mut self, context: &Context<'_>, view: &View) {
        let lost = self.lost_at.is_some_and(|at| context.now < at + LOSS);
        if let Some(last) = self.roster.claimed(context.config, lost) {
            self.roster.begin(last);
            self.planner.members_changed();
            self.outdated = view.known().map(|known| known.modified);
        }
    }

    /// Whether a record is from before the round that was claimed, and not what a late request has made of it.
    fn is_outdated(&self, known: &KnownRound) -> bool {
        self.roster.has_lost_state() && self.outdated == Some(known.modified)
    }

    fn write_record(&mut self, context: &mut Context<'_>, when: Vec<Condition>, record: RoundRecord) {
        self.newsroom.writes();
        let request = self.term.txn(context, when, vec![put_round(context, &record)]);
        self.term.send(context, LeaderTask::WriteRound(Box::new(record)), request);
    }

    /// The record of a run that has none, or whose lease is gone.
    fn make_record(&mut self, context: &mut Context<'_>, view: &View, lease: i64) {
        if self.newsroom.is_writing() {
            return;
        }
        let (when, record) = match view.round() {
            // It is gone with its lease, and the watch has not told of it yet; if not, it goes on.
            RoundKey::Known(known) => {
                (known.stands(&context.keys.round()), RoundRecord { lease, ..known.record.clone() })
            }
            RoundKey::Missing => {
                // Whoever is complete already is told once, by the round's own record.
                self.drive_plan(context, view);
                if self.planner.is_planning() {
                    return;
                }
                let settings = Some(context.config.settings);
                let record = RoundRecord::without_round(self.roster.last_round(), settings, lease);
                (vec![Condition::Missing(context.keys.round())], record)
            }
            RoundKey::Unknown | RoundKey::Corrupt(_) => return,
        };
        self.write_record(context, when, record);
    }

    /// A closed run stays on the lease that the mark of that has. Nothing is planned and nothing renewed any more.
    fn drive_closed(&mut self, context: &mut Context<'_>) {
        self.planner.forget();
        if let RunLease::New { .. } = self.run_lease {
            self.run_lease.drop_new(context);
            self.run_lease = RunLease::refreshed(context);
        }
    }
}
