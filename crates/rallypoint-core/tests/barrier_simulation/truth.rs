//! What has happened, so that nobody is told otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rallypoint_core::barrier::{Change, KEEP_ALIVE_TTL, Record, Status, VersionRank};

use crate::server::Deed;

/// What was seen when a request was sent may be as old as this, and what was asked before.
const ROUND_TRIP: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// Who had which rank in a version, and with how many.
    met: BTreeMap<u64, (usize, BTreeMap<usize, Who>)>,
    /// How often all was lost.
    history: u32,
    /// All final versions.
    known: BTreeSet<u64>,
    /// Those that somebody has ended, or that gave way to another.
    ended: BTreeSet<u64>,
    /// Final versions that somebody has counted up a number waiting in.
    announced: BTreeSet<u64>,
    deleted: BTreeSet<VersionRank>,
    /// From when on it is no mistake to take the owner of a keep-alive for dead.
    expired: BTreeMap<VersionRank, Duration>,
    /// Keep-alives of PyTorch's nodes that went with the folder, and the histories that ended with it.
    went_with_folder: BTreeMap<VersionRank, BTreeSet<u32>>,
    closed: bool,
    last: Option<Record>,
    /// The times that the record was lost with all else.
    missing: Vec<Missing>,
    /// The group is whole, and since the time it became so nothing has happened that it must meet again for.
    steady_since: Option<Duration>,
    steady_version: u64,
}

#[derive(Debug, Clone, Copy)]
struct Missing {
    since: Duration,
    until: Option<Duration>,
}

impl Missing {
    /// Whether it was gone for so long that nobody expects it back, and the folder there: whoever began to put it back
    /// may have died over it.
    fn is_given_up(self, looked: Looked) -> bool {
        looked.at >= self.since + Duration::from_secs(5)
            && self.until.is_none_or(|until| looked.at < until)
            && looked.folder_at.is_some_and(|at| at >= self.since)
    }
}

/// What a node goes by: when that was so which it has heard just now, and when the folder was there, if it was when the
/// node last asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Looked {
    pub(crate) at: Duration,
    pub(crate) folder_at: Option<Duration>,
}

/// A node, whether it is PyTorch's, and in which history it met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) node: usize,
    pub(crate) torch: bool,
    pub(crate) history: u32,
}

impl Truth {
    /// Which history it is: another one after each loss.
    pub(crate) fn history(&self) -> u32 {
        self.history
    }

    /// Whether nodes have met in that version since the last loss.
    pub(crate) fn has_met(&self, version: u64) -> bool {
        self.met.contains_key(&version)
    }

    /// The histories in which a keep-alive of PyTorch's was at that place until the folder ended; none if it never was.
    pub(crate) fn went_with_folder(&self, place: VersionRank) -> Option<&BTreeSet<u32>> {
        self.went_with_folder.get(&place)
    }

    /// Something happened that the group may meet again for.
    pub(crate) fn cause(&mut self) {
        self.steady_since = None;
    }

    /// A request is carried out that was sent at this time. If that was before all was well, what it brings about was
    /// decided by what was so then; the write of one key cannot depend on how the others are by now.
    pub(crate) fn decided(&mut self, sent: Duration) {
        if self.steady_since.is_some_and(|since| sent < since + ROUND_TRIP) {
            self.cause();
        }
    }

    /// The version whose group is whole, if there is one.
    pub(crate) fn seen_steady(&mut self, now: Duration, version: Option<u64>) {
        match version {
            Some(version) => {
                self.steady_since.get_or_insert(now);
                self.steady_version = version;
            }
            None => self.steady_since = None,
        }
    }

    /// The server began anew: versions are counted from an earlier number. Those who are at work have theirs.
    pub(crate) fn lost(&mut self, now: Duration) {
        self.cause();
        self.ended.extend(&self.known);
        self.went_with_folder.clear();
        self.all_gone(now);
    }

    /// All keep-alives are gone: who does not put its own back in time may be taken for dead. Versions may be
    /// counted from the beginning.
    fn all_gone(&mut self, now: Duration) {
        for (version, (size, _)) in std::mem::take(&mut self.met) {
            let places = (0..size).map(|rank| VersionRank { version, rank });
            self.expired.extend(places.map(|place| (place, now + KEEP_ALIVE_TTL)));
        }
        self.last = None;
        self.missing.push(Missing { since: now, until: None });
        self.history += 1;
    }

    pub(crate) fn deed(
        &mut self,
        now: Duration,
        up_since: Duration,
        deed: Deed,
        seen: Option<u64>,
        blameless: impl Fn(usize) -> bool,
    ) -> Result<(), String> {
        match deed {
            Deed::RecordWritten(record) => {
                let closed = self.last.as_ref().is_some_and(|last| last.status == Status::Closed);
                if closed && record.status != Status::Closed {
                    return Err(format!("a closed run was opened again: {record:?}"));
                }
                if record.status == Status::Setup {
                    // Who has not seen that version cannot know that it is lost.
                    if let Some(since) = self.steady_since.filter(|_| seen >= Some(self.steady_version)) {
                        return Err(format!(
                            "a needless new version at {now:?}: all was well since {since:?}"
                        ));
                    }
                    self.cause();
                }
                match (record.status, record.version) {
                    (Status::Closed, _) => {
                        self.closed = true;
                        // The members go, and who has not heard why yet may be told that.
                        self.cause();
                    }
                    (Status::Final, Some(version)) => {
                        if record.waiting.unwrap_or(0) > 0 {
                            self.announced.insert(version);
                        }
                        self.ended.extend(self.known.iter().filter(|other| **other != version));
                    }
                    _ => self.ended.extend(&self.known),
                }
                self.last = Some(record);
                for missing in &mut self.missing {
                    missing.until.get_or_insert(now);
                }
            }
            Deed::RecordRemoved(record) => {
                if record.status == Status::Closed {
                    return Err("a closed run was forgotten".to_owned());
                }
                self.ended.extend(record.version);
                self.last = None;
            }
            Deed::Deleted(place) => {
                self.deleted.insert(place);
            }
            Deed::Expired(place) => {
                // Where the server was away, and not the owner, it gets some time.
                let excused = self.owner(place).is_some_and(blameless);
                let at = if excused { now.max(up_since + KEEP_ALIVE_TTL) } else { now };
                self.expired.insert(place, at);
                if at == now {
                    self.cause();
                }
            }
            Deed::FolderEnded(torch) => {
                for place in torch {
                    self.went_with_folder.entry(place).or_default().insert(self.history);
                }
                self.all_gone(now);
            }
        }
        Ok(())
    }

    /// Whether a member that is gone may be counted out by now.
    pub(crate) fn is_lost(&self, now: Duration, place: VersionRank) -> bool {
        self.expired.get(&place).is_some_and(|at| *at <= now)
    }

    fn owner(&self, place: VersionRank) -> Option<usize> {
        self.met.get(&place.version).and_then(|(_, ranks)| ranks.get(&place.rank)).map(|who| who.node)
    }

    pub(crate) fn meets(
        &mut self,
        who: Who,
        place: VersionRank,
        world: usize,
        allowed: std::ops::RangeInclusive<usize>,
    ) -> Result<(), String> {
        let VersionRank { version, rank } = place;
        self.known.insert(version);
        if who.history != self.history {
            // What it was told was so, and is lost.
            self.ended.insert(version);
            return Ok(());
        }
        let (size, ranks) = self.met.entry(version).or_insert((world, BTreeMap::new()));
        // PyTorch's nodes go by the number of a version alone: after a loss they can take another's place for theirs.
        let misled = who.torch && self.history > 0;
        if !allowed.contains(&world) && !misled {
            return Err(format!("version {version} has {world} nodes, not {allowed:?}"));
        }
        if (*size != world || rank >= world) && !misled {
            return Err(format!("version {version}: {world} nodes and rank {rank}; others say {size}"));
        }
        let may_clash = |other: &Who| misled || self.history > 0 && other.torch;
        if let Some(other) =
            ranks.insert(rank, who).filter(|other| other.node != who.node && !may_clash(other))
        {
            return Err(format!(
                "version {version}: nodes {} and {} both have rank {rank}",
                other.node, who.node
            ));
        }
        Ok(())
    }

    /// A member of `place` is told this.
    pub(crate) fn told(
        &self,
        now: Duration,
        looked: Looked,
        place: VersionRank,
        change: &Change,
        is_taken: bool,
        is_alive: impl Fn(usize) -> bool,
    ) -> Result<(), String> {
        let version = place.version;
        let of = |rank: usize| VersionRank { version, rank };
        let is_true = match change {
            Change::Closed { .. } => self.closed,
            Change::Waiting(_) => self.announced.contains(&version),
            Change::Died { rank, .. } => {
                // Who never saw that the version was final has no owner here, and may have died before.
                self.owner(of(*rank)).is_none_or(|owner| !is_alive(owner))
                    || self.is_lost(now, of(*rank))
                    || self.deleted.contains(&of(*rank))
            }
            Change::Left { rank: Some(rank), .. } => self.deleted.contains(&of(*rank)),
            Change::Left { rank: None, .. } | Change::Excluded => {
                let given_up = self.missing.iter().any(|missing| missing.is_given_up(looked));
                given_up || is_taken || self.ended.contains(&version)
            }
        };
        if !is_true {
            return Err(format!("false news at {now:?}: a member of version {version} is told {change:?}"));
        }
        // Who hears of a version late is told of its end then.
        let is_last = self.last.as_ref().is_none_or(|last| last.version == Some(version));
        // Who has heard how it was before has not heard yet that all is well.
        if let Some(since) = self.steady_since
            && looked.at >= since + ROUND_TRIP
            && !matches!(change, Change::Closed { .. })
            && is_last
        {
            return Err(format!("{change:?} is told at {now:?}, and all was well since {since:?}"));
        }
        Ok(())
    }
}
