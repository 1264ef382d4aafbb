//! One node's time as the leader. Whatever it writes is on the condition that it still is.

use super::super::context::{Context, LeaderTask, Task};
use super::super::etcd::{Condition, Op, Request, Txn};
use super::super::record::{RoundRecord, json};

#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    /// The revision at which it began, by which etcd knows it.
    pub(super) began: i64,
    /// By which this node knows it. After a loss of data the next one may begin at the same revision.
    pub(super) number: u64,
}

impl Term {
    pub(super) fn new(context: &mut Context<'_>, began: i64) -> Self {
        Term { began, number: context.out.new_number() }
    }

    /// A transaction of a leader who still is one. If it is refused, the reply tells of the leader, the round, the plan and
    /// who is kept out, in this order.
    pub(super) fn txn(self, context: &Context<'_>, mut when: Vec<Condition>, then: Vec<Op>) -> Request {
        let keys = context.keys;
        // After a loss of data another node may have become the leader at the same revision.
        when.push(Condition::CreatedAt(keys.leader(), self.began));
        when.push(Condition::Holds(keys.leader(), context.config.leader_value()));
        let mut otherwise = [keys.leader(), keys.round(), keys.plan()].map(Op::Get).to_vec();
        otherwise.push(Op::Range(keys.exclusions()));
        Request::Txn(Txn { when, then, otherwise })
    }

    pub(super) fn send(self, context: &mut Context<'_>, task: LeaderTask, request: Request) {
        context.out.request(Task::Leader { term: self.number, task }, request);
    }
}

pub(super) fn put_round(context: &Context<'_>, record: &RoundRecord) -> Op {
    Op::Put { key: context.keys.round(), value: json(record), lease: record.lease }
}
