//! How a node goes: it tells the others that it leaves, tidies up if it is the last of a closed run, and ends its
//! lease.
//!
//! ```text
//!            the run goes on: tell the others
//!           ┌────────────────▶ Saying ◀──┐ ──────────┐
//!   Begin ──┤                            │ open again├──▶ Revoking ──▶ gone
//!           └────────────────▶ Sweeping ─┤ ──────────┤
//!            the run is closed: sweep    │           │
//!            if this is the last node    ▼           │
//!                                     NotLast ───────┘
//!            others are there: sweep if none of them has a place
//! ```
//!
//! In a large group only the leader sweeps, and whoever is gone after it (`AfterTheLeader`).
//!
//! A run that was closed is open again where etcd was restored from a time before that. Then the others are told, as in
//! any run that goes on.

use std::time::Duration;

use super::context::{Context, DepartureTask, Retry, Task};
use super::etcd::{Condition, Entry, Failure, Op, OpReply, Reply, Request, Txn, TxnReply};
use super::output::Output;
use super::presence::KeyAt;
use super::record::{NodeRecord, RankRecord, json, parse};
use super::view::{LeaderKey, View, got};

/// Up to this many nodes, whoever leaves a closed run looks whether it is the last. In a larger group that would
/// cost each of them a look at all others: there the leader waits for them, and only who comes after it looks.
const SMALL: usize = 16;
/// So long.
const LEADERS_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Departure {
    stage: Stage,
    busy: bool,
    since: Duration,
    retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing is done yet, or what was known of this node's key has turned out to be wrong.
    Begin,
    /// The run was closed, and is not any more.
    OpenAgain,
    /// Other nodes are there.
    NotLast,
    Revoking,
    /// The lease is ended, and so is the leader: nobody else may be left to tidy up.
    AfterTheLeader,
    Gone,
}

/// What stands in etcd of a node that leaves.
pub(super) struct Standing {
    pub(super) lease: Option<i64>,
    pub(super) key: Option<KeyAt>,
    /// Whether this node leads, by what etcd says.
    pub(super) leads: bool,
    /// As the leader, it sees other nodes.
    pub(super) sees_others: bool,
    /// It leaves because too few nodes have come, since then.
    pub(super) gave_up_ms: Option<u64>,
}

impl Departure {
    pub(super) fn new(now: Duration) -> Self {
        Departure { stage: Stage::Begin, busy: false, since: now, retry: Retry::default() }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.stage == Stage::Gone
    }

    pub(super) fn timeout(&self, now: Duration, leads_others: bool) -> Option<Duration> {
        let patience = (leads_others && !self.busy).then_some(self.since + LEADERS_WAIT);
        [self.retry.at(), patience].into_iter().flatten().filter(|at| *at > now).min()
    }

    pub(super) fn drive(
        &mut self,
        context: &mut Context<'_>,
        view: &View,
        standing: &Standing,
        farewell: &NodeRecord,
    ) {
        self.retry.is_due(context.now);
        if self.busy || self.retry.waits() {
            return;
        }
        match (self.stage, standing.key, standing.lease) {
            (Stage::Begin, _, _) if view.is_closed() => self.sweep(context, view, standing),
            (Stage::NotLast | Stage::AfterTheLeader, _, _) => self.sweep_after_members(context, view),
            (Stage::Begin | Stage::OpenAgain, Some(key), Some(lease)) => {
                self.say(context, view, (key, lease), farewell, standing.gave_up_ms);
            }
            (Stage::Begin | Stage::OpenAgain | Stage::Revoking, _, lease) => {
                self.revoke_or_go(context, view, lease);
            }
            (Stage::Gone, _, _) => {}
        }
    }

    fn request(&mut self, context: &mut Context<'_>, task: DepartureTask, txn: Txn) {
        self.busy = true;
        context.out.request(Task::Departure(task), Request::Txn(txn));
    }

    /// Tells the others: at the node's key, which the leader watches, and at its place, which outlives both of them.
    fn say(
        &mut self,
        context: &mut Context<'_>,
        view: &View,
        (own, lease): (KeyAt, i64),
        farewell: &NodeRecord,
        gave_up_ms: Option<u64>,
    ) {
        let node = context.keys.node(&context.config.id);
        let mut then = vec![Op::Put { key: node.clone(), value: json(farewell), lease }];
        let run_lease = view.known().map_or(0, |known| known.record.lease);
        let ours = |record: &RankRecord| record.incarnation == context.config.incarnation;
        if let Some(place) = view.place().filter(|place| ours(&place.record) && run_lease != 0) {
            let key = context.keys.rank(&context.config.id);
            let value = json(&RankRecord { left: true, gave_up_ms, ..place.record.clone() });
            // The next plan may have written there by now.
            let when = vec![Condition::ModifiedAt(key.clone(), place.modified)];
            let put = Op::Put { key, value, lease: run_lease };
            then.push(Op::Txn(Txn { when, then: vec![put], otherwise: vec![] }));
        }
        let when = vec![Condition::ModifiedAt(node.clone(), own.modified)];
        self.request(context, DepartureTask::Say, Txn { when, then, otherwise: vec![Op::Get(node)] });
    }

    /// Removes what only the run's nodes had a use for, if no other node is there. Whoever is not the last takes its own
    /// keys away in the same request, so that of two that leave together the later one sees that it is the last.
    fn sweep(&mut self, context: &mut Context<'_>, view: &View, standing: &Standing) {
        if standing.sees_others && context.now < self.since + LEADERS_WAIT {
            return;
        }
        let small = is_small(view);
        if !small && !standing.leads {
            return self.revoke_or_go(context, view, standing.lease);
        }
        // In a large group nobody else will do it. Who has come since the leader looked is soon gone again.
        let again = !small && context.now < self.since + LEADERS_WAIT;
        let (keys, id) = (context.keys, &context.config.id);
        let own = standing.key.map(|_| match again {
            // It may not be as this node knows it, because a reply was lost.
            true => vec![Op::Get(keys.node(id))],
            false => vec![Op::Delete(keys.node(id)), Op::Delete(keys.rank(id))],
        });
        // Without a key of its own: nobody's is there, which etcd compares as if it were made at revision 0.
        let mut when =
            vec![Condition::OnlyCreatedAt(keys.nodes(), standing.key.map_or(0, |key| key.created))];
        // That of another node may be as old, in another history.
        when.extend(standing.key.map(|key| Condition::ModifiedAt(keys.node(id), key.modified)));
        let then = leftovers(context).into_iter().chain([Op::DeletePrefix(keys.ranks())]).collect();
        let sweep = Txn { when, then, otherwise: own.into_iter().flatten().collect() };
        let txn = Txn { when: still_closed(context, view), then: vec![Op::Txn(sweep)], otherwise: vec![] };
        self.request(context, DepartureTask::Sweep { again }, txn);
    }

    /// Does so if nobody is left who has a place: a spare has no use for it, and may have died. Those who have left a large
    /// group have left their places there: so if nobody is left at all, this node included, whose own key is gone by now.
    fn sweep_after_members(&mut self, context: &mut Context<'_>, view: &View) {
        let keys = context.keys;
        let mut when = still_closed(context, view);
        let mut then = leftovers(context);
        if is_small(view) {
            when.push(Condition::OnlyCreatedAt(keys.ranks(), 0));
        } else {
            when.push(Condition::OnlyCreatedAt(keys.nodes(), 0));
            then.push(Op::DeletePrefix(keys.ranks()));
        }
        let txn = Txn { when, then, otherwise: vec![] };
        self.request(context, DepartureTask::SweepAfterMembers, txn);
    }

    fn revoke_or_go(&mut self, context: &mut Context<'_>, view: &View, lease: Option<i64>) {
        match lease {
            Some(lease) => self.revoke(context, lease),
            None => {
                self.revoked(view);
                if self.stage == Stage::AfterTheLeader {
                    self.sweep_after_members(context, view);
                }
            }
        }
    }

    /// The lease is ended, and with it the key. Of a large group somebody may be late, and the leader has not waited for it.
    fn revoked(&mut self, view: &View) {
        let late = view.is_closed() && !is_small(view) && view.leader() == LeaderKey::Free;
        self.stage = if late { Stage::AfterTheLeader } else { Stage::Gone };
    }

    fn revoke(&mut self, context: &mut Context<'_>, lease: i64) {
        (self.stage, self.busy) = (Stage::Revoking, true);
        // No refresh may cross the revocation: it would be told that the lease is lost, and say so to the user.
        context.out.push(Output::Forget(lease));
        context.out.request(Task::Departure(DepartureTask::Revoke), Request::Revoke(lease));
    }

    /// What came of a request. The entry is this node's key, where that is not as it was known.
    pub(super) fn handle(
        &mut self,
        context: &mut Context<'_>,
        view: &View,
        task: DepartureTask,
        reply: Result<Reply, Failure>,
    ) -> Option<Entry> {
        self.busy = false;
        match (task, reply) {
            (DepartureTask::Revoke, Ok(_) | Err(Failure::LeaseGone)) => self.revoked(view),
            (DepartureTask::Revoke, Err(_)) => self.retry.failed(context),
            (DepartureTask::Say, Ok(Reply::Txn(reply))) if !reply.held => {
                // What this node knew of its own key was out of date, because a reply was lost.
                match own_key(context, reply) {
                    Some(entry) => {
                        self.retry.failed(context);
                        return Some(entry);
                    }
                    None => self.stage = Stage::Revoking,
                }
            }
            (DepartureTask::Sweep { again }, Ok(Reply::Txn(reply))) => match reply.results.into_iter().next()
            {
                Some(OpReply::Txn(sweep)) if sweep.held => self.swept(context, view),
                Some(OpReply::Txn(sweep)) if again => {
                    self.retry.refused(context);
                    return own_key(context, sweep);
                }
                Some(_) => self.stage = Stage::NotLast,
                None => self.stage = Stage::OpenAgain,
            },
            (DepartureTask::SweepAfterMembers, Ok(Reply::Txn(TxnReply { held: true, .. }))) => {
                self.swept(context, view);
            }
            // The others learn of it from the lease's end, and what is left hangs on a lease too.
            (DepartureTask::Say | DepartureTask::Sweep { .. } | DepartureTask::SweepAfterMembers, _) => {
                self.nothing_left_but_the_lease();
            }
        }
        None
    }

    /// The run's lease ends by itself. Its past hangs on it, and can be looked at for as long as that of another run. Those of
    /// exclusions may last for long, and nothing hangs on them any more.
    fn swept(&mut self, context: &mut Context<'_>, view: &View) {
        self.nothing_left_but_the_lease();
        let run = view.known().map(|known| known.record.lease).filter(|lease| *lease != 0);
        if let Some(lease) = run {
            context.out.request(Task::Forgotten, Request::Renew(lease));
        }
        for lease in view.exclusions().leases().filter(|lease| Some(*lease) != run) {
            context.out.request(Task::Forgotten, Request::Revoke(lease));
        }
    }

    /// What was to be said and swept is done, or cannot be. After the leader the lease is ended already.
    fn nothing_left_but_the_lease(&mut self) {
        let ended = self.stage == Stage::AfterTheLeader;
        self.stage = if ended { Stage::Gone } else { Stage::Revoking };
    }
}

/// This process's key, which a refused request has read.
fn own_key(context: &Context<'_>, refused: TxnReply) -> Option<Entry> {
    let ours = |record: NodeRecord| record.incarnation == context.config.incarnation;
    refused.results.into_iter().next().and_then(got).filter(|entry| parse(entry).is_ok_and(ours))
}

fn is_small(view: &View) -> bool {
    view.known().is_some_and(|known| known.record.world_size <= SMALL)
}

/// The run is closed in the words that are known.
fn still_closed(context: &Context<'_>, view: &View) -> Vec<Condition> {
    let known = view.known().into_iter();
    known.map(|known| Condition::Holds(context.keys.round(), known.text.clone())).collect()
}

/// What only the members of a run had a use for, their places apart.
fn leftovers(context: &Context<'_>) -> Vec<Op> {
    let keys = context.keys;
    vec![Op::DeletePrefix(keys.stores()), Op::DeletePrefix(keys.exclusions()), Op::Delete(keys.plan())]
}
