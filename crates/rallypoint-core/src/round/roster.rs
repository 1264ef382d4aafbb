//! Who is there and what has become of the members, as the leader sees it. Each event touches one node; nothing
//! here is counted anew for all.

use std::collections::{BTreeMap, HashMap};

use super::etcd::Entry;
use super::plan::{self, Candidate};
use super::record::{Lost, NAMED_LOSSES, News, NodeRecord, Wants, Why};
use super::settings::RunSettings;

#[derive(Debug)]
pub(super) struct Roster {
    settings: RunSettings,
    /// The last completed round.
    round: u64,
    nodes: BTreeMap<String, Present>,
    members: HashMap<String, Seat>,
    counts: [usize; CLASSES],
    lost: Vec<Lost>,
    lost_count: usize,
}

/// A node whose key is there.
#[derive(Debug)]
pub(super) struct Present {
    pub(super) record: NodeRecord,
    pub(super) created: i64,
    pub(super) modified: i64,
    /// It was in a round since it said this, and has not said anything since.
    spent: bool,
}

impl Present {
    pub(super) fn new(record: NodeRecord, entry: &Entry) -> Self {
        Present { record, created: entry.create_revision, modified: entry.mod_revision, spent: false }
    }
}

/// A member's place in the last round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) rank: usize,
    pub(super) incarnation: u64,
    /// It has left in good order.
    pub(super) left: bool,
    /// It was told to the others that the group has lost this one.
    pub(super) lost: bool,
    /// It is gone for good: who comes by its name is a newcomer.
    pub(super) gone: bool,
}

/// What a node is to the next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Nothing: not there, leaving, or not of this run.
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
            nodes: BTreeMap::new(),
            members: HashMap::new(),
            counts: [0; CLASSES],
            lost: Vec::new(),
            lost_count: 0,
        }
    }

    /// A round was completed, with these members. `told` is what they were told of it since.
    pub(super) fn complete(&mut self, round: u64, members: HashMap<String, Seat>, told: &News) {
        let mut excluded = Vec::new();
        for id in self.members.keys().filter(|id| !members.contains_key(*id)) {
            if self.class(id) == Class::Running {
                excluded.push(id.clone());
            }
        }
        for id in excluded {
            self.spend(&id, i64::MAX);
        }
        self.round = round;
        self.members = members;
        self.lost.clone_from(&told.lost);
        self.lost_count = told.lost_count;
        for lost in &told.lost {
            if let Some(seat) = self.members.get_mut(&lost.node) {
                seat.lost = true;
                seat.gone = !self.nodes.contains_key(&lost.node);
            }
        }
        self.counts = [0; CLASSES];
        let others = self.nodes.keys().filter(|id| !self.members.contains_key(*id));
        for id in self.members.keys().chain(others) {
            self.counts[self.class(id) as usize] += 1;
        }
    }

    /// A node was in a round that was planned at this revision, and that is over.
    pub(super) fn spend(&mut self, id: &str, planned: i64) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.spent |= node.modified < planned;
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

    fn class(&self, id: &str) -> Class {
        let (seat, node) = (self.members.get(id), self.nodes.get(id));
        let joins =
            |node: &Present| node.record.wants == Wants::Join && node.record.settings == self.settings;
        match (seat, node) {
            (None, Some(node)) if joins(node) && !node.spent => Class::Newcomer,
            (None, _) => Class::None,
            // It has given its place up, and came back.
            (Some(seat), Some(node)) if seat.left && joins(node) => Class::Newcomer,
            (Some(seat), None) if seat.lost => Class::None,
            (Some(_), None) => Class::Missing,
            (Some(seat), Some(node)) if seat.incarnation != node.record.incarnation => match joins(node) {
                true if seat.gone => Class::Newcomer,
                true => Class::Survivor,
                false => Class::None,
            },
            (Some(_), Some(node)) if node.record.wants == Wants::Leave => Class::None,
            (Some(_), Some(node)) if joins(node) && node.record.round >= self.round => Class::Survivor,
            (Some(_), Some(_)) => Class::Running,
        }
    }

    fn count(&self, class: Class) -> usize {
        self.counts[class as usize]
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut Self)) {
        self.counts[self.class(id) as usize] -= usize::from(self.knows(id));
        change(self);
        self.counts[self.class(id) as usize] += usize::from(self.knows(id));
    }

    /// Whether it is there, or a member.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.members.contains_key(id) || self.nodes.contains_key(id)
    }

    /// A node's key was written.
    pub(super) fn put(&mut self, id: &str, node: Present) {
        // A fresh read tells what is known already, too.
        if self.nodes.get(id).is_some_and(|known| known.modified == node.modified) {
            return;
        }
        self.change(id, |roster| drop(roster.nodes.insert(id.to_owned(), node)));
        self.look_at(id);
    }

    /// Tells whether the group has lost a member whose key is there.
    fn look_at(&mut self, id: &str) {
        let (Some(seat), Some(node)) = (self.members.get(id), self.nodes.get(id)) else { return };
        let record = &node.record;
        let why = if record.wants == Wants::Leave {
            Why::Left
        } else if record.incarnation != seat.incarnation {
            Why::Died
        } else if self.class(id) == Class::Survivor {
            Why::Again
        } else {
            return;
        };
        if why == Why::Left {
            self.change(id, |roster| {
                roster.members.entry(id.to_owned()).and_modify(|seat| seat.left = true);
            });
        }
        self.lose(id, why);
    }

    /// A node's key is gone. A member is dead with it, unless `spared` for now: etcd itself was away.
    pub(super) fn remove(&mut self, id: &str, spared: bool) {
        self.change(id, |roster| drop(roster.nodes.remove(id)));
        match self.members.get(id) {
            Some(seat) if seat.lost => self.change(id, |roster| {
                roster.members.entry(id.to_owned()).and_modify(|seat| seat.gone = true);
            }),
            Some(_) if !spared => self.lose(id, Why::Died),
            _ => {}
        }
    }

    /// Looks at all members anew. Whoever is missing is dead, unless `spared` for now.
    pub(super) fn look_at_all(&mut self, spared: bool) {
        let mut members: Vec<_> =
            self.members.iter().map(|(id, seat)| (seat.rank, seat.left, id.clone())).collect();
        members.sort();
        for (_, left, id) in members {
            match self.class(&id) {
                Class::Missing if left => self.lose(&id, Why::Left),
                Class::Missing if !spared => self.lose(&id, Why::Died),
                _ => self.look_at(&id),
            }
        }
    }

    fn lose(&mut self, id: &str, why: Why) {
        let Some(Seat { lost: false, rank, .. }) = self.members.get(id).copied() else { return };
        let gone = !self.nodes.contains_key(id);
        self.change(id, |roster| {
            let seat = roster.members.entry(id.to_owned());
            seat.and_modify(|seat| (seat.lost, seat.gone) = (true, gone));
        });
        self.lost_count += 1;
        if self.lost.len() < NAMED_LOSSES {
            self.lost.push(Lost { node: id.to_owned(), rank, why });
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
        self.count(Class::Running) + self.count(Class::Missing)
    }

    /// Whether somebody's key is gone of whom it is not known whether he died.
    pub(super) fn is_unsure(&self) -> bool {
        self.count(Class::Missing) > 0
    }

    /// What the members should know.
    pub(super) fn news(&self) -> News {
        let newcomers = self.count(Class::Newcomer);
        let room = self.settings.max_nodes.saturating_sub(self.survivors() + self.outstanding());
        let waiting = if self.round == 0 { 0 } else { newcomers.min(room) };
        let spares = newcomers.saturating_sub(room);
        News {
            lost: self.lost.clone(),
            lost_count: self.lost_count,
            waiting,
            spares,
            joined: self.joined(),
            last_call_ms: None,
        }
    }

    /// Whether there is a reason for another round.
    pub(super) fn wants_a_round(&self) -> bool {
        let room = self.settings.max_nodes > self.survivors() + self.outstanding();
        self.round == 0 || self.lost_count > 0 || (room && self.count(Class::Newcomer) > 0)
    }

    /// The nodes of the next round, by rank.
    pub(super) fn seats(&self) -> Vec<String> {
        let candidates = self.nodes.iter().filter_map(|(id, node)| {
            let class = self.class(id);
            let last_rank = (class == Class::Survivor).then(|| self.members[id].rank);
            matches!(class, Class::Survivor | Class::Newcomer).then_some(Candidate {
                id,
                address: &node.record.address,
                rack: &node.record.rack,
                hint: &node.record.hint,
                arrived: node.created,
                last_rank,
            })
        });
        plan::seats(&self.settings, candidates.collect()).into_iter().map(str::to_owned).collect()
    }
}
