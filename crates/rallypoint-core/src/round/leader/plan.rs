//! How the leader forms a round: when, with whom, and the transactions that make it so.
//!
//! ```text
//!           a reason, enough nodes,                  all are             held
//!           nobody to wait for           places      written
//!   (none) ─────────────────────────▶ being written ─────────▶ committing ─────▶ the round is complete
//!      ▲                                   │                      │
//!      └── somebody in it is gone, or a condition did not hold ───┘
//! ```
//!
//! Where all places fit into one transaction, that one commits the round too: nobody has to wait for a second.

mod answers;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::context::{Context, LeaderTask, Retry};
use super::super::etcd::{Condition, Entry, Op, Request};
use super::super::event::{Formed, NAMED_MEMBERS, NAMED_NEWCOMERS, Newcomer};
use super::super::record::{
    MasterRecord, NAMED_LOSSES, News, RECORD_VERSION, RankRecord, RoundRecord, Wants, json,
};
use super::super::settings::RankPolicy;
use super::super::view::KnownRound;
use super::roster::{Member, Present, Roster};
use super::term::Term;
pub(super) use answers::Planned;
use writes::{Plan, millis, put_plan};

/// Transactions under way at a time.
const IN_FLIGHT: usize = 8;

/// The plan that is being made so, and what it takes to make the next one.
#[derive(Debug, Default)]
pub(super) struct Planner {
    plan: Option<Plan>,
    /// Plans begun by this leader.
    begun: u64,
    /// When the key of the plan was last written; 0 if it is not there.
    fence: i64,
    /// Nodes whose place stands in etcd, or may.
    placed: BTreeSet<String>,
    tidying: bool,
    /// Places may stand there that nobody has a use for.
    untidy: bool,
    /// When a round with enough nodes waits no longer for more.
    last_call: Option<Duration>,
    /// When a group that has lost somebody waits no longer for a replacement, and meets smaller than it was.
    replacement: Option<Duration>,
    /// When the wait is over that goes on: of the two above the later one of those that there is a reason for.
    wait: Option<Duration>,
    /// Since when nodes are ready for the next round.
    gathering: Option<Duration>,
    /// What only the round before this one had a use for.
    outdated_store: Option<String>,
    /// The commit of a plan that was given up may be on its way, and nothing has been written since that would stop it.
    loose: bool,
    /// After a plan that came to nothing since somebody in it was gone. Where nodes come and go all the time, each plan is
    /// a request for every so many of them.
    retry: Retry,
}

/// What a plan follows on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// The round that the record names; 0 if there is none.
    pub(super) round: u64,
    /// When the record was written; 0 if there is none.
    pub(super) modified: i64,
    /// The run's lease.
    pub(super) lease: i64,
    /// The events that were written down by then.
    pub(super) events: u64,
    /// Members of the last round that this leader found there when it began to lead.
    pub(super) found: Option<usize>,
}

impl Planner {
    /// That of a node that has led before, perhaps, and has forgotten what it sent then.
    pub(super) fn new(last_call: Option<Duration>) -> Self {
        // What the leader before has told may be either of the two: each goes on for as long as it takes itself, at most.
        Planner { loose: true, last_call, replacement: last_call, wait: last_call, ..Planner::default() }
    }

    /// Whether a plan is under way.
    pub(super) fn is_planning(&self) -> bool {
        self.plan.is_some()
    }

    /// When a round with enough nodes waits no longer, for whomever it does. The group is told so as of a last call.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.wait
    }

    /// When another plan may be begun.
    pub(super) fn timeouts(&self) -> [Option<Duration>; 3] {
        [self.last_call, self.replacement, self.retry.at()].map(|at| at.filter(|_| self.plan.is_none()))
    }

    /// What was planned concerns nobody any more. The last call goes on.
    pub(super) fn forget(&mut self) {
        self.loose |= self.plan.take().is_some_and(|plan| plan.committing && plan.fence.is_some());
        self.tidying = false;
        // etcd may have lost the round that made it so.
        self.outdated_store = None;
    }

    /// The lease that the plan of this number hangs on, if it is still the one.
    pub(super) fn lease_of(&self, number: u64) -> Option<i64> {
        self.plan.as_ref().filter(|plan| plan.number == number).map(|plan| plan.record.lease)
    }

    /// The key of the plan, as it stands in etcd.
    pub(super) fn fence_is(&mut self, plan: Option<&Entry>) {
        self.fence = plan.map_or(0, |entry| entry.mod_revision);
    }

    /// The places that stand in etcd. Those of a plan that was given up may be on their way still.
    pub(super) fn places_are(&mut self, ids: impl Iterator<Item = String>) {
        self.placed.extend(ids);
        self.untidy = true;
    }

    /// Who was a member may be none any more.
    pub(super) fn members_changed(&mut self) {
        self.untidy = true;
    }

    /// These places are gone since that revision.
    pub(super) fn removed(&mut self, ids: &[String], revision: i64) {
        for id in ids {
            self.placed.remove(id);
        }
        self.outdated_store = None;
        self.fenced(revision);
    }

    /// Whether the commit of a plan that was given up may be on its way. It would make a round of places that were
    /// written over.
    pub(super) fn may_be_committed(&self) -> bool {
        self.loose
    }

    /// The key of the plan was written at that revision: no earlier plan is committed any more.
    pub(super) fn fenced(&mut self, revision: i64) {
        self.fence = self.fence.max(revision);
        self.loose = false;
    }

    pub(super) fn tidied(&mut self) {
        (self.tidying, self.untidy) = (false, true);
    }

    /// A node has changed. A plan with somebody who is gone is not worth committing.
    pub(super) fn changed(&mut self, context: &mut Context<'_>, id: &str, roster: &Roster) {
        self.untidy |= !roster.knows(id);
        let Some(plan) = self.plan.as_ref().filter(|plan| !plan.committing) else { return };
        let Some(member) = plan.members.get(id) else { return };
        let stands = roster.get(id).is_some_and(|node| {
            node.record.incarnation == member.incarnation && node.record.wants == Wants::Join
        });
        if !stands {
            self.plan = None;
            self.retry.failed(context);
        }
    }

    /// Who is kept out has changed. The same of a plan with somebody who is.
    pub(super) fn exclusions_changed(&mut self, context: &mut Context<'_>, roster: &Roster) {
        let planned = self.plan.as_ref().filter(|plan| !plan.committing);
        if planned.is_some_and(|plan| plan.members.keys().any(|id| roster.is_kept_out(id))) {
            self.plan = None;
            self.retry.failed(context);
        }
    }

    /// Forms a round when there is a reason and enough nodes, and nobody to wait for.
    pub(super) fn drive(
        &mut self,
        context: &mut Context<'_>,
        term: Term,
        roster: &Roster,
        start: Start,
        writing: bool,
    ) {
        if self.plan.is_some() {
            return self.advance(context, term, roster, writing);
        }
        // A spare is ready all the time.
        let gathers = roster.joined() > 0 && roster.wants_a_round();
        self.gathering = gathers.then(|| self.gathering.unwrap_or(context.now));
        let settings = &context.config.settings;
        let (seatable, survivors, outstanding) =
            (roster.seatable(), roster.survivors(), roster.outstanding());
        let enough = seatable >= settings.min_nodes && roster.wants_a_round();
        // Newcomers alone never go past a whole group that is at work.
        if !enough || (outstanding > 0 && survivors == 0 && roster.is_whole()) {
            (self.last_call, self.replacement, self.wait) = (None, None, None);
            return;
        }
        let all_here = outstanding == 0
            && (survivors > 0 || seatable >= settings.max_nodes || roster.has_a_whole_group());
        let last_call = no_later(&mut self.last_call, context.now.saturating_add(context.config.last_call));
        // Of whom it is not known whether he died, it will be soon.
        let over = last_call <= context.now && !roster.is_unsure();
        let replacement = self.awaits_replacement(context, roster, seatable);
        let waits = [replacement, (!all_here).then_some(last_call)];
        self.wait = waits.into_iter().flatten().max().or(Some(last_call));
        self.retry.is_due(context.now);
        if (all_here || over) && replacement.is_none() && !writing && !self.retry.waits() {
            self.begin(context, term, roster, start);
            self.advance(context, term, roster, writing);
        }
    }

    /// Until when a group that has lost somebody waits before it meets with so many, which are fewer than it had.
    fn awaits_replacement(
        &mut self,
        context: &Context<'_>,
        roster: &Roster,
        seatable: usize,
    ) -> Option<Duration> {
        let time = context.config.replacement;
        if time.is_zero() || roster.is_whole() || seatable >= roster.size() {
            return None;
        }
        let until = no_later(&mut self.replacement, context.now.saturating_add(time));
        (context.now < until).then_some(until)
    }

    fn begin(&mut self, context: &mut Context<'_>, term: Term, roster: &Roster, start: Start) {
        let seats = roster.seats();
        let nodes = seats.iter().map(|id| roster.get(id).map(|node| (id, node)));
        let Some(nodes) = nodes.collect::<Option<Vec<_>>>() else { return };
        let Some((first, master)) = nodes.first() else { return };
        self.begun += 1;
        // The revision and the number tell people who planned it and when. The rest tells it from the plans of an
        // etcd that has lost its data and counts from the beginning again.
        let id = format!("{}-{}-{:08x}", term.began, self.begun, context.random.u32(..));
        let record = RoundRecord {
            version: RECORD_VERSION,
            round: start.round.max(roster.last_round()) + 1,
            plan: id,
            world_size: nodes.len(),
            master: Some(MasterRecord {
                node: (*first).clone(),
                address: master.record.address.clone(),
                port: master.record.port,
            }),
            settings: Some(context.config.settings),
            lease: start.lease,
            closed: None,
            news: News::default(),
            without: roster.gone(),
            events: start.events + 1,
            more: BTreeMap::new(),
        };
        let formed = Formed { found: start.found, ..self.formed(context, roster, &record, &nodes) };
        let members = nodes.iter().enumerate();
        let members = members.map(|(rank, (id, node))| ((*id).clone(), Member::of(rank, &node.record)));
        self.plan = Some(Plan {
            number: context.random.u64(..),
            record,
            members: members.collect(),
            last_plan: roster.plan().to_owned(),
            last_round: roster.last_completed(),
            last_modified: start.modified,
            master: (master.text.clone(), master.modified),
            seats: nodes.iter().map(|(id, node)| ((*id).clone(), node.record.incarnation)).collect(),
            fence: None,
            written: BTreeSet::new(),
            next: 0,
            in_flight: 0,
            committing: false,
            formed,
            begun: context.now,
        });
    }

    /// What is told of the round of that record.
    fn formed(
        &self,
        context: &Context<'_>,
        roster: &Roster,
        record: &RoundRecord,
        nodes: &[(&String, &Present)],
    ) -> Formed {
        // The last call begins when enough nodes are there.
        let enough = self.last_call.map_or(context.now, |at| at.saturating_sub(context.config.last_call));
        // Not so of one that an earlier leader began.
        let enough = enough.min(context.now);
        let gathering = self.gathering.unwrap_or(context.now);
        let ranked = || nodes.iter().map(|(id, _)| *id).enumerate();
        let is_new = |(_, id): &(usize, &String)| !roster.plan().is_empty() && roster.member(id).is_none();
        let keeps_ranks =
            matches!(context.config.settings.policy, RankPolicy::Sticky | RankPolicy::Segment { .. });
        let before = |rank| record.without.iter().find(|gone| keeps_ranks && gone.rank == rank);
        Formed {
            world_size: record.world_size,
            master: record.master.clone(),
            members: ranked().take(NAMED_MEMBERS).map(|(_, id)| id.clone()).collect(),
            joined: ranked()
                .filter(is_new)
                .take(NAMED_NEWCOMERS)
                .map(|(rank, id)| {
                    let instead_of = before(rank).map(|gone| gone.node.clone());
                    Newcomer { node: id.clone(), rank, instead_of }
                })
                .collect(),
            joined_count: ranked().filter(is_new).count(),
            gone: record.without.iter().cloned().chain(roster.absent()).take(NAMED_LOSSES).collect(),
            found: None,
            spares: roster.joined().saturating_sub(record.world_size),
            gathering_ms: millis(enough, gathering),
            last_call_ms: millis(context.now, enough.max(gathering)),
            placing_ms: 0,
        }
    }

    fn advance(&mut self, context: &mut Context<'_>, term: Term, roster: &Roster, writing: bool) {
        let size = context.config.places_per_request;
        if let Some(plan) = self.plan.as_mut().filter(|plan| plan.seats.len() <= size) {
            if !plan.committing && !writing {
                plan.committing = true;
                self.placed.extend(plan.seats.iter().map(|(id, _)| id.clone()));
                let number = plan.number;
                self.complete(context, term, roster, number);
            }
            return;
        }
        loop {
            let Some(plan) = &mut self.plan else { return };
            let number = plan.number;
            // The others wait for the first: it makes this the last plan begun.
            let limit = if plan.fence.is_none() { 1 } else { IN_FLIGHT };
            if plan.next * size < plan.seats.len() {
                if plan.in_flight >= limit {
                    return;
                }
                plan.in_flight += 1;
                plan.next += 1;
                let chunk = plan.next - 1;
                // Whatever becomes of the plan, they may stand there.
                let seats = plan.seats.iter().skip(chunk * size).take(size);
                self.placed.extend(seats.map(|(id, _)| id.clone()));
                self.place(context, term, roster, number, chunk);
            } else if plan.in_flight == 0 && !plan.committing && !writing {
                plan.committing = true;
                self.commit(context, term, number);
            } else {
                return;
            }
        }
    }

    /// Writes the places of a chunk. The first one also makes this the last plan begun.
    pub(super) fn place(
        &self,
        context: &mut Context<'_>,
        term: Term,
        roster: &Roster,
        number: u64,
        chunk: usize,
    ) {
        let Some(plan) = self.plan.as_ref().filter(|plan| plan.number == number) else { return };
        let (when, mut then) = match plan.fence {
            Some(fence) => (vec![Condition::ModifiedAt(context.keys.plan(), fence)], vec![]),
            None => plan.start(context, self.fence),
        };
        then.extend(plan.places(context, roster, chunk));
        let request = term.txn(context, when, then);
        term.send(context, LeaderTask::Place { plan: number, chunk }, request);
    }

    /// All of a plan at once: its beginning, its places and its commit.
    pub(super) fn complete(&self, context: &mut Context<'_>, term: Term, roster: &Roster, number: u64) {
        let Some(plan) = self.plan.as_ref().filter(|plan| plan.number == number) else { return };
        let (mut when, mut then) = plan.start(context, self.fence);
        when.extend(plan.master_stands(context));
        then.extend(plan.places(context, roster, 0));
        then.extend(plan.put_round(context));
        let request = term.txn(context, when, then);
        term.send(context, LeaderTask::Complete { plan: number }, request);
    }

    /// The point at which a round is complete.
    pub(super) fn commit(&self, context: &mut Context<'_>, term: Term, number: u64) {
        let Some(plan) = self.plan.as_ref().filter(|plan| plan.number == number) else { return };
        let Some(fence) = plan.fence else { return };
        let mut when = vec![
            Condition::unchanged_since(context.keys.round(), plan.last_modified),
            Condition::ModifiedAt(context.keys.plan(), fence),
            Condition::Holds(context.keys.plan(), plan.record.plan.clone()),
        ];
        when.extend(plan.places_stand(context));
        when.extend(plan.master_stands(context));
        let request = term.txn(context, when, plan.put_round(context));
        term.send(context, LeaderTask::Commit { plan: number }, request);
    }

    /// Asks members at their places whether they are there. Not if another plan was begun by then: it has written there.
    /// Where the commit of one may be on its way, this counts as the last plan begun.
    pub(super) fn question(
        &self,
        context: &Context<'_>,
        term: Term,
        known: &KnownRound,
        members: &[(String, Member)],
    ) -> Request {
        let places = members.iter().map(|(id, member)| {
            let place = RankRecord {
                version: RECORD_VERSION,
                round: known.record.round,
                plan: known.record.plan.clone(),
                rank: member.rank,
                incarnation: member.incarnation,
                since: member.since,
                left: false,
                gave_up_ms: None,
                asked: true,
                previous: None,
                more: BTreeMap::new(),
            };
            Op::Put { key: context.keys.rank(id), value: json(&place), lease: known.record.lease }
        });
        let round = Condition::ModifiedAt(context.keys.round(), known.modified);
        let plan = Condition::unchanged_since(context.keys.plan(), self.fence);
        let fence = self.loose.then(|| put_plan(context, &known.record.plan, known.record.lease));
        term.txn(context, vec![round, plan], places.chain(fence).collect())
    }

    /// Removes what only earlier rounds had a use for, a part at a time, if the record is as it was at `modified`. The
    /// commit of a plan that was given up may still be on its way; so this also counts as the last plan begun.
    /// Whatever comes of it: the run's lease ends one day.
    pub(super) fn tidy(
        &mut self,
        context: &mut Context<'_>,
        term: Term,
        roster: &Roster,
        modified: i64,
        lease: i64,
    ) {
        if self.tidying || self.is_planning() || self.fence == 0 {
            return;
        }
        // Looking for them takes a look at all places: not with every event of a large group.
        let stale = self.placed.iter().filter(|id| self.untidy && !roster.knows(id));
        let stale: Vec<String> = stale.take(context.config.places_per_request).cloned().collect();
        self.untidy = false;
        if stale.is_empty() && self.outdated_store.is_none() {
            return;
        }
        let mut then: Vec<Op> = stale.iter().map(|id| Op::Delete(context.keys.rank(id))).collect();
        then.extend(self.outdated_store.clone().map(Op::DeletePrefix));
        self.tidying = true;
        then.push(put_plan(context, roster.plan(), lease));
        let round = Condition::ModifiedAt(context.keys.round(), modified);
        let when = vec![round, Condition::ModifiedAt(context.keys.plan(), self.fence)];
        let request = term.txn(context, when, then);
        term.send(context, LeaderTask::Tidy { stale, lease }, request);
    }
}

/// When a wait is over that begins now, unless it goes on already.
fn no_later(wait: &mut Option<Duration>, from_now: Duration) -> Duration {
    let until = wait.map_or(from_now, |at| at.min(from_now));
    *wait = Some(until);
    until
}
