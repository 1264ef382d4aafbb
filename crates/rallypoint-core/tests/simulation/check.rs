//! The promises that hold in every execution, checked at every step: 1 to 5, 12, 13 and 15.
//!
//! What etcd holds is checked when it is written, and what the nodes report is checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use rallypoint_core::round::{
    Entry, Event, Exclusion, Joined, Keys, Lost, MasterRecord, NodeEvent, NodeRecord, RoundRecord,
    RunSettings, Why,
};

use crate::etcd::{self, Etcd};
use crate::keeper::host_of;
use crate::network::LATEST;
use crate::process::Process;

mod nodes;
mod rounds;

/// A promise that was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) promise: u8,
    pub(crate) what: String,
}

/// A panic of the machine breaks every promise.
impl From<String> for Violation {
    fn from(what: String) -> Self {
        Violation { promise: 0, what }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {} is broken: {}", self.promise, self.what)
    }
}

/// What somebody writes at a key that is none of theirs.
pub(crate) const SCRIBBLE: &str = "what is this key for?";

/// Fails with what is broken, unless the condition holds.
macro_rules! promise {
    ($number:literal, $holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err($crate::check::Violation { promise: $number, what: format!($($what)+) });
        }
    };
}
pub(crate) use promise;

/// The lease of a closed mark begins before the mark is written, by this much at most.
const GRANTED_BEFORE: Duration = LATEST.saturating_mul(2);

/// A process: its node's name and its incarnation.
type Who = (String, u64);

#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) now: Duration,
    keys: Keys,
    settings: RunSettings,
    /// What the group's record said last.
    round: RoundRecord,
    /// Completed rounds, by their plans: where etcd has lost data, two may have one number.
    rounds: BTreeMap<String, Committed>,
    /// The last round that each process reported: its number and its plan.
    last: BTreeMap<Who, (u64, String)>,
    /// Who reported to be in a round, by its plan.
    reported: BTreeMap<(String, String), u64>,
    closers: BTreeSet<Who>,
    operator_closed: bool,
    /// The reasons with which the run was ever closed.
    pub(crate) reasons: BTreeSet<String>,
    /// How often what etcd had of the run was lost: with the run's lease, or by etcd itself.
    pub(crate) losses: u32,
    /// When that was, the last time.
    pub(crate) last_loss: Duration,
    /// Which process has a node's key.
    holders: BTreeMap<String, u64>,
    /// When a node's key was there again that had been gone, the last time.
    back_at: BTreeMap<String, Duration>,
    /// When a process had its node's key no more.
    dropped_at: BTreeMap<Who, Duration>,
    /// The process that last said which round it was in, and that round.
    claims: BTreeMap<String, (u64, u64)>,
    /// Which processes ever had a node's key: when each wrote it for the first and the last time, in the order of all writes.
    owners: BTreeMap<String, BTreeMap<u64, (u64, u64)>>,
    node_writes: u64,
    /// Who was not in the last round, or has not been there since, and asks for one.
    waiting: BTreeSet<String>,
    /// When somebody waited, the last time.
    waited_at: Duration,
    /// What members were told of their rounds, by their plans.
    pub(crate) news: BTreeSet<(String, Told)>,
    /// When the run was closed.
    closed_at: Duration,
    closed_ttl: Duration,
    /// The revision after which etcd last lost data. What stands there from before may be of another history.
    lost_at: i64,
    /// When somebody wrote who is no node.
    pub(crate) by_others: BTreeSet<i64>,
    /// Nodes whose key was gone since the last round, or that had left it: who comes back by that name is a newcomer.
    gone: BTreeSet<String>,
    /// Who has left since the last round was completed, and since the one before it.
    left: BTreeSet<String>,
    left_before: BTreeSet<String>,
    /// Rounds completed.
    pub(crate) commits: u64,
    /// Everybody who was ever kept out.
    pub(crate) exclusions: Vec<Exclusion>,
    /// The racks that nodes are in, where they are told by their names.
    racks: Option<usize>,
}

/// A completed round.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) round: u64,
    world_size: usize,
    master: MasterRecord,
    lease: i64,
    pub(crate) members: BTreeMap<Who, usize>,
    /// The plan of the round that it follows on by its places, which its leader went by.
    follows: Option<String>,
    /// How often etcd had lost what it knew by then.
    pub(crate) losses: u32,
    /// When it was completed.
    pub(crate) at: Duration,
    /// Its record was taken back.
    pub(crate) withdrawn: bool,
    /// Its members that were not there any more, or had left.
    pub(crate) gone: BTreeSet<String>,
}

/// What the record of a round says of its group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    Waiting,
    Lost(String, usize, &'static str),
    /// Members are lost, and nobody knows who.
    Unnamed,
}

impl Told {
    pub(crate) fn lost(lost: &Lost) -> Self {
        let why = match lost.why {
            Why::Died => "died",
            Why::Replaced => "replaced",
            Why::Excluded => "kept out",
            Why::Left | Why::Killed | Why::Again | Why::Late | Why::Other => "left",
        };
        Told::Lost(lost.node.clone(), lost.rank, why)
    }
}

impl Check {
    pub(crate) fn new(run: &str, settings: RunSettings, racks: Option<usize>, closed_ttl: Duration) -> Self {
        Check {
            now: Duration::ZERO,
            keys: Keys::new(run),
            settings,
            round: nothing(),
            rounds: BTreeMap::new(),
            last: BTreeMap::new(),
            reported: BTreeMap::new(),
            closers: BTreeSet::new(),
            operator_closed: false,
            reasons: BTreeSet::new(),
            losses: 0,
            last_loss: Duration::ZERO,
            lost_at: 0,
            back_at: BTreeMap::new(),
            dropped_at: BTreeMap::new(),
            node_writes: 0,
            waiting: BTreeSet::new(),
            waited_at: Duration::ZERO,
            news: BTreeSet::new(),
            closed_at: Duration::ZERO,
            closed_ttl,
            by_others: BTreeSet::new(),
            holders: BTreeMap::new(),
            claims: BTreeMap::new(),
            owners: BTreeMap::new(),
            gone: BTreeSet::new(),
            left: BTreeSet::new(),
            left_before: BTreeSet::new(),
            commits: 0,
            exclusions: Vec::new(),
            racks,
        }
    }

    /// The group's record.
    pub(crate) fn round(&self) -> &RoundRecord {
        &self.round
    }

    /// A completed round.
    pub(crate) fn committed_as(&self, plan: &str) -> Option<&Committed> {
        self.rounds.get(plan)
    }

    /// The round in which a member that is gone had that place: the one before. Where etcd has lost that, the one that the new
    /// round follows on, if its places name one: there may have been another since, of which nobody knew. Or the last one.
    pub(crate) fn round_of<'a>(&'a self, before: &'a str, lost: &Lost) -> &'a str {
        let is_it = |((id, _), rank): (&Who, &usize)| *id == lost.node && *rank == lost.rank;
        let has_it = |round: &Committed| round.members.iter().any(is_it);
        if self.rounds.get(before).is_some_and(has_it) {
            return before;
        }
        let follows = self.rounds.get(&self.round.plan).and_then(|round| round.follows.as_deref());
        if let Some(follows) = follows.filter(|plan| self.rounds.get(*plan).is_some_and(has_it)) {
            return follows;
        }
        let others = self.rounds.iter().filter(|(plan, round)| **plan != self.round.plan && has_it(round));
        others.max_by_key(|(_, round)| round.at).map_or(before, |(plan, _)| plan)
    }

    /// Whether a round after this one was completed.
    pub(crate) fn went_on_after(&self, round: u64) -> bool {
        self.rounds.values().any(|committed| committed.round > round)
    }

    /// Whether a round that was completed after this one was taken back.
    pub(crate) fn was_withdrawn_after(&self, earlier: &Committed) -> bool {
        self.rounds
            .values()
            .any(|later| later.withdrawn && later.round > earlier.round && later.at >= earlier.at)
    }

    /// The plan of the last round that a process reported.
    pub(crate) fn last_plan(&self, process: &Process) -> Option<&str> {
        self.last.get(&(process.id.clone(), process.incarnation)).map(|(_, plan)| plan.as_str())
    }

    /// Whether a node is there, or in the last round. Where etcd has lost that, the record has its number, and not its plan: its
    /// members say so themselves, and keep their places as those of any round do.
    pub(crate) fn knows(&self, etcd: &Etcd, id: &str) -> bool {
        let is_last = |(plan, round): (&String, &Committed)| match self.round.has_round() {
            true => *plan == self.round.plan,
            false => round.round == self.round.round,
        };
        let has_it = |round: &Committed| round.members.keys().any(|(member, _)| member == id);
        etcd.get(&self.keys.node(id)).is_some()
            || self.rounds.iter().any(|last| is_last(last) && has_it(last.1))
    }

    /// Whether a process has its node's key.
    pub(crate) fn holds_key(&self, process: &Process) -> bool {
        self.holders.get(&process.id) == Some(&process.incarnation)
    }

    /// How many nodes' keys are there.
    pub(crate) fn holders_count(&self) -> usize {
        self.holders.len()
    }

    /// Whether every key of a node is that of a living process.
    pub(crate) fn all_live<'a>(&self, living: impl Iterator<Item = &'a Process>) -> bool {
        let living: BTreeSet<(&str, u64)> =
            living.map(|process| (process.id.as_str(), process.incarnation)).collect();
        self.holders.iter().all(|(id, incarnation)| living.contains(&(id.as_str(), *incarnation)))
    }

    /// Whether another process has written the node's key after this one had.
    pub(crate) fn was_replaced(&self, id: &str, incarnation: u64) -> bool {
        let Some(owners) = self.owners.get(id) else { return false };
        let first = owners.get(&incarnation).map_or(0, |(first, _)| *first);
        owners.iter().any(|(other, (_, last))| *other != incarnation && *last > first)
    }

    /// When a process had its node's key, the last time; none if it never had.
    pub(crate) fn held_at(&self, process: &Process) -> Option<Duration> {
        if self.holds_key(process) {
            return Some(self.now);
        }
        self.dropped_at.get(&(process.id.clone(), process.incarnation)).copied()
    }

    /// When a node's key was gone, the last time.
    pub(crate) fn missed_at(&self, id: &str) -> Option<Duration> {
        if self.holders.contains_key(id) { self.back_at.get(id).copied() } else { Some(self.now) }
    }

    /// When somebody waited for the next round, the last time.
    pub(crate) fn waited_at(&self) -> Duration {
        if self.waiting.is_empty() { self.waited_at } else { self.now }
    }

    /// Whether a node of this name, or who comes by it, is no member at work any more.
    pub(crate) fn is_gone(&self, id: &str) -> bool {
        self.gone.contains(id)
    }

    /// Whether a node of this name was ever kept out.
    pub(crate) fn was_kept_out(&self, id: &str) -> bool {
        self.exclusions.iter().any(|exclusion| exclusion.whom.is(id, &host_of(id)))
    }

    /// Whether a process is a member of the last round.
    pub(crate) fn is_member(&self, process: &Process) -> bool {
        let who = (process.id.clone(), process.incarnation);
        self.rounds.get(&self.round.plan).is_some_and(|round| round.members.contains_key(&who))
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
                Event::Put(entry) if self.by_others.contains(&entry.mod_revision) => {}
                Event::Put(entry) => {
                    promise!(5, entry.lease != 0, "{} hangs on no lease", entry.key);
                    if entry.key == self.keys.round() {
                        self.written(etcd, entry)?;
                    } else if entry.key.starts_with(&self.keys.nodes()) {
                        self.node_written(entry)?;
                    } else if entry.key.starts_with(&self.keys.exclusions()) {
                        self.exclusions.push(parse(entry)?);
                    }
                }
                Event::Delete { key, .. } if *key == self.keys.round() => {
                    if self.round.closed.is_none() {
                        (self.losses, self.lost_at) = (self.losses + 1, change.revision);
                        self.last_loss = self.now;
                    } else {
                        // Its lease may have been granted some time before the mark was written.
                        let until = self.closed_at + self.closed_ttl - GRANTED_BEFORE;
                        promise!(4, self.now >= until, "the mark of the closed run is gone");
                    }
                    self.round = nothing();
                }
                Event::Delete { key, .. } if key.starts_with(&self.keys.nodes()) => {
                    let id = self.keys.id_of(key).to_owned();
                    if let Some(incarnation) = self.holders.remove(&id) {
                        self.dropped_at.insert((id.clone(), incarnation), self.now);
                    }
                    if self.waiting.remove(&id) {
                        self.waited_at = self.now;
                    }
                    self.gone.insert(id);
                }
                Event::Delete { key, .. } => {
                    let current = self.keys.store(self.round.round, &self.round.plan);
                    let lost = key.starts_with(&current) && self.round.closed.is_none();
                    let with_all = change.events.iter().any(|event| etcd::key_of(event) == self.keys.round());
                    promise!(2, !lost || with_all, "{key} was deleted while its round goes on");
                }
            }
        }
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
                Ok(())
            }
            NodeEvent::Left => {
                let left = etcd.get(&self.keys.node(&process.id)).map(parse::<NodeRecord>).transpose()?;
                let ours = left.is_some_and(|record| record.incarnation == process.incarnation);
                // What is lost with the rest may be its leave. And who is denied everything can only let its lease end.
                let excused = self.losses > 0 || process.was_denied;
                promise!(5, !ours || excused, "{who:?} has left, and its key is there");
                Ok(())
            }
            NodeEvent::Progress { .. }
            | NodeEvent::KeptOut(_)
            | NodeEvent::Refused(_)
            | NodeEvent::Closed(_) => Ok(()),
        }
    }

    fn joined(&mut self, process: &Process, who: &Who, joined: &Joined) -> Result<(), Violation> {
        let Joined { round, plan, rank, world_size, address, port, lease, without: _ } = joined;
        let Some(committed) = self.rounds.get(plan).filter(|committed| committed.round == *round) else {
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
        // A leader that has heard of the end of the run's lease makes the record again on another one, also where etcd has
        // lost that end since.
        promise!(
            2,
            *lease == committed.lease || self.losses > 0,
            "{who:?} reports the lease {lease} of {committed:?}"
        );
        if *rank == 0 {
            let own = (&process.address, process.port);
            promise!(
                2,
                (address, *port) == own,
                "{who:?} is the master at {address}:{port} and not at {own:?}"
            );
        }
        let last = self.last.insert(who.clone(), (*round, plan.clone())).map_or(0, |(last, _)| last);
        promise!(3, *round > last, "{who:?} reports round {round} after {last}");
        let other = self.reported.insert((plan.clone(), who.0.clone()), who.1);
        promise!(3, other.is_none(), "{who:?} reports round {round}, as {other:?} did");
        Ok(())
    }
}

fn nothing() -> RoundRecord {
    RoundRecord::without_round(0, None, 0)
}

pub(crate) fn parse<T: serde::de::DeserializeOwned>(entry: &Entry) -> Result<T, Violation> {
    serde_json::from_str(&entry.value).map_err(|error| Violation {
        promise: 1,
        what: format!("{} = {} cannot be read: {error}", entry.key, entry.value),
    })
}
