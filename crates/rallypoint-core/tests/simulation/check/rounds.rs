//! What is checked when the group's record is written: each round, its members and their ranks, and that closed is final.

use std::collections::{BTreeMap, BTreeSet};

use rallypoint_core::round::{Entry, NodeRecord, RankPolicy, RankRecord, RoundRecord, Wants};

use super::{Check, Committed, Violation, Who, parse, promise};
use crate::etcd::Etcd;
use crate::keeper::{keeps_out, rack_of};
use crate::timeline;

impl Check {
    pub(super) fn written(&mut self, etcd: &Etcd, entry: &Entry) -> Result<(), Violation> {
        let record: RoundRecord = parse(entry)?;
        let before = std::mem::replace(&mut self.round, record.clone());
        timeline::check(etcd, &self.keys, entry, &record, &before)?;
        promise!(3, record.round >= before.round, "after round {} came {}", before.round, record.round);
        if let Some(reason) = &before.closed {
            promise!(
                4,
                record.closed.as_ref() == Some(reason),
                "closed ({reason}) became {:?}",
                record.closed
            );
            promise!(4, record.round == before.round, "round {} came after the run was closed", record.round);
        } else if let Some(reason) = &record.closed {
            self.reasons.insert(reason.clone());
            self.closed_at = self.now;
            self.closed(&record, reason)?;
        }
        if !record.has_round() {
            // A round that nobody is in any more, or one that was lost with those after it.
            let over = self.rounds.get(&before.plan).is_some_and(|round| {
                let there = |(id, incarnation): &Who| {
                    self.holders.get(id) == Some(incarnation) && !self.gone.contains(id)
                };
                // Or one that was formed of what somebody had wanted before a later one that was lost.
                let later = |(id, incarnation): &Who| {
                    self.claims.get(id).is_some_and(|(of, seat)| of == incarnation && *seat > before.round)
                };
                let members = || round.members.keys();
                self.losses > round.losses || !members().any(there) || members().any(later)
            });
            promise!(3, !before.has_round() || over, "round {} was taken back", before.round);
            self.rounds.entry(before.plan).and_modify(|round| round.withdrawn = true);
            return Ok(());
        }
        if record.plan == before.plan {
            let same = |a: &RoundRecord, b: &RoundRecord| {
                (a.plan == b.plan, a.world_size == b.world_size, a.master == b.master) == (true, true, true)
            };
            promise!(2, same(&record, &before), "round {} was rewritten", record.round);
            return Ok(());
        }
        self.committed(etcd, entry.mod_revision, &record, &before.plan)
    }

    fn closed(&self, record: &RoundRecord, reason: &str) -> Result<(), Violation> {
        promise!(4, !reason.is_empty(), "the run was closed without a reason");
        let members = self.rounds.get(&record.plan).map(|round| &round.members);
        // Where the record was lost, any member of its round will do.
        let by_member = self.closers.iter().any(|who| match members {
            Some(members) => members.contains_key(who),
            None => self.last.contains_key(who),
        });
        promise!(
            4,
            by_member || self.operator_closed,
            "round {} was closed ({reason}) by none of its members; those who asked: {:?}",
            record.round,
            self.closers
        );
        Ok(())
    }

    fn committed(
        &mut self,
        etcd: &Etcd,
        revision: i64,
        record: &RoundRecord,
        before: &str,
    ) -> Result<(), Violation> {
        let (round, n) = (record.round, record.world_size);
        self.commits += 1;
        promise!(
            1,
            (self.settings.min_nodes..=self.settings.max_nodes).contains(&n),
            "round {round} has {n} members, of {} to {}",
            self.settings.min_nodes,
            self.settings.max_nodes
        );
        let mut members = BTreeMap::new();
        let mut ranks = Vec::new();
        let mut follows = None;
        let ranks_key = self.keys.ranks();
        for entry in etcd.prefix(&ranks_key) {
            let rank: RankRecord = parse(entry)?;
            if rank.plan == record.plan && rank.round == round {
                members.insert((entry.key[ranks_key.len()..].to_owned(), rank.incarnation), rank.rank);
                ranks.push(rank.rank);
                follows = follows.or(rank.previous.map(|previous| previous.plan));
            }
        }
        ranks.sort_unstable();
        promise!(1, ranks.iter().copied().eq(0..n), "round {round} of {n} has the ranks {ranks:?}");
        let Some(master) = record.master.clone() else {
            return Err(Violation { promise: 2, what: format!("round {round} has no master") });
        };
        let Some(entry) = etcd.get(&self.keys.node(&master.node)) else {
            let what = format!("round {round} at {revision}: its master {} is not alive", master.node);
            return Err(Violation { promise: 2, what });
        };
        let node: NodeRecord = parse(entry)?;
        let rank = members.get(&(master.node.clone(), node.incarnation));
        promise!(2, rank == Some(&0), "round {round}: {} has rank {rank:?} and is the master", master.node);
        promise!(
            2,
            (&node.address, node.port) == (&master.address, master.port),
            "round {round}: the master is {master:?} and says {node:?}"
        );
        promise!(2, node.wants == Wants::Join, "round {round}: the master wants to {:?}", node.wants);
        // A master that has heard of an earlier round has used the port that it had then.
        let from_before = entry.mod_revision <= self.lost_at;
        let used = |at: &(&String, &Committed)| {
            at.1.master == master && self.reported.contains_key(&(at.0.clone(), master.node.clone()))
        };
        if let Some((before, _)) = self.rounds.iter().find(used).filter(|_| !from_before) {
            let what = format!("round {round} has the master of round {before}: {master:?}");
            return Err(Violation { promise: 2, what });
        }
        if let Some(last) = self.rounds.get(before).filter(|last| last.losses == self.losses) {
            self.kept_ranks(last, round, &members)?;
        }
        let kept_out = self.keys.exclusions();
        for (id, _) in members.keys() {
            let exclusion = etcd.prefix(&kept_out).find(|entry| keeps_out(&entry.value, id));
            promise!(13, exclusion.is_none(), "round {round} seats {id}, in spite of {exclusion:?}");
        }
        if let Some(size) = self.settings.policy.segment_size() {
            self.whole_segments(size.get(), round, &members)?;
        }
        let again = self.rounds.values().any(|committed| committed.round == round);
        promise!(3, !again || self.losses > 0, "round {round} was completed twice");
        self.gone = self.who_is_gone(etcd, &members)?;
        let (lease, losses) = (record.lease, self.losses);
        let (at, withdrawn, gone) = (self.now, false, self.gone.clone());
        let committed =
            Committed { round, world_size: n, master, lease, members, follows, losses, at, withdrawn, gone };
        let before = self.rounds.insert(record.plan.clone(), committed);
        let again = before.is_some_and(|before| before.losses == losses);
        promise!(3, !again, "the plan {} was completed twice", record.plan);
        self.left_before = std::mem::take(&mut self.left);
        self.look_who_waits(etcd);
        Ok(())
    }

    /// Each segment is of one rack.
    fn whole_segments(
        &self,
        size: usize,
        round: u64,
        members: &BTreeMap<Who, usize>,
    ) -> Result<(), Violation> {
        let n = members.len();
        promise!(15, n.is_multiple_of(size), "round {round} has {n} members, in segments of {size}");
        let mut racks: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for ((id, _), rank) in members {
            racks.entry(rank / size).or_default().insert(rack_of(id, self.racks.unwrap_or(1)));
        }
        let mixed = racks.iter().find(|(_, racks)| racks.len() > 1);
        promise!(15, mixed.is_none(), "round {round} has a segment of several racks: {mixed:?}; {members:?}");
        Ok(())
    }

    /// Who was in the last round, and has not been away since, keeps its rank.
    fn kept_ranks(
        &self,
        last: &Committed,
        round: u64,
        members: &BTreeMap<Who, usize>,
    ) -> Result<(), Violation> {
        if self.settings.policy != RankPolicy::Sticky {
            return Ok(());
        }
        // Who has left, even if it has come back since, has given up its rank; the leader may have heard of that late.
        let away =
            |id: &String| [&self.gone, &self.left, &self.left_before].iter().any(|set| set.contains(id));
        // A process may have a rank from a later round that was lost, which its group may be too small for, and know nothing of
        // this one: another process had its name meanwhile, or it was planned with by what it had wanted before.
        let of_a_lost_round = |who: &Who, rank: usize| {
            let lost = |it: &&Committed| it.losses != self.losses && it.round > last.round;
            let keeps = |had: &usize| *had == rank || *had >= members.len();
            self.rounds.values().filter(lost).any(|it| it.members.get(who).is_some_and(keeps))
        };
        for (who, rank) in members.iter().filter(|(who, _)| !away(&who.0)) {
            let had = last.members.iter().find(|((id, _), _)| *id == who.0).map(|(_, rank)| *rank);
            let kept = had.is_none_or(|had| had == *rank || had >= members.len());
            let kept = kept || of_a_lost_round(who, *rank);
            promise!(7, kept, "{who:?} had rank {had:?} of round {} and has {rank} of {round}", last.round);
        }
        Ok(())
    }
}
