//! How a node goes: it may close the run, tells the others that it leaves, tidies up if it is the last, and ends
//! its lease.

use std::time::Duration;

use super::etcd::{Condition, Failure, Op, OpReply, Reply, Request, Txn};
use super::node::{Goal, Node, Task, json, parse};
use super::output::{NodeEvent, Output};
use super::record::{NodeRecord, RankRecord, RoundRecord, Wants};

/// Up to this many nodes, whoever leaves a closed run looks whether it is the last. In a larger group that would
/// cost each of them a look at all others.
const SMALL: usize = 16;

/// What is left to do, in this order.
#[derive(Debug)]
pub(super) struct Leaving {
    closing: Option<Closing>,
    /// It only closes the run; the node stays.
    stays: bool,
    /// This node was the leader, since this revision, and will be again if it stays.
    led: Option<i64>,
    /// The others have been told.
    said: bool,
    /// As the leader, it has seen few others.
    few: bool,
    /// It has been tried.
    swept: bool,
    busy: bool,
}

#[derive(Debug)]
struct Closing {
    reason: String,
    /// What the mark hangs on, for those who come late.
    lease: Option<i64>,
}

/// What a request was for.
#[derive(Debug)]
pub(super) enum LeavingTask {
    GrantMark,
    Close,
    Say,
    Sweep { run_lease: i64 },
    Revoke,
}

impl Node {
    /// Leaves in good order. [`NodeEvent::Left`] tells when it is done.
    pub fn leave(&mut self, now: Duration) {
        self.stop_joining();
        self.depart();
        self.drive(now);
    }

    /// Closes the run. Only a member of the last round can; with others nothing happens. [`NodeEvent::Closed`]
    /// tells when it is done.
    pub fn close(&mut self, now: Duration, reason: &str) {
        let member = self.member_of > 0 && matches!(self.goal, Goal::In) && !self.is_joining();
        if member {
            self.leave_with(Some(Closing { reason: reason.to_owned(), lease: None }));
        } else {
            self.tell(NodeEvent::Closed(false));
        }
        self.drive(now);
    }

    /// Goes, whatever is still under way.
    pub(super) fn depart(&mut self) {
        self.leave_with(None);
    }

    fn leave_with(&mut self, closing: Option<Closing>) {
        self.stop_joining();
        let stays = closing.is_some();
        let led = self.lead.as_ref().map(|lead| lead.term);
        let few = self.lead.as_ref().is_some_and(|lead| lead.sees_at_most(SMALL));
        match &mut self.goal {
            Goal::Leaving(leaving) => leaving.stays &= stays,
            goal => {
                let (said, swept, busy) = (false, false, false);
                *goal = Goal::Leaving(Leaving { closing, stays, led, said, few, swept, busy });
            }
        }
        self.step_down();
    }

    pub(super) fn drive_leaving(&mut self, now: Duration) {
        let waits = self.is_busy() || self.retry_at.is_some();
        let Goal::Leaving(leaving) = &mut self.goal else { return };
        if leaving.busy || waits {
            return;
        }
        let round = self.round.as_ref();
        let closed = round.is_some_and(|(record, _)| record.closed.is_some());
        if let Some(closing) = &leaving.closing {
            match round {
                Some((record, modified)) if !closed && record.round == self.member_of => {
                    let (task, request) = match closing.lease {
                        None => (LeavingTask::GrantMark, Request::Grant(self.config.closed_ttl)),
                        Some(lease) => {
                            let key = self.keys.round();
                            let record = closed_record(record, &closing.reason);
                            let txn = Txn {
                                when: vec![Condition::ModifiedAt(key.clone(), *modified)],
                                then: vec![Op::Put { key: key.clone(), value: json(&record), lease }],
                                otherwise: vec![Op::Get(key)],
                            };
                            (LeavingTask::Close, Request::Txn(txn))
                        }
                    };
                    leaving.busy = true;
                    return self.request(Task::Leaving(task), request);
                }
                // Somebody else has closed it, or the others went on without this node.
                _ => {
                    leaving.closing = None;
                    self.outputs.push_back(Output::Event(NodeEvent::Closed(closed)));
                }
            }
        }
        if leaving.stays {
            let led = leaving.led;
            self.goal = Goal::In;
            match led {
                Some(term) => self.become_leader(now, term),
                None => self.succeed(now),
            }
            self.settle();
            // It may have been refused, and have to leave after all.
            return self.drive(now);
        }
        let Some(lease) = self.lease else { return self.gone(now) };
        let Some(standing) = self.standing.clone() else { return self.revoke(lease) };
        let Goal::Leaving(leaving) = &mut self.goal else { return };
        let node = self.keys.node(&self.config.id);
        if !closed && !leaving.said {
            (leaving.said, leaving.busy) = (true, true);
            let value = json(&self.record(Wants::Leave));
            let mut then = vec![Op::Put { key: node.clone(), value, lease }];
            if let Some((rank, modified, lease)) = self.place() {
                let key = self.keys.rank(&self.config.id);
                let value = json(&RankRecord { left: true, ..rank });
                // The next plan may have written there by now.
                let when = vec![Condition::ModifiedAt(key.clone(), modified)];
                then.push(Op::Txn(Txn {
                    when,
                    then: vec![Op::Put { key, value, lease }],
                    otherwise: vec![],
                }));
            }
            let when = vec![Condition::ModifiedAt(node.clone(), standing.modified)];
            let txn = Txn { when, then, otherwise: vec![Op::Get(node)] };
            return self.request(Task::Leaving(LeavingTask::Say), Request::Txn(txn));
        }
        let small = self.round.as_ref().is_some_and(|(record, _)| record.world_size <= SMALL);
        if closed && !leaving.swept && (small || leaving.few) {
            (leaving.swept, leaving.busy) = (true, true);
            let run_lease = self.round.as_ref().map_or(0, |(record, _)| record.lease);
            let txn = Txn {
                when: vec![Condition::OnlyCreatedAt(self.keys.nodes(), standing.created)],
                then: vec![
                    Op::DeletePrefix(self.keys.ranks()),
                    Op::DeletePrefix(self.keys.stores()),
                    Op::Delete(self.keys.plan()),
                ],
                otherwise: vec![],
            };
            return self.request(Task::Leaving(LeavingTask::Sweep { run_lease }), Request::Txn(txn));
        }
        self.revoke(lease);
    }

    fn revoke(&mut self, lease: i64) {
        if let Goal::Leaving(leaving) = &mut self.goal {
            leaving.busy = true;
        }
        // No refresh may cross the revocation: it would be told that the lease is lost, and say so to the user.
        self.outputs.push_back(Output::Forget(lease));
        self.request(Task::Leaving(LeavingTask::Revoke), Request::Revoke(lease));
    }

    pub(super) fn handle_leaving(&mut self, now: Duration, task: LeavingTask, reply: Result<Reply, Failure>) {
        let Goal::Leaving(leaving) = &mut self.goal else { return };
        leaving.busy = false;
        match (task, reply) {
            (LeavingTask::GrantMark, Ok(Reply::Granted(lease))) => {
                if let Some(closing) = &mut leaving.closing {
                    closing.lease = Some(lease);
                }
            }
            (LeavingTask::Close, Ok(Reply::Txn(reply))) if reply.held => {
                if let (Some(closing), Some((record, modified))) = (leaving.closing.take(), &mut self.round) {
                    (*record, *modified) = (closed_record(record, &closing.reason), reply.revision);
                    self.tell(NodeEvent::Closed(true));
                }
            }
            // The leader wrote in between, or an earlier try got through after all.
            (LeavingTask::Close, Ok(Reply::Txn(reply))) => match reply.results.into_iter().next() {
                Some(OpReply::Got(Some(entry))) => self.round_is(&entry),
                _ => leaving.closing = None,
            },
            (LeavingTask::Close, Err(Failure::LeaseGone)) => {
                if let Some(closing) = &mut leaving.closing {
                    closing.lease = None;
                }
            }
            (LeavingTask::Sweep { run_lease }, Ok(Reply::Txn(reply))) if reply.held && run_lease != 0 => {
                self.request(Task::Forgotten, Request::Revoke(run_lease));
            }
            (LeavingTask::Revoke, Ok(_) | Err(Failure::LeaseGone)) => self.gone(now),
            (LeavingTask::Say, Ok(Reply::Txn(reply))) if !reply.held => self.say_again(reply.results),
            // The others learn of it from the lease's end, and what is left hangs on a lease too.
            (LeavingTask::Say | LeavingTask::Sweep { .. }, _) => {}
            _ => self.retry(now),
        }
    }

    /// What this node knew of its own record was out of date, because a reply was lost.
    fn say_again(&mut self, results: Vec<OpReply>) {
        let Some(OpReply::Got(Some(entry))) = results.into_iter().next() else { return };
        let ours = parse::<NodeRecord>(&entry).is_ok_and(|it| it.incarnation == self.config.incarnation);
        if let (Some(standing), Goal::Leaving(leaving)) = (&mut self.standing, &mut self.goal)
            && ours
            && standing.modified != entry.mod_revision
        {
            (standing.modified, leaving.said) = (entry.mod_revision, false);
        }
    }

    fn gone(&mut self, now: Duration) {
        if let Some(lease) = self.lease.take() {
            self.outputs.push_back(Output::Forget(lease));
        }
        self.standing = None;
        self.forget_group();
        self.goal = Goal::Out;
        self.tell(NodeEvent::Left);
        self.rejoin(now);
    }
}

fn closed_record(record: &RoundRecord, reason: &str) -> RoundRecord {
    RoundRecord { closed: Some(reason.to_owned()), ..record.clone() }
}
