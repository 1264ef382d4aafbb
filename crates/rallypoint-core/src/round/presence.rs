//! A node's key in etcd: made, kept, and made again when it was lost.

use std::time::Duration;

use super::etcd::{Condition, Failure, Op, OpReply, Reply, Request, Txn};
use super::node::{Goal, Node, Standing, Task, Watches, json, parse};
use super::output::{Output, Refusal};
use super::record::{NodeRecord, RoundRecord, Wants};
use crate::Backoff;

impl Node {
    pub(super) fn drive_in(&mut self, now: Duration) {
        if self.busy || self.retry_at.is_some() {
            return;
        }
        let Some(lease) = self.lease else {
            self.busy = true;
            self.request(Task::Grant, Request::Grant(self.config.lease_ttl));
            return;
        };
        // Not before there is a lease: where many come at once, most then come after the first events of the group,
        // which would go to every one of them.
        if self.watches == Watches::None {
            self.open_watches();
        }
        if matches!(self.watches, Watches::Opening { .. }) {
            return;
        }
        let wants = if self.joining { Wants::Join } else { Wants::Stay };
        let stands = self.standing.as_ref().filter(|standing| standing.lease == lease);
        // A member at work need not say so: what it joined with still stands. Whoever is not informed has not
        // seen the reply to its registration.
        let informed = self.watches == Watches::Informed;
        let enough = stands.and_then(|standing| standing.record.as_ref()).filter(|_| informed);
        if enough.is_none_or(|record| self.joining && !self.says(record, wants)) {
            self.register(lease, self.record(wants));
        } else if let Some(lease) = self.inherited.last()
            && !self.evicting
        {
            self.evicting = true;
            self.request(Task::Evict, Request::Revoke(*lease));
        }
        if !self.leader_known && !self.campaigning && self.campaign_at.is_none() {
            self.succeed(now);
        }
    }

    pub(super) fn record(&self, wants: Wants) -> NodeRecord {
        NodeRecord {
            incarnation: self.config.incarnation,
            address: self.config.address.clone(),
            port: self.port,
            wants,
            round: self.member_of,
            settings: self.config.settings,
            rack: self.config.rack.clone(),
            hint: self.config.hint.clone(),
            about: self.config.about.clone(),
            since: self.config.since,
        }
    }

    /// Whether what this process wrote before says what it would write now. The rest of a record never changes.
    fn says(&self, record: &NodeRecord, wants: Wants) -> bool {
        (record.wants, record.port, record.round) == (wants, self.port, self.member_of)
    }

    /// One request to join, whatever is there: the node's key, the leader's where there is none, and a look at
    /// the round and at this node's place: an earlier try may have got through, and been planned with.
    pub(super) fn register(&mut self, lease: i64, record: NodeRecord) {
        self.busy = true;
        let key = self.keys.node(&self.config.id);
        let when = match &self.standing {
            Some(standing) => Condition::ModifiedAt(key.clone(), standing.modified),
            None => Condition::Missing(key.clone()),
        };
        let txn = Txn {
            when: vec![when],
            then: vec![
                Op::Put { key: key.clone(), value: json(&record), lease },
                Op::Txn(Txn {
                    when: vec![Condition::Missing(self.keys.leader())],
                    then: vec![self.put_leader(lease)],
                    otherwise: vec![Op::Get(self.keys.leader())],
                }),
                Op::Get(self.keys.round()),
                Op::Get(self.keys.rank(&self.config.id)),
            ],
            otherwise: vec![Op::Get(key), Op::Get(self.keys.round())],
        };
        self.request(Task::Register { lease, record }, Request::Txn(txn));
    }

    pub(super) fn put_leader(&self, lease: i64) -> Op {
        Op::Put { key: self.keys.leader(), value: self.config.id.clone(), lease }
    }

    pub(super) fn granted(&mut self, now: Duration, reply: &Result<Reply, Failure>) {
        self.busy = false;
        match reply {
            Ok(Reply::Granted(lease)) if matches!(self.goal, Goal::In) => {
                self.lease = Some(*lease);
                self.outputs.push_back(Output::Keep(*lease));
            }
            Ok(Reply::Granted(lease)) => self.request(Task::Forgotten, Request::Revoke(*lease)),
            _ => self.retry(now),
        }
    }

    pub(super) fn registered(
        &mut self,
        now: Duration,
        lease: i64,
        record: NodeRecord,
        reply: Result<Reply, Failure>,
    ) {
        self.busy = false;
        let reply = match reply {
            Ok(Reply::Txn(reply)) => reply,
            Err(Failure::LeaseGone) => return self.lose_lease(),
            _ => {
                self.unanswered = true;
                return self.retry(now);
            }
        };
        self.backoff = Backoff::default();
        if !reply.held {
            return self.found(reply.results);
        }
        if self.lease != Some(lease) {
            // Lost while the reply was under way, and the key with it.
            self.standing = None;
            return;
        }
        let created = self.standing.as_ref().map_or(reply.revision, |standing| standing.created);
        self.standing = Some(Standing { record: Some(record), created, modified: reply.revision, lease });
        self.established = true;
        self.take_group(now, reply);
    }

    pub(super) fn evicted(&mut self, now: Duration, reply: &Result<Reply, Failure>) {
        self.evicting = false;
        match reply {
            Err(Failure::Unknown) => self.retry(now),
            _ => drop(self.inherited.pop()),
        }
    }

    /// Another record stands where this node wanted to write.
    pub(super) fn found(&mut self, results: Vec<OpReply>) {
        let mut results = results.into_iter();
        let (Some(OpReply::Got(Some(entry))), round) = (results.next(), results.next()) else {
            self.standing = None;
            return;
        };
        let record = serde_json::from_str::<NodeRecord>(&entry.value).ok();
        let ours = record.filter(|record| record.incarnation == self.config.incarnation);
        if ours.is_none() {
            if self.established {
                return self.refuse(Refusal::Replaced);
            }
            // Whoever has no place in this run must not take the place of one who has.
            if let Some(OpReply::Got(Some(entry))) = round
                && let Ok(RoundRecord { settings: Some(theirs), .. }) = parse(&entry)
                && let Some((setting, ours, theirs)) = self.config.settings.difference(&theirs)
            {
                return self.refuse(Refusal::Mismatch { setting, ours, theirs });
            }
            // First in, so that the one whose end is under way stays the last.
            self.inherited.insert(0, entry.lease);
        }
        let (created, modified) = (entry.create_revision, entry.mod_revision);
        self.standing = Some(Standing { record: ours, created, modified, lease: entry.lease });
    }

    pub(super) fn lose_lease(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.outputs.push_back(Output::Forget(lease));
        }
        self.standing = None;
        self.step_down();
    }

    pub(super) fn retry(&mut self, now: Duration) {
        let random = self.random.f64();
        self.retry_at = Some(now + self.backoff.next(random));
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy || self.campaigning
    }
}
