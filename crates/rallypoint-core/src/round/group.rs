//! What a node learns of its group: who leads, which round there is, and its own place in it.

use std::time::Duration;

use super::etcd::{
    Condition, Entry, Event, Failure, Op, OpReply, Reply, Request, Txn, TxnReply, Update, Watched,
};
use super::node::{Goal, Node, Task, Watches, parse};
use super::output::{Change, Joined, NodeEvent, Output, Refusal, WatchId};
use super::record::{RankRecord, RoundRecord, Why};

/// How long it may take until one of the others has taken the place of a leader that is gone. Long against the
/// time in which the news of a new leader gets around, so that few try.
const SUCCESSION: Duration = Duration::from_millis(250);

impl Node {
    /// What the registration told of the group.
    pub(super) fn take_group(&mut self, now: Duration, reply: TxnReply) {
        let revision = reply.revision;
        let begins = self.watches != Watches::Informed;
        // What the watch has told already is newer, and in order.
        let news = begins || revision > self.group_revision;
        if begins {
            self.watches = Watches::Informed;
            (self.group_revision, self.informed_at) = (revision, revision);
        }
        for result in reply.results {
            match result {
                OpReply::Txn(_) if !news => {}
                OpReply::Txn(TxnReply { held: true, .. }) => {
                    self.leader_known = true;
                    self.become_leader(now, revision);
                }
                OpReply::Txn(TxnReply { results, .. }) => {
                    if let Some(OpReply::Got(Some(entry))) = results.into_iter().next() {
                        self.leader_is(now, &entry);
                    }
                }
                OpReply::Got(Some(entry)) if entry.key == self.keys.round() => self.round_is(&entry),
                OpReply::Got(Some(entry)) if begins => self.rank_is(Some(&entry)),
                OpReply::Got(_) | OpReply::Done => {}
            }
        }
        for (watch, update) in std::mem::take(&mut self.early) {
            match watch {
                // How things were before the reply.
                _ if matches!(&update, Update::Snapshot { revision: then, .. } if *then <= revision) => {}
                WatchId::Group => self.group_update(now, update),
                _ => self.rank_update(update),
            }
        }
    }

    /// Watches the group and this node's place in it, from now on.
    pub(super) fn open_watches(&mut self) {
        self.watches = Watches::Opening { group: false, rank: false };
        let rank = Watched::Key(self.keys.rank(&self.config.id));
        let group = Watched::Prefix(self.keys.group());
        self.outputs.push_back(Output::Watch { id: WatchId::Group, keys: group, from: None });
        self.outputs.push_back(Output::Watch { id: WatchId::Rank, keys: rank, from: None });
    }

    /// A watch has begun, or goes on while the registration is under way.
    pub(super) fn begun(&mut self, watch: WatchId, update: Update) {
        if let Watches::Opening { group, rank } = self.watches {
            let (group, rank) = (group || watch == WatchId::Group, rank || watch == WatchId::Rank);
            self.watches = if group && rank { Watches::Open } else { Watches::Opening { group, rank } };
        }
        if self.watches != Watches::None {
            self.early.push((watch, update));
        }
    }

    pub(super) fn group_update(&mut self, now: Duration, update: Update) {
        match update {
            Update::Events(events) => {
                for event in events {
                    match event {
                        Event::Put(entry) if entry.mod_revision > self.group_revision => {
                            self.group_revision = entry.mod_revision;
                            self.group_entry(now, &entry);
                        }
                        Event::Delete { key, revision } if revision > self.group_revision => {
                            self.group_revision = revision;
                            self.group_gone(now, &key, revision);
                        }
                        _ => {}
                    }
                }
            }
            Update::Snapshot { revision, entries } => {
                self.group_revision = revision;
                for key in [self.keys.leader(), self.keys.round()] {
                    if !entries.iter().any(|entry| entry.key == key) {
                        self.group_gone(now, &key, revision);
                    }
                }
                for entry in &entries {
                    self.group_entry(now, entry);
                }
            }
        }
    }

    pub(super) fn group_entry(&mut self, now: Duration, entry: &Entry) {
        if entry.key == self.keys.leader() {
            self.leader_is(now, entry);
        } else if entry.key == self.keys.round() {
            self.round_is(entry);
        }
    }

    pub(super) fn group_gone(&mut self, now: Duration, key: &str, revision: i64) {
        if key == self.keys.leader() {
            // The one that is gone may be an earlier one than this node.
            if self.lead.as_ref().is_none_or(|lead| lead.term < revision) {
                self.leader_known = false;
                self.step_down();
                self.succeed(now);
            }
        } else if key == self.keys.round() {
            self.round_gone(revision);
        }
    }

    /// The round's record was not there at this revision. It may have been written since.
    pub(super) fn round_gone(&mut self, revision: i64) {
        self.round_missing |= self.round.as_ref().is_none_or(|(_, modified)| *modified < revision);
    }

    pub(super) fn leader_is(&mut self, now: Duration, entry: &Entry) {
        self.leader_known = true;
        self.campaign_at = None;
        // Also where the reply to the request that made it so was lost.
        if self.lease == Some(entry.lease) {
            self.become_leader(now, entry.create_revision);
        } else if self.lead.as_ref().is_some_and(|lead| lead.term < entry.create_revision) {
            self.step_down();
        }
    }

    /// Takes the place of a leader that is gone, after a random moment: few come early, and the larger the group
    /// the fewer, so that whoever is first is known to the others before they try.
    pub(super) fn succeed(&mut self, now: Duration) {
        let stands = self.standing.as_ref().is_some_and(|standing| standing.record.is_some());
        if !matches!(self.goal, Goal::In) || !stands || self.leader_known {
            return;
        }
        let nodes =
            self.round.as_ref().map_or(2, |(round, _)| round.world_size.max(round.news.joined).max(2));
        let random = self.random.f64().max(f64::MIN_POSITIVE);
        let part = (1.0 + random.ln() / (nodes as f64).ln()).max(0.0);
        self.campaign_at = Some(now + SUCCESSION.mul_f64(part));
    }

    pub(super) fn campaign(&mut self) {
        let (Some(lease), Some(standing)) = (self.lease, &self.standing) else { return };
        if self.leader_known || self.campaigning || !matches!(self.goal, Goal::In) {
            return;
        }
        let (leader, node) = (self.keys.leader(), self.keys.node(&self.config.id));
        let txn = Txn {
            when: vec![Condition::Missing(leader.clone()), Condition::ModifiedAt(node, standing.modified)],
            then: vec![self.put_leader(lease)],
            otherwise: vec![Op::Get(leader)],
        };
        self.campaigning = true;
        self.request(Task::Campaign, Request::Txn(txn));
    }

    pub(super) fn campaigned(&mut self, now: Duration, reply: Result<Reply, Failure>) {
        self.campaigning = false;
        match reply {
            Ok(Reply::Txn(reply)) if reply.held => {
                if self.lease.is_some() && reply.revision > self.group_revision {
                    self.leader_known = true;
                    self.become_leader(now, reply.revision);
                }
            }
            Ok(Reply::Txn(reply)) => match reply.results.first() {
                // The watch tells of it too, and in its order.
                Some(OpReply::Got(Some(entry))) if entry.mod_revision > self.group_revision => {
                    self.leader_is(now, entry);
                }
                Some(OpReply::Got(Some(_))) => {}
                // No leader, so it was this node's own key: it is gone with its lease, or another process has it.
                _ if reply.revision >= self.group_revision => self.standing = None,
                _ => {}
            },
            Err(Failure::LeaseGone) => self.lose_lease(),
            _ => {
                if !self.leader_known {
                    let random = self.random.f64();
                    self.campaign_at = Some(now + self.backoff.next(random));
                }
            }
        }
    }

    /// The round as it stands; news of it may be among what is known already.
    pub(super) fn round_is(&mut self, entry: &Entry) {
        if self.round.as_ref().is_some_and(|(_, modified)| *modified >= entry.mod_revision) {
            return;
        }
        match serde_json::from_str::<RoundRecord>(&entry.value) {
            Ok(record) => {
                self.round = Some((record, entry.mod_revision));
                self.round_missing = false;
                self.settle();
            }
            Err(error) => {
                self.refuse(Refusal::Corrupt { key: entry.key.clone(), problem: error.to_string() });
            }
        }
    }

    pub(super) fn rank_update(&mut self, update: Update) {
        let entry = match update {
            Update::Events(events) => match events.into_iter().next_back() {
                Some(Event::Put(entry)) if entry.mod_revision > self.informed_at => Some(entry),
                Some(Event::Delete { revision, .. }) if revision > self.informed_at => None,
                _ => return,
            },
            Update::Snapshot { entries, .. } => entries.into_iter().next(),
        };
        self.rank_is(entry.as_ref());
    }

    pub(super) fn rank_is(&mut self, entry: Option<&Entry>) {
        self.rank = None;
        let Some(entry) = entry else { return };
        match parse::<RankRecord>(entry) {
            Ok(rank) => {
                let ours = rank.incarnation == self.config.incarnation;
                if ours && rank.left {
                    // It was in that round, whether it knew or not, and has left it.
                    self.member_of = self.member_of.max(rank.round);
                }
                if !ours
                    && self.joining
                    && self.unanswered
                    && let Some((record, _)) = &self.round
                {
                    // Another process of this name has a place now, and whether this one had one before is not told
                    // any more. It asks for a round after the last, as the leader may count it among the members.
                    self.member_of = self.member_of.max(record.round);
                }
                self.rank_modified = entry.mod_revision;
                self.rank = Some(rank).filter(|rank| ours && !rank.left);
                self.settle();
            }
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Draws the conclusions from what is known of the round.
    pub(super) fn settle(&mut self) {
        let Some((record, _)) = &self.round else { return };
        if !matches!(self.goal, Goal::In) {
            return;
        }
        if let Some(reason) = record.closed.clone() {
            if self.joining {
                self.refuse(Refusal::Closed(reason));
            } else {
                // Its program may still need the round's data: it stays until it is told to leave.
                self.tell_change(Change::Closed(reason));
            }
            return;
        }
        if self.member_of == 0
            && let Some(theirs) = &record.settings
            && let Some((setting, ours, theirs)) = self.config.settings.difference(theirs)
        {
            return self.refuse(Refusal::Mismatch { setting, ours, theirs });
        }
        if self.joining && record.round > self.member_of {
            let seat =
                self.rank.as_ref().filter(|rank| rank.plan == record.plan && rank.round == record.round);
            if let (Some(seat), Some(master)) = (seat, &record.master)
                && seat.rank == 0
                && (&master.address, master.port) != (&self.config.address, self.port)
            {
                // Planned with what this node said before, and the others cannot meet there: it asks again.
                self.member_of = record.round;
            } else if let (Some(seat), Some(master)) = (seat, &record.master) {
                let joined = Joined {
                    round: record.round,
                    rank: seat.rank,
                    world_size: record.world_size,
                    address: master.address.clone(),
                    port: master.port,
                    lease: record.lease,
                };
                self.joining = false;
                self.member_of = joined.round;
                self.told = None;
                self.tell(NodeEvent::Joined(joined));
            }
        }
        // A place in a round that is over already: this node was a member and has missed it. It asks again.
        if self.joining
            && let (Some((record, _)), Some(rank)) = (&self.round, &self.rank)
            && (self.member_of + 1..record.round).contains(&rank.round)
        {
            self.member_of = rank.round;
        }
        let Some((record, _)) = &self.round else { return };
        if self.joining {
            let (joined, spare) = (record.news.joined, record.news.spares > 0 && record.news.waiting == 0);
            let last_call = record.news.last_call_ms.map(Duration::from_millis);
            self.tell(NodeEvent::Progress { joined, last_call, spare });
        } else if self.member_of > 0
            && let Some(change) = change_in(record, self.member_of)
        {
            self.tell_change(change);
        }
    }

    pub(super) fn tell_change(&mut self, change: Change) {
        if self.told.as_ref() != Some(&change) {
            self.told = Some(change.clone());
            self.tell(NodeEvent::Changed(change));
        }
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.joining = false;
        self.tell(NodeEvent::Refused(refusal));
        self.depart();
    }

    /// Ends all watches and forgets the group.
    pub(super) fn forget_group(&mut self) {
        self.early.clear();
        if std::mem::replace(&mut self.watches, Watches::None) != Watches::None {
            self.outputs.push_back(Output::Unwatch(WatchId::Group));
            self.outputs.push_back(Output::Unwatch(WatchId::Rank));
        }
        self.step_down();
        (self.round, self.rank, self.round_missing) = (None, None, false);
        (self.campaign_at, self.leader_known, self.group_revision) = (None, false, 0);
    }

    /// This node's place in the last round, if it was in that, when it was written, and the lease that places hang
    /// on.
    pub(super) fn place(&self) -> Option<(RankRecord, i64, i64)> {
        let (record, _) = self.round.as_ref()?;
        let rank = self.rank.as_ref().filter(|rank| rank.plan == record.plan && !self.round_missing)?;
        Some((rank.clone(), self.rank_modified, record.lease))
    }
}

/// What the members of round `member_of` should know of it.
fn change_in(record: &RoundRecord, member_of: u64) -> Option<Change> {
    if record.round > member_of {
        return Some(Change::Excluded);
    }
    if let Some(lost) = record.news.lost.first() {
        let (node, rank) = (lost.node.clone(), lost.rank);
        return Some(match lost.why {
            Why::Died => Change::Died { node, rank },
            Why::Left | Why::Again => Change::Left { node, rank },
        });
    }
    if record.news.lost_count > 0 {
        return Some(Change::Excluded);
    }
    (record.news.waiting > 0).then_some(Change::Waiting(record.news.waiting))
}
