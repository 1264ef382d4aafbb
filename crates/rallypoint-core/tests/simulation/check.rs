//! The promises that hold in every execution, checked at every step: 1 to 5 of the ten.
//!
//! What etcd holds is checked when it is written, and what the nodes report is checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rallypoint_core::round::{
    Change, Entry, Event, Joined, Keys, MasterRecord, NodeEvent, NodeRecord, RankRecord, RoundRecord,
    RunSettings, Wants,
};

use crate::etcd::{self, Etcd};
use crate::process::Process;

/// A promise that was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) promise: u8,
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {} is broken: {}", self.promise, self.what)
    }
}

/// Fails with what is broken, unless the condition holds.
macro_rules! promise {
    ($number:literal, $holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err($crate::check::Violation { promise: $number, what: format!($($what)+) });
        }
    };
}
pub(crate) use promise;

/// A process: its node's name and its incarnation.
type Who = (String, u64);

#[derive(Debug)]
pub(crate) struct Check {
    keys: Keys,
    settings: RunSettings,
    /// What the group's record said last.
    round: RoundRecord,
    rounds: BTreeMap<u64, Committed>,
    /// The last round that each process reported.
    last: BTreeMap<Who, u64>,
    /// Who reported to be in a round, by its plan.
    reported: BTreeMap<(String, String), u64>,
    closers: BTreeSet<Who>,
    operator_closed: bool,
    /// How often the run was begun: its record may be gone when nobody has held it for long.
    pub(crate) begun: u32,
    /// Which process has a node's key.
    holders: BTreeMap<String, u64>,
    /// Processes whose node's key was taken by another, and by which.
    replaced: BTreeMap<Who, u64>,
    /// Rounds completed.
    pub(crate) commits: u64,
}

/// A completed round.
#[derive(Debug)]
struct Committed {
    plan: String,
    world_size: usize,
    master: MasterRecord,
    lease: i64,
    members: BTreeMap<Who, usize>,
}

impl Check {
    pub(crate) fn new(run: &str, settings: RunSettings) -> Self {
        Check {
            keys: Keys::new(run),
            settings,
            round: nothing(),
            rounds: BTreeMap::new(),
            last: BTreeMap::new(),
            reported: BTreeMap::new(),
            closers: BTreeSet::new(),
            operator_closed: false,
            begun: 0,
            holders: BTreeMap::new(),
            replaced: BTreeMap::new(),
            commits: 0,
        }
    }

    /// The group's record.
    pub(crate) fn round(&self) -> &RoundRecord {
        &self.round
    }

    /// Whether a process has its node's key.
    pub(crate) fn holds_key(&self, process: &Process) -> bool {
        self.holders.get(&process.id) == Some(&process.incarnation)
    }

    /// The incarnation of the process that took the node's key from this one.
    pub(crate) fn replaced_by(&self, process: &Process) -> Option<u64> {
        self.replaced.get(&(process.id.clone(), process.incarnation)).copied()
    }

    /// Whether a process is a member of a round.
    pub(crate) fn was_in(&self, process: &Process, round: u64) -> bool {
        let who = (process.id.clone(), process.incarnation);
        self.rounds.get(&round).is_some_and(|round| round.members.contains_key(&who))
    }

    /// A process asked to close the run.
    pub(crate) fn called_close(&mut self, id: &str, incarnation: u64) {
        self.closers.insert((id.to_owned(), incarnation));
    }

    /// An operator closes the run.
    pub(crate) fn operator_closes(&mut self) {
        self.operator_closed = true;
    }

    /// What etcd has done at one revision.
    pub(crate) fn change(&mut self, etcd: &Etcd, change: &etcd::Change) -> Result<(), Violation> {
        for event in &change.events {
            match event {
                Event::Put(entry) => {
                    promise!(5, entry.lease != 0, "{} hangs on no lease", entry.key);
                    if entry.key == self.keys.round() {
                        self.written(etcd, entry)?;
                    } else if entry.key.starts_with(&self.keys.nodes()) {
                        let record: NodeRecord = parse(entry)?;
                        let id = self.keys.id_of(&entry.key).to_owned();
                        if let Some(before) = self.holders.insert(id.clone(), record.incarnation) {
                            self.replaced.insert((id.clone(), before), record.incarnation);
                        }
                        self.replaced.remove(&(id, record.incarnation));
                    }
                }
                Event::Delete { key, .. } if *key == self.keys.round() => self.round = nothing(),
                Event::Delete { key, .. } if key.starts_with(&self.keys.nodes()) => {
                    self.holders.remove(self.keys.id_of(key));
                }
                Event::Delete { key, .. } => {
                    let current = self.keys.store(self.round.round);
                    let lost = key.starts_with(&current) && self.round.closed.is_none();
                    promise!(2, !lost, "{key} was deleted while its round goes on");
                }
            }
        }
        Ok(())
    }

    fn written(&mut self, etcd: &Etcd, entry: &Entry) -> Result<(), Violation> {
        let record: RoundRecord = parse(entry)?;
        let before = std::mem::replace(&mut self.round, record.clone());
        self.begun += u32::from(before == nothing());
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
            self.closed(&record, reason)?;
        }
        if record.round == before.round {
            let same = |a: &RoundRecord, b: &RoundRecord| {
                (a.plan == b.plan, a.world_size == b.world_size, a.master == b.master) == (true, true, true)
            };
            promise!(2, before.round == 0 || same(&record, &before), "round {} was rewritten", record.round);
            return Ok(());
        }
        // The record was lost with the run's lease, and a leader knew it still.
        if before == nothing()
            && self.rounds.get(&record.round).is_some_and(|round| round.plan == record.plan)
        {
            return Ok(());
        }
        self.committed(etcd, entry.mod_revision, &record)
    }

    fn closed(&self, record: &RoundRecord, reason: &str) -> Result<(), Violation> {
        promise!(4, !reason.is_empty(), "the run was closed without a reason");
        let members = self.rounds.get(&record.round).map(|round| &round.members);
        let by_member =
            members.is_some_and(|members| self.closers.iter().any(|who| members.contains_key(who)));
        promise!(
            4,
            by_member || self.operator_closed,
            "round {} was closed ({reason}) by none of its members; those who asked: {:?}",
            record.round,
            self.closers
        );
        Ok(())
    }

    fn committed(&mut self, etcd: &Etcd, revision: i64, record: &RoundRecord) -> Result<(), Violation> {
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
        let ranks_key = self.keys.ranks();
        for entry in etcd.prefix(&ranks_key) {
            let rank: RankRecord = parse(entry)?;
            if rank.plan == record.plan && rank.round == round {
                members.insert((entry.key[ranks_key.len()..].to_owned(), rank.incarnation), rank.rank);
                ranks.push(rank.rank);
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
        let used = |(_, at): &(&u64, &Committed)| {
            at.master == master && self.reported.contains_key(&(at.plan.clone(), master.node.clone()))
        };
        if let Some((before, _)) = self.rounds.iter().find(used) {
            let what = format!("round {round} has the master of round {before}: {master:?}");
            return Err(Violation { promise: 2, what });
        }
        let committed =
            Committed { plan: record.plan.clone(), world_size: n, master, lease: record.lease, members };
        let again = self.rounds.insert(round, committed).is_some();
        promise!(3, !again || self.begun > 1, "round {round} was completed twice");
        Ok(())
    }

    /// What a process reports.
    pub(crate) fn event(
        &mut self,
        etcd: &Etcd,
        process: &Process,
        event: &NodeEvent,
    ) -> Result<(), Violation> {
        let who = (process.id.clone(), process.incarnation);
        match event {
            NodeEvent::Joined(joined) => self.joined(process, &who, joined),
            NodeEvent::Changed(change) => {
                promise!(3, self.last.contains_key(&who), "{who:?} is told {change:?} and is in no round");
                if let Change::Died { node, rank } | Change::Left { node, rank } = change {
                    let members = &self.rounds[&self.last[&who]].members;
                    let lost = members.iter().any(|((id, _), at)| id == node && at == rank);
                    promise!(7, lost, "{who:?} is told {change:?}, which is no member of its round");
                }
                Ok(())
            }
            NodeEvent::Left => {
                let left = etcd.get(&self.keys.node(&process.id)).map(parse::<NodeRecord>).transpose()?;
                let ours = left.is_some_and(|record| record.incarnation == process.incarnation);
                promise!(5, !ours, "{who:?} has left, and its key is there");
                Ok(())
            }
            NodeEvent::Progress { .. } | NodeEvent::Refused(_) | NodeEvent::Closed(_) => Ok(()),
        }
    }

    fn joined(&mut self, process: &Process, who: &Who, joined: &Joined) -> Result<(), Violation> {
        let Joined { round, rank, world_size, address, port, lease } = joined;
        let Some(committed) = self.rounds.get(round) else {
            return Err(Violation {
                promise: 2,
                what: format!("{who:?} is in round {round}, which is not complete"),
            });
        };
        let place = committed.members.get(who);
        promise!(1, place == Some(rank), "{who:?} reports rank {rank} of round {round} and has {place:?}");
        promise!(
            2,
            (*world_size, address, *port)
                == (committed.world_size, &committed.master.address, committed.master.port),
            "{who:?} reports {joined:?}, and the round is {committed:?}"
        );
        promise!(2, *lease == committed.lease, "{who:?} reports the lease {lease} of {committed:?}");
        if *rank == 0 {
            let own = (&process.address, process.port);
            promise!(
                2,
                (address, *port) == own,
                "{who:?} is the master at {address}:{port} and not at {own:?}"
            );
        }
        let plan = committed.plan.clone();
        let last = self.last.insert(who.clone(), *round).unwrap_or(0);
        promise!(3, *round > last, "{who:?} reports round {round} after {last}");
        let other = self.reported.insert((plan, who.0.clone()), who.1);
        promise!(3, other.is_none(), "{who:?} reports round {round}, as {other:?} did");
        Ok(())
    }
}

fn nothing() -> RoundRecord {
    RoundRecord {
        round: 0,
        plan: String::new(),
        world_size: 0,
        master: None,
        settings: None,
        lease: 0,
        closed: None,
        news: rallypoint_core::round::News::default(),
    }
}

fn parse<T: serde::de::DeserializeOwned>(entry: &Entry) -> Result<T, Violation> {
    serde_json::from_str(&entry.value).map_err(|error| Violation {
        promise: 1,
        what: format!("{} = {} cannot be read: {error}", entry.key, entry.value),
    })
}
