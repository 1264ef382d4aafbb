//! The promises that hold in every execution, checked at every step: 1 to 5, 12, 13 and 15.
//!
//! What etcd holds is checked when it is written, and what the nodes report is checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rallypoint_core::round::{
    Entry, Event, Exclusion, Joined, Keys, MasterRecord, NodeEvent, NodeRecord, RankPolicy, RankRecord,
    RoundRecord, RunSettings, Wants,
};

use crate::etcd::{self, Etcd};
use crate::keeper::{host_of, keeps_out, rack_of};
use crate::process::Process;
use crate::timeline;

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

/// A process: its node's name and its incarnation.
type Who = (String, u64);

#[derive(Debug)]
pub(crate) struct Check {
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
    /// Which process has a node's key.
    holders: BTreeMap<String, u64>,
    /// The process that last said which round it was in, and that round.
    claims: BTreeMap<String, (u64, u64)>,
    /// Which processes ever had a node's key.
    owners: BTreeMap<String, BTreeSet<u64>>,
    /// Since the last round, a node that was not in it has asked for one.
    pub(crate) somebody_waited: bool,
    /// The revision after which etcd last lost data. What stands there from before may be of another history.
    lost_at: i64,
    /// When somebody wrote who is no node.
    pub(crate) by_others: BTreeSet<i64>,
    /// Nodes that asked for a round since the last one.
    asked: BTreeSet<String>,
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
    /// How often etcd had lost what it knew by then.
    pub(crate) losses: u32,
}

impl Check {
    pub(crate) fn new(run: &str, settings: RunSettings, racks: Option<usize>) -> Self {
        Check {
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
            lost_at: 0,
            by_others: BTreeSet::new(),
            holders: BTreeMap::new(),
            claims: BTreeMap::new(),
            owners: BTreeMap::new(),
            somebody_waited: false,
            asked: BTreeSet::new(),
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

    /// Whether a round after this one was completed.
    pub(crate) fn went_on_after(&self, round: u64) -> bool {
        self.rounds.values().any(|committed| committed.round > round)
    }

    /// The plan of the last round that a process reported.
    pub(crate) fn last_plan(&self, process: &Process) -> Option<&str> {
        self.last.get(&(process.id.clone(), process.incarnation)).map(|(_, plan)| plan.as_str())
    }

    /// Whether a node is there, or in the last round.
    pub(crate) fn knows(&self, etcd: &Etcd, id: &str) -> bool {
        let members = self.rounds.get(&self.round.plan).map(|round| &round.members);
        etcd.get(&self.keys.node(id)).is_some()
            || members.is_some_and(|members| members.keys().any(|(member, _)| member == id))
    }

    /// Whether a process has its node's key.
    pub(crate) fn holds_key(&self, process: &Process) -> bool {
        self.holders.get(&process.id) == Some(&process.incarnation)
    }

    /// Whether every key of a node is that of a living process.
    pub(crate) fn all_live<'a>(&self, living: impl Iterator<Item = &'a Process>) -> bool {
        let living: BTreeSet<(&str, u64)> =
            living.map(|process| (process.id.as_str(), process.incarnation)).collect();
        self.holders.iter().all(|(id, incarnation)| living.contains(&(id.as_str(), *incarnation)))
    }

    /// Whether another process than this one ever had the node's key.
    pub(crate) fn was_replaced(&self, id: &str, incarnation: u64) -> bool {
        self.owners.get(id).is_some_and(|owners| owners.iter().any(|owner| *owner != incarnation))
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

    /// etcd has lost data: what it has now is what counts.
    pub(crate) fn lost_data(&mut self, etcd: &Etcd) -> Result<(), Violation> {
        self.losses += 1;
        self.lost_at = etcd.revision();
        self.by_others.clear();
        self.round = etcd.get(&self.keys.round()).map(parse).transpose()?.unwrap_or_else(nothing);
        self.holders.clear();
        for entry in etcd.prefix(&self.keys.nodes()) {
            let record: NodeRecord = parse(entry)?;
            self.holders.insert(self.keys.id_of(&entry.key).to_owned(), record.incarnation);
        }
        Ok(())
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
                    }
                    self.round = nothing();
                }
                Event::Delete { key, .. } if key.starts_with(&self.keys.nodes()) => {
                    let id = self.keys.id_of(key);
                    self.holders.remove(id);
                    self.gone.insert(id.to_owned());
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

    fn node_written(&mut self, entry: &Entry) -> Result<(), Violation> {
        let record: NodeRecord = parse(entry)?;
        let id = self.keys.id_of(&entry.key).to_owned();
        let who = (id.clone(), record.incarnation);
        let is_member = self.rounds.get(&self.round.plan).is_some_and(|it| it.members.contains_key(&who));
        self.somebody_waited |= record.wants == Wants::Join && (!is_member || self.gone.contains(&id));
        if record.wants == Wants::Join {
            self.asked.insert(id.clone());
        }
        if record.wants == Wants::Leave {
            self.gone.insert(id.clone());
            self.left.insert(id.clone());
        }
        self.holders.insert(id.clone(), record.incarnation);
        if let Some(seat) = record.seat {
            self.claims.insert(id.clone(), (record.incarnation, seat.round));
        }
        self.owners.entry(id).or_default().insert(record.incarnation);
        Ok(())
    }

    fn written(&mut self, etcd: &Etcd, entry: &Entry) -> Result<(), Violation> {
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
        let mut left = BTreeSet::new();
        let ranks_key = self.keys.ranks();
        for entry in etcd.prefix(&ranks_key) {
            let rank: RankRecord = parse(entry)?;
            if rank.plan == record.plan && rank.round == round {
                members.insert((entry.key[ranks_key.len()..].to_owned(), rank.incarnation), rank.rank);
                ranks.push(rank.rank);
                if rank.left {
                    left.insert(entry.key[ranks_key.len()..].to_owned());
                }
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
        let nodes = self.keys.nodes();
        self.somebody_waited = etcd.prefix(&nodes).any(|entry| {
            let id = &entry.key[nodes.len()..];
            let joins = parse::<NodeRecord>(entry).is_ok_and(|record| record.wants == Wants::Join);
            joins && !members.keys().any(|(member, _)| member == id)
        });
        // The leader may not have heard yet that it has left again.
        let asked = std::mem::take(&mut self.asked);
        self.somebody_waited |= asked.iter().any(|id| !members.keys().any(|(member, _)| member == id));
        let there = |(id, incarnation): &Who| {
            let record = etcd.get(&self.keys.node(id)).map(parse::<NodeRecord>)?.ok()?;
            (record.incarnation == *incarnation && record.wants != Wants::Leave).then_some(())
        };
        let gone = members.keys().filter(|who| there(who).is_none()).map(|who| who.0.clone());
        self.gone = gone.chain(left).collect();
        let (lease, losses) = (record.lease, self.losses);
        let committed = Committed { round, world_size: n, master, lease, members, losses };
        let before = self.rounds.insert(record.plan.clone(), committed);
        let again = before.is_some_and(|before| before.losses == losses);
        promise!(3, !again, "the plan {} was completed twice", record.plan);
        self.left_before = std::mem::take(&mut self.left);
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
        // A process may have a rank from a later round that was lost, and know nothing of this one: another process had
        // its name meanwhile, or it was planned with by what it had wanted before.
        let of_a_lost_round = |who: &Who, rank: usize| {
            let lost = |it: &&Committed| it.losses != self.losses && it.round > last.round;
            self.rounds.values().filter(lost).any(|it| it.members.get(who) == Some(&rank))
        };
        for (who, rank) in members.iter().filter(|(who, _)| !away(&who.0)) {
            let had = last.members.iter().find(|((id, _), _)| *id == who.0).map(|(_, rank)| *rank);
            let kept = had.is_none_or(|had| had == *rank || had >= members.len());
            let kept = kept || of_a_lost_round(who, *rank);
            promise!(7, kept, "{who:?} had rank {had:?} of round {} and has {rank} of {round}", last.round);
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
