//! What nodes say of the rounds that they were in, where etcd knows nothing of those.

use std::collections::{BTreeMap, HashMap};

use super::{Class, LastRound, Member, Present, Roster};
use crate::round::NodeConfig;

impl Roster {
    /// The round that a node says it had a seat in, where that is later than the last one that is known, or another of
    /// the same number: etcd has lost it. In one history there is no such thing. A group that is there and may be at
    /// work counts for more: who comes from a lost one is a newcomer to it. After a loss of data (`lost`) numbers tell
    /// nothing: a run may have begun anew. What an earlier process of the leader's own name says (`own`) is no claim: the leader
    /// has its name back soon. While one stands under a member's name, that member may be at work.
    pub(in super::super) fn claimed(&self, own: &NodeConfig, lost: bool) -> Option<LastRound> {
        let is_overwritten =
            self.nodes.get(&own.id).is_some_and(|node| node.record.incarnation != own.incarnation);
        let is_itself = |member: &Member| member.incarnation == own.incarnation && !member.has_left();
        let is_in_it = is_overwritten && self.members.get(&own.id).is_some_and(is_itself);
        // Nobody was in any round: that must be cheap, for it is asked with each of many that come for the first.
        if self.latest_claim == 0
            || self.latest_claim < self.round && !lost
            || self.members.keys().any(|id| self.may_be_in_last_round(id))
            || is_in_it
        {
            return None;
        }
        let mut claims: BTreeMap<(u64, &str), (usize, usize)> = BTreeMap::new();
        let said = self.nodes.iter().filter(|(id, _)| !is_overwritten || **id != own.id);
        for seat in said.filter_map(|(_, node)| node.record.seat.as_ref()) {
            claims.entry((seat.round, &seat.plan)).or_insert((0, seat.world_size)).0 += 1;
        }
        // Of two rounds with one number, that with more members left.
        let claims = claims.into_iter().map(|((round, plan), (count, size))| (round, count, plan, size));
        // Of the same number can be one that was formed since, of what nodes wanted before the loss.
        let mut members = self.members.iter().filter_map(|(id, member)| Some((member, self.nodes.get(id)?)));
        let here = members.any(|(member, node)| node.record.incarnation == member.incarnation);
        let another = |plan: &str| plan != self.plan && !here;
        let lost = |round: u64, plan: &str| {
            round > self.round || (round == self.round || lost && round > 0) && another(plan)
        };
        let (round, _, plan, world_size) = claims.filter(|(round, _, plan, _)| lost(*round, plan)).max()?;
        Some(LastRound { round, plan: plan.to_owned(), world_size, state_lost: true, ..LastRound::default() })
    }

    /// The plan of a round after the last one that is known, by what nodes say: etcd was restored to a time before it. Their
    /// ranks are those of that one, also where its members are not all known yet. Not where somebody comes from the round
    /// that is known: then that is the later one, of a run that had begun anew.
    pub(super) fn claimed_plan(&self) -> Option<&str> {
        if self.latest_claim <= self.round {
            return None;
        }
        // By its own word, or as one that has taken a member's name.
        let of_the_known = |(id, node): (&String, &Present)| match &node.record.seat {
            Some(seat) if seat.plan == self.plan => true,
            Some(seat) if seat.round > self.round => false,
            _ => self.class(id) == Class::Survivor,
        };
        if self.nodes.iter().any(of_the_known) {
            return None;
        }
        let seats = self.nodes.values().filter_map(|node| node.record.seat.as_ref());
        let later = seats.filter(|seat| seat.round > self.round);
        later.max_by_key(|seat| (seat.round, &seat.plan)).map(|seat| seat.plan.as_str())
    }

    /// Whether all members of some other round are here, and ask for the next: whoever was with them is not waited for. In
    /// one history such a group was excluded whole. Or its run had begun anew when etcd had lost all data, and an older
    /// run was then restored, whose rounds and revisions may have higher numbers.
    pub(in super::super) fn has_a_whole_group(&self) -> bool {
        if self.latest_claim == 0 {
            return false;
        }
        let mut groups: HashMap<&str, (usize, usize)> = HashMap::new();
        for (id, node) in &self.nodes {
            if let Some(seat) = node.record.seat.as_ref().filter(|_| self.class(id) == Class::Newcomer) {
                groups.entry(&seat.plan).or_insert((0, seat.world_size)).0 += 1;
            }
        }
        groups.into_values().any(|(here, world_size)| here == world_size)
    }

    /// Takes a node for a member that says so, where its place is gone.
    pub(super) fn adopt(&mut self, id: &str) {
        let Some(node) = self.nodes.get(id).filter(|_| !self.members.contains_key(id)) else { return };
        let Some(seat) = node.record.seat.as_ref().filter(|seat| seat.plan == self.plan) else { return };
        if !self.plan.is_empty() && !self.members.values().any(|member| member.rank == seat.rank) {
            let mut member = Member::of(seat.rank, &node.record);
            if self.unnamed > 0 {
                self.unnamed -= 1;
            } else if self.losses.name_one() {
                member.is_lost(false);
            }
            self.members.insert(id.to_owned(), member);
        }
    }

    /// Whether an earlier process stands under the name of a member that is not known to be gone. The member has its name back
    /// soon. Its place tells when it was started, also where its key was never seen.
    fn is_overwritten(&self, id: &str) -> bool {
        let (Some(member), Some(node)) = (self.members.get(id), self.nodes.get(id)) else { return false };
        node.record.since < member.since && !member.is_gone()
    }

    fn may_be_in_last_round(&self, id: &str) -> bool {
        let later = |node: &Present| node.record.seat.as_ref().is_some_and(|seat| seat.round > self.round);
        // Who is kept out may be at work in it still.
        match self.class_if_let_in(id) {
            Class::Missing => true,
            _ if self.is_overwritten(id) => true,
            Class::Running | Class::Survivor => !self.nodes.get(id).is_some_and(later),
            Class::None | Class::Newcomer => false,
        }
    }
}
