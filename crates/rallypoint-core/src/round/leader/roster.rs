//! Who is there and what has become of the members, as the leader sees it. Each event touches one node; nothing
//! here is counted anew for all.
//!
//! What a node is to the next round (its class) follows from its key and from its place in the last one:
//!
//! ```text
//!                   asks for a round                 a round with it in it
//!   None ──────────────────────────▶ Newcomer ─────────────────────────────▶ Running
//!    ▲  ▲                                                                   │  ▲  │
//!    │  └── leaves, is kept out, or is dead ── Missing ◀── its key is gone ─┘  │  │ asks for
//!    │                                            └──── its key is back ───────┘  ▼ another
//!    └──────────────────── leaves, is kept out, or is dead ──────────────────── Survivor
//! ```

mod claims;
mod losses;
mod member;
mod racks;
mod room;
mod seated;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use self::losses::Losses;
use self::member::Fate;
pub(super) use self::member::{Asked, Member};
use self::racks::Racks;
use self::room::Segments;
use self::seated::Seated;
use super::super::etcd::Entry;
use super::super::exclusion::Exclusions;
use super::super::record::{News, NodeRecord, Wants, Why, parse};
use super::super::settings::RunSettings;
use super::seating::{self, Candidate};

#[derive(Debug)]
pub(super) struct Roster {
    settings: RunSettings,
    /// The last completed round, and its plan.
    round: u64,
    plan: String,
    /// Its members' number.
    size: usize,
    nodes: BTreeMap<String, Present>,
    /// The latest round that any node says it had a seat in.
    latest_claim: u64,
    members: HashMap<String, Member>,
    seated: Seated,
    /// Members of whom nothing is known but that there are so many: etcd has lost their places. They may come back.
    unnamed: usize,
    counts: [usize; CLASSES],
    /// Where only whole segments are seated: those who are ready for the next round, and the newcomers among them.
    segments: Option<Segments>,
    /// Who is kept out of the run.
    exclusions: Exclusions,
    /// Those of class `Missing`. When many die at once, a look at all others for each of them would take too long.
    missing: BTreeSet<String>,
    losses: Losses,
    /// etcd has lost what it had of the round: its members meet again.
    state_lost: bool,
}

/// What a leader knows of the last round when it begins.
#[derive(Debug, Default)]
pub(super) struct LastRound {
    pub(super) round: u64,
    pub(super) plan: String,
    pub(super) world_size: usize,
    pub(super) members: HashMap<String, Member>,
    /// What they were told of it since.
    pub(super) told: News,
    pub(super) state_lost: bool,
}

/// A node whose key is there.
#[derive(Debug)]
pub(super) struct Present {
    pub(super) record: NodeRecord,
    /// As it is written there.
    pub(super) text: String,
    pub(super) created: i64,
    pub(super) modified: i64,
    /// It was in a round since it said this, and has not said anything since.
    spent: bool,
}

/// What a node is to the next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Nothing: not there, leaving, kept out, or not of this run.
    None,
    /// A member at work.
    Running,
    /// A member whose key is gone, and of which it is not known yet whether it died.
    Missing,
    /// A member that is ready for the next round.
    Survivor,
    /// Somebody else who is ready for the next round.
    Newcomer,
}
const CLASSES: usize = 5;

impl Roster {
    pub(super) fn new(settings: RunSettings) -> Self {
        Roster {
            settings,
            round: 0,
            plan: String::new(),
            size: 0,
            nodes: BTreeMap::new(),
            latest_claim: 0,
            members: HashMap::new(),
            seated: Seated::default(),
            unnamed: 0,
            counts: [0; CLASSES],
            segments: settings.policy.segment_size().map(Segments::new),
            exclusions: Exclusions::default(),
            missing: BTreeSet::new(),
            losses: Losses::default(),
            state_lost: false,
        }
    }

    /// A round was completed, now or before this node led.
    pub(super) fn begin(&mut self, last: LastRound) {
        let mut excluded = Vec::new();
        // Of a round that was lost all members ask for another one anyway.
        let others = self.members.keys().filter(|id| !last.state_lost && !last.members.contains_key(*id));
        for id in others {
            // Also who is kept out: what it wanted before it has had.
            if self.class_if_let_in(id) == Class::Running {
                excluded.push(id.clone());
            }
        }
        for id in excluded {
            self.nodes.entry(id).and_modify(|node| node.spent = true);
        }
        for (id, member) in &last.members {
            self.seated.add(id, member.incarnation, last.round);
        }
        (self.round, self.plan, self.members) = (last.round, last.plan, last.members);
        (self.size, self.state_lost) = (last.world_size, last.state_lost);
        self.losses = Losses::told(&last.told);
        for lost in &last.told.lost {
            if let Some(member) = self.members.get_mut(&lost.node) {
                member.is_lost(!self.nodes.contains_key(&lost.node));
            }
        }
        // Of those whose place is gone, the node's own word counts.
        let ids: Vec<String> = self.nodes.keys().cloned().collect();
        self.unnamed = 0;
        for id in ids {
            self.adopt(&id);
        }
        self.unnamed = last.world_size.saturating_sub(self.members.len());
        self.count_all();
    }

    fn count_all(&mut self) {
        self.counts = [0; CLASSES];
        self.missing.clear();
        if let Some(segments) = &mut self.segments {
            segments.clear();
        }
        let others = self.nodes.keys().filter(|id| !self.members.contains_key(*id));
        let ids: Vec<String> = self.members.keys().chain(others).cloned().collect();
        for id in ids {
            self.count_in(&id);
        }
    }

    /// etcd has lost what it had of the round.
    pub(super) fn lose_state(&mut self) {
        self.state_lost |= self.round > 0;
    }

    /// A process was in this round, which was planned at this revision, and that is over. What it said before it knew of
    /// the round may have been written after.
    pub(super) fn spend(&mut self, id: &str, incarnation: u64, planned: i64, round: u64) {
        self.seated.add(id, incarnation, round);
        if let Some(node) = self.nodes.get_mut(id).filter(|node| node.record.incarnation == incarnation) {
            node.spent |= node.modified < planned || node.record.round < round;
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<&Present> {
        self.nodes.get(id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// The last round that any node here was in, or that was completed.
    pub(super) fn last_round(&self) -> u64 {
        self.nodes.values().map(|node| node.record.round).max().unwrap_or(0).max(self.round)
    }

    /// The last completed round.
    pub(super) fn last_completed(&self) -> u64 {
        self.round
    }

    fn class(&self, id: &str) -> Class {
        if self.is_kept_out(id) { Class::None } else { self.class_if_let_in(id) }
    }

    /// What it is, or would be if it were not kept out.
    fn class_if_let_in(&self, id: &str) -> Class {
        let (member, node) = (self.members.get(id), self.nodes.get(id));
        let joins =
            |node: &Present| node.record.wants == Wants::Join && node.record.settings == self.settings;
        match (member, node) {
            (None, Some(node)) if joins(node) && !node.spent => Class::Newcomer,
            (None, _) => Class::None,
            // It has given its place up, and came back.
            (Some(member), Some(node)) if member.has_left() && joins(node) && !node.spent => Class::Newcomer,
            (Some(member), Some(_)) if member.has_left() => Class::None,
            (Some(member), None) if member.is_told() => Class::None,
            (Some(_), None) => Class::Missing,
            (Some(member), Some(node)) if member.incarnation != node.record.incarnation => {
                match joins(node) && !node.spent {
                    true if member.fate == (Fate::Lost { gone: true }) => Class::Newcomer,
                    true => Class::Survivor,
                    false => Class::None,
                }
            }
            (Some(_), Some(node)) if node.record.wants == Wants::Leave => Class::None,
            (Some(_), Some(node)) if joins(node) && node.record.round >= self.round => Class::Survivor,
            (Some(_), Some(_)) => Class::Running,
        }
    }

    fn count(&self, class: Class) -> usize {
        self.counts[class as usize]
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut Self)) {
        if self.knows(id) {
            let class = self.class(id);
            self.counts[class as usize] -= 1;
            self.count_rack(id, class, Racks::remove);
        }
        change(self);
        if self.knows(id) {
            self.count_in(id);
        }
    }

    fn count_in(&mut self, id: &str) {
        let class = self.class(id);
        self.counts[class as usize] += 1;
        self.count_rack(id, class, Racks::add);
        if class == Class::Missing {
            self.missing.insert(id.to_owned());
        } else {
            self.missing.remove(id);
        }
    }

    /// Members whose key is gone, and of whom it is not known whether they died.
    fn missing(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.missing.iter().filter_map(|id| Some((id.as_str(), self.members.get(id)?)))
    }

    /// Whether it is there, or a member.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.members.contains_key(id) || self.nodes.contains_key(id)
    }

    /// A node's key was written.
    pub(super) fn put(&mut self, id: &str, mut node: Present) {
        // A fresh read tells what is known already, and what the watch has not told yet.
        if self.nodes.get(id).is_some_and(|known| known.modified >= node.modified) {
            return;
        }
        self.latest_claim = self.latest_claim.max(node.record.seat.as_ref().map_or(0, |seat| seat.round));
        node.spent |= self.seated.is_outdated(id, &node.record);
        self.change(id, |roster| {
            if let Some(member) = roster.members.get_mut(id) {
                member.key_is_there(node.record.incarnation);
            }
            roster.nodes.insert(id.to_owned(), node);
            roster.adopt(id);
        });
        self.take_back(id);
        self.look_at(id);
    }

    /// What stands under a node's key. What is not a node's record is no node, and what hangs on no lease was written by
    /// somebody else: it would be there when the node is gone.
    pub(super) fn read(&mut self, id: &str, entry: &Entry) {
        let (created, modified) = (entry.create_revision, entry.mod_revision);
        match parse(entry) {
            Ok(record) if entry.lease != 0 => {
                let text = entry.value.clone();
                self.put(id, Present { record, text, created, modified, spent: false });
            }
            _ => self.remove(id, modified),
        }
    }

    /// A node's key is gone. Whether a member is dead with it turns out later.
    pub(super) fn remove(&mut self, id: &str, revision: i64) {
        if self.nodes.get(id).is_some_and(|known| known.modified > revision) {
            return;
        }
        self.change(id, |roster| {
            roster.nodes.remove(id);
            roster.members.entry(id.to_owned()).and_modify(Member::key_is_gone);
        });
    }

    /// Members whose key is gone, and that nobody has asked yet whether they are there. While others are being asked,
    /// these wait: when many die, one request is for many of them.
    pub(super) fn unasked(&self) -> Vec<(String, Member)> {
        if self.missing().any(|(_, member)| member.asked() == Some(Asked::Asking)) {
            return Vec::new();
        }
        let missing = self.missing().filter(|(_, member)| member.asked() == Some(Asked::No));
        missing.map(|(id, member)| (id.to_owned(), *member)).collect()
    }

    /// Members are asked whether they are there.
    pub(super) fn ask(&mut self, ids: &[String], asked: Asked) {
        for id in ids {
            if let Some(member) = self.members.get_mut(id) {
                member.ask(asked);
            }
        }
    }

    /// What came of that request. Who has come back meanwhile need not be asked any more.
    pub(super) fn were_asked(&mut self, ids: &[String], was: Asked, asked: Asked) {
        for id in ids {
            if let Some(member) = self.members.get_mut(id).filter(|it| it.asked() == Some(was)) {
                member.ask(asked);
            }
        }
    }

    /// When the first of those that were asked has had the time to answer.
    pub(super) fn answer_due(&self) -> Option<Duration> {
        self.missing().filter_map(|(_, member)| member.answer_due()).min()
    }

    /// Members that were asked, and have not answered by now.
    pub(super) fn silent(&self, now: Duration) -> Vec<String> {
        let silent = self.missing().filter(|(_, it)| it.answer_due().is_some_and(|at| at <= now));
        let mut members: Vec<_> = silent.map(|(id, member)| (member.rank, id.to_owned())).collect();
        members.sort();
        members.into_iter().map(|(_, id)| id).collect()
    }

    /// Members that were asked are looked for.
    pub(super) fn look_for(&mut self, ids: &[String], now: Duration) {
        for id in ids {
            self.members.entry(id.clone()).and_modify(|member| member.look(now));
        }
    }

    /// The look of that time was not answered. They have the time to answer again.
    pub(super) fn look_failed(&mut self, ids: &[String], since: Duration, now: Duration) {
        for id in ids {
            if let Some(member) = self.members.get_mut(id).filter(|it| it.is_looked_for(since)) {
                member.look_failed(now);
            }
        }
    }

    /// A member was asked, and its key was read once more, in a look that began then. If it is still not there, and
    /// was not before, the member is dead. If there was something else to hear of it since, that counts: its key may be gone again.
    pub(super) fn looked_for(&mut self, id: &str, since: Duration, now: Duration, found: Option<&Entry>) {
        let Some(member) = self.members.get_mut(id).filter(|it| it.is_looked_for(since)) else { return };
        match found {
            Some(entry) => self.read(id, entry),
            None if member.is_given_up(now) => self.lose(id, Why::Died),
            None => {}
        }
    }

    /// Nodes that are ready for the next round.
    pub(super) fn joined(&self) -> usize {
        self.count(Class::Survivor) + self.count(Class::Newcomer)
    }

    /// Members that are ready for the next round.
    pub(super) fn survivors(&self) -> usize {
        self.count(Class::Survivor)
    }

    /// Members that may still come back to meet again.
    pub(super) fn outstanding(&self) -> usize {
        self.count(Class::Running) + self.count(Class::Missing) + self.unnamed
    }

    /// Whether somebody's key is gone of whom it is not known whether he died.
    pub(super) fn is_unsure(&self) -> bool {
        self.count(Class::Missing) + self.unnamed > 0
    }

    /// Whether etcd has lost what it had of the last round.
    pub(super) fn has_lost_state(&self) -> bool {
        self.state_lost
    }

    /// Whether the group of the last round is as it was.
    pub(super) fn is_whole(&self) -> bool {
        self.losses.count() == 0 && !self.state_lost
    }

    /// How many members the last round had.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The member of the last round by this name.
    pub(super) fn member(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    /// How many members of the last round are there, as the processes that they were in it. None as long as that is not known.
    pub(super) fn present(&self) -> Option<usize> {
        if self.plan.is_empty() || self.state_lost || self.is_unsure() {
            return None;
        }
        let is_there = |(id, member): &(&String, &Member)| {
            self.nodes.get(*id).is_some_and(|node| node.record.incarnation == member.incarnation)
        };
        Some(self.members.iter().filter(is_there).count())
    }

    /// The plan of the last round.
    pub(super) fn plan(&self) -> &str {
        &self.plan
    }

    /// What the members should know.
    pub(super) fn news(&self) -> News {
        let (useful, spares) = self.useful();
        let waiting = if self.plan.is_empty() { 0 } else { useful };
        News {
            lost: self.losses.first_named(),
            lost_count: self.losses.count(),
            waiting,
            spares,
            joined: self.joined(),
            seatable: self.segments.as_ref().map(|_| self.seatable()),
            last_call_ms: None,
        }
    }

    /// Whether there is a reason for another round.
    pub(super) fn wants_a_round(&self) -> bool {
        self.round == 0 || self.plan.is_empty() || !self.is_whole() || self.useful().0 > 0
    }

    /// The nodes of the next round, by rank.
    pub(super) fn seats(&self) -> Vec<String> {
        let claimed = self.claimed_plan();
        let candidates = self.nodes.iter().filter_map(|(id, node)| {
            let class = self.class(id);
            let last_rank = match claimed {
                Some(plan) => {
                    node.record.seat.as_ref().filter(|seat| seat.plan == plan).map(|seat| seat.rank)
                }
                None => (class == Class::Survivor).then(|| self.members[id].rank),
            };
            matches!(class, Class::Survivor | Class::Newcomer).then_some(Candidate {
                id,
                address: &node.record.address,
                rack: &node.record.rack,
                hint: &node.record.hint,
                arrived: node.created,
                last_rank,
            })
        });
        seating::seats(&self.settings, candidates.collect()).into_iter().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests;
