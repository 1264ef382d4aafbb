//! One node's time as the leader. Whatever it writes is on the condition that it still is.

use super::super::context::{Context, LeaderTask, Task};
use super::super::etcd::{Condition, Op, Request, Txn};
use super::super::record::{RoundRecord, json};

/// Known by the revision at which it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Term(i64);

impl Term {
    pub(super) fn new(began: i64) -> Self {
        Term(began)
    }

    pub(super) fn number(self) -> i64 {
        self.0
    }

    /// A transaction of a leader who still is one. If it is refused, the reply tells of the leader, the round and the
    /// plan, in this order.
    pub(super) fn txn(self, context: &Context<'_>, mut when: Vec<Condition>, then: Vec<Op>) -> Request {
        let keys = context.keys;
        // After a loss of data another node may have become the leader at the same revision.
        when.push(Condition::CreatedAt(keys.leader(), self.0));
        when.push(Condition::Holds(keys.leader(), context.config.leader_value()));
        let otherwise = [keys.leader(), keys.round(), keys.plan()].map(Op::Get).to_vec();
        Request::Txn(Txn { when, then, otherwise })
    }

    pub(super) fn send(self, context: &mut Context<'_>, task: LeaderTask, request: Request) {
        context.out.request(Task::Leader { term: self.0, task }, request);
    }
}

pub(super) fn put_round(context: &Context<'_>, record: &RoundRecord) -> Op {
    Op::Put { key: context.keys.round(), value: json(record), lease: record.lease }
}
