//! Members whose key is gone: asked whether they are there, looked for once more, and then dead.
//!
//! ```text
//!   No ── the question is sent ──▶ Asking ── held ──▶ At ── a quarter of a second ──▶ Looking ── not there ──▶ dead
//!   ▲                                │                ▲                                  │  │     for the second time
//!   │                                │                └── not there, or etcd was slow ───┼──┘
//!   └──────── its key is there again, or the question has failed ────────────────────────┘
//! ```

use std::time::Duration;

use super::super::context::{Context, LeaderTask};
use super::super::etcd::{Op, Request, Txn, TxnReply};
use super::super::view::{View, got};
use super::plan::Planner;
use super::roster::{Asked, Member, Roster};
use super::term::Term;

/// Asks members whose key is gone whether they are there: at their place, which they watch.
pub(super) fn ask(
    context: &mut Context<'_>,
    term: Term,
    view: &View,
    roster: &mut Roster,
    planner: &Planner,
) {
    let missing = roster.unasked();
    let ids = |part: &[(String, Member)]| part.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>();
    let Some(known) = view.known().filter(|known| known.record.plan == roster.plan()) else {
        // Where etcd has lost their round they notice by themselves.
        return roster.ask(&ids(&missing), Asked::at(context.now));
    };
    // A question that counts as the last plan begun is alone, or the others would be refused.
    let fences = planner.may_be_committed();
    let parts = missing.chunks(context.config.places_per_request);
    for part in parts.take(if fences { 1 } else { usize::MAX }) {
        let ids = ids(part);
        roster.ask(&ids, Asked::Asking);
        let request = planner.question(context, term, known, part);
        term.send(context, LeaderTask::Ask { ids, lease: known.record.lease, fences }, request);
    }
}

/// Who was asked and has not answered may have done so: the watch may lag behind.
pub(super) fn look_for_the_silent(context: &mut Context<'_>, term: Term, roster: &mut Roster) {
    for ids in roster.silent(context.now).chunks(context.config.places_per_request) {
        let then = ids.iter().map(|id| Op::Get(context.keys.node(id))).collect();
        let request = Request::Txn(Txn { then, ..Txn::default() });
        let since = context.now;
        roster.look_for(ids, since);
        term.send(context, LeaderTask::LookFor { ids: ids.to_vec(), since }, request);
    }
}

/// Who has come back in time is there. Who has not is dead.
pub(super) fn looked_for(
    context: &mut Context<'_>,
    ids: &[String],
    since: Duration,
    reply: TxnReply,
    roster: &mut Roster,
    planner: &mut Planner,
) {
    for (id, found) in ids.iter().zip(reply.results) {
        roster.looked_for(id, since, context.now, got(found).as_ref());
        planner.changed(context, id, roster);
    }
}
