//! A model of the part of etcd's v2 API that the barrier uses: indices, conditions, TTLs, folders that end, a
//! history that is forgotten, and data that is lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rallypoint_core::barrier::{
    Ending, Failure, GRACE, KEEP_ALIVE_TTL, KeepAlive, RUN_TTL, Record, Reply, Request, Update, VersionRank,
    View, Watched,
};

/// What happened at an index.
#[derive(Debug, Clone)]
enum Happened {
    Record { record: Option<(Record, u64)>, created: u64 },
    Gone { place: VersionRank, ending: Ending },
    FolderGone,
}

/// What is lost with the data.
#[derive(Debug, Clone, Default)]
struct Data {
    index: u64,
    record: Option<(Record, u64)>,
    record_created: u64,
    record_ends: Option<Duration>,
    counter: Option<(u64, u64)>,
    /// When the folder of the run ends, if it is there.
    run_ends: Option<Duration>,
    versions: BTreeSet<u64>,
    keep_alives: BTreeMap<VersionRank, (Duration, Option<String>)>,
}

/// What was done, for those who check whether what is told is true.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Deed {
    RecordWritten(Record),
    RecordRemoved(Record),
    Expired(VersionRank),
    Deleted(VersionRank),
    /// With these keep-alives of PyTorch's nodes.
    FolderEnded(Vec<VersionRank>),
}

#[derive(Debug)]
pub(crate) struct Server {
    data: Data,
    /// An earlier state.
    snapshot: Data,
    history: VecDeque<(u64, Happened)>,
    /// How much history is kept.
    keeps: usize,
    /// All that happened up to here is forgotten.
    forgotten: u64,
    run_ttl: Duration,
    /// Writes are refused: no space, or no permission.
    pub(crate) refuses: bool,
    deeds: Vec<Deed>,
    /// When the next TTL ends; nothing if that must be looked for.
    next_end: Option<Option<Duration>>,
}

impl Server {
    pub(crate) fn new(keeps: usize, run_ttl: Duration) -> Self {
        Server {
            data: Data::default(),
            snapshot: Data::default(),
            history: VecDeque::new(),
            keeps,
            forgotten: 0,
            run_ttl,
            refuses: false,
            deeds: Vec::new(),
            next_end: None,
        }
    }

    pub(crate) fn record(&self) -> Option<&Record> {
        self.data.record.as_ref().map(|(record, _)| record)
    }

    pub(crate) fn index(&self) -> u64 {
        self.data.index
    }

    pub(crate) fn is_kept(&self, place: VersionRank) -> bool {
        self.data.keep_alives.contains_key(&place)
    }

    /// Whether the keep-alive of that place is another node's.
    pub(crate) fn is_taken(&self, place: VersionRank, name: &str) -> bool {
        self.data.keep_alives.get(&place).is_some_and(|(_, owner)| owner.as_deref() != Some(name))
    }

    pub(crate) fn has_run(&self) -> bool {
        let Data { run_ends, record, keep_alives, .. } = &self.data;
        run_ends.is_some() || record.is_some() || !keep_alives.is_empty()
    }

    pub(crate) fn deeds(&mut self) -> Vec<Deed> {
        std::mem::take(&mut self.deeds)
    }

    /// When the next TTL ends.
    pub(crate) fn next_end(&mut self) -> Option<Duration> {
        let data = &self.data;
        *self.next_end.get_or_insert_with(|| {
            let ends = data.keep_alives.values().map(|(end, _)| *end);
            ends.chain(data.record_ends).chain(data.run_ends).min()
        })
    }

    /// Ends what has come to its end.
    pub(crate) fn advance(&mut self, now: Duration) {
        if self.next_end().is_none_or(|end| end > now) {
            return;
        }
        self.next_end = None;
        if self.data.run_ends.is_some_and(|end| end <= now) {
            let index = self.data.index + 1;
            let kept = self.data.keep_alives.iter().filter(|(_, (_, node))| node.is_none());
            let torch = kept.map(|(place, _)| *place).collect();
            self.data = Data { index, ..Data::default() };
            self.happened(Happened::FolderGone);
            self.deeds.push(Deed::FolderEnded(torch));
        }
        if self.data.record_ends.is_some_and(|end| end <= now) {
            self.write(None, None);
        }
        let ended = |(place, (end, _)): (&VersionRank, &(Duration, _))| (*end <= now).then_some(*place);
        let ended: Vec<VersionRank> = self.data.keep_alives.iter().filter_map(ended).collect();
        for place in ended {
            self.remove(place, Ending::Expired);
        }
    }

    pub(crate) fn take_snapshot(&mut self) {
        self.snapshot = self.data.clone();
    }

    /// Begins anew, empty or with an earlier state.
    pub(crate) fn lose(&mut self, restored: bool) {
        self.data = if restored { self.snapshot.clone() } else { Data::default() };
        self.history.clear();
        self.next_end = None;
        self.forgotten = self.data.index;
    }

    /// Carries it out. A node that runs this code has a `name`.
    pub(crate) fn serve(
        &mut self,
        now: Duration,
        name: Option<&str>,
        request: &Request,
    ) -> Result<Reply, Failure> {
        let reads = matches!(
            request,
            Request::ReadRecord
                | Request::FindRun
                | Request::Greet
                | Request::ReadCounter
                | Request::ListMembers { .. }
                | Request::ReadEnding { .. }
        );
        if self.refuses && !reads {
            return Err(Failure::Unknown);
        }
        if !reads {
            self.next_end = None;
        }
        Ok(match request {
            Request::ReadRecord => {
                let created = self.data.record_created;
                Reply::Record(View { record: self.data.record.clone(), created, next: self.data.index + 1 })
            }
            Request::CreateRecord { .. } if self.data.record.is_some() => Reply::Refused,
            Request::CreateRecord { record, ttl } => {
                self.write(Some(record.clone()), ttl.map(|ttl| now + ttl))
            }
            Request::SwapRecord { record, over, ttl } if self.matches(over) => {
                self.write(Some(record.clone()), ttl.map(|ttl| now + ttl))
            }
            Request::DeleteRecord { over } if self.matches(over) => self.write(None, None),
            Request::SwapRecord { .. } | Request::DeleteRecord { .. } => Reply::Refused,
            Request::MakeRun { counter } => {
                let index = self.next();
                self.data.counter.get_or_insert((*counter, index));
                self.data.run_ends.get_or_insert(now + self.run_ttl);
                Reply::Done { index: 0 }
            }
            Request::FindRun => Reply::Run(self.has_run()),
            // A folder that ends in a simulation is one of an etcd that cannot put that off.
            Request::RenewRun if self.run_ttl < RUN_TTL => Reply::Refused,
            Request::RenewRun | Request::Greet => Reply::Done { index: 0 },
            Request::ReadCounter => Reply::Counter(self.data.counter),
            Request::SwapCounter { version, over } => {
                if self.data.counter.is_none_or(|(_, index)| index != *over) {
                    return Ok(Reply::Refused);
                }
                let index = self.next();
                self.data.counter = Some((*version, index));
                Reply::Done { index }
            }
            Request::MakeVersion { version } if self.data.versions.contains(version) => Reply::Refused,
            Request::MakeVersion { version } => {
                self.data.versions.insert(*version);
                Reply::Done { index: self.next() }
            }
            Request::ListMembers { version } => {
                let range =
                    VersionRank { version: *version, rank: 0 }..VersionRank { version: version + 1, rank: 0 };
                let members = self.data.keep_alives.range(range);
                let members =
                    members.map(|(place, (_, node))| KeepAlive { rank: place.rank, node: node.clone() });
                Reply::Members { members: members.collect(), next: self.data.index + 1 }
            }
            Request::ReadEnding { place, from } => Reply::Ending(self.ending(*place, *from)),
            // PyTorch's nodes do not look whose it is.
            Request::WriteKeepAlive(place)
            | Request::RenewKeepAlive(place)
            | Request::ExpireKeepAlive(place)
            | Request::DeleteKeepAlive(place)
                if name.is_some()
                    && self
                        .data
                        .keep_alives
                        .get(place)
                        .is_some_and(|(_, owner)| owner.as_deref() != name) =>
            {
                Reply::Refused
            }
            Request::WriteKeepAlive(place) => {
                self.data.versions.insert(place.version);
                let value = (now + KEEP_ALIVE_TTL, name.map(str::to_owned));
                self.data.keep_alives.insert(*place, value);
                Reply::Done { index: self.next() }
            }
            Request::RenewKeepAlive(place) | Request::ExpireKeepAlive(place) => {
                let renews = matches!(request, Request::RenewKeepAlive(_));
                let ttl = if renews { KEEP_ALIVE_TTL } else { GRACE };
                match self.data.keep_alives.get_mut(place) {
                    Some((end, _)) => {
                        *end = now + ttl;
                        Reply::Done { index: self.next() }
                    }
                    None => Reply::Refused,
                }
            }
            Request::DeleteKeepAlive(place) => self.remove(*place, Ending::Deleted),
        })
    }

    /// What a watch has to tell from this index on, if it has, and where it goes on.
    pub(crate) fn told(&self, keys: &Watched, from: u64) -> Option<(Update, u64)> {
        if from <= self.forgotten {
            return Some((Update::Cleared, from));
        }
        let begin = self.history.partition_point(|(index, _)| *index < from);
        self.history.range(begin..).find_map(|(index, happened)| {
            let update = match (happened, keys) {
                (Happened::Record { record, created }, Watched::Record | Watched::Version(_)) => {
                    let view = View { record: record.clone(), created: *created, next: index + 1 };
                    Some(Update::Record(view))
                }
                (Happened::Gone { place, ending }, Watched::Version(version))
                    if place.version == *version =>
                {
                    Some(Update::Gone { rank: place.rank, ending: *ending })
                }
                (Happened::Gone { place, ending }, Watched::Members { version, ranks })
                    if place.version == *version && ranks.contains(&place.rank) =>
                {
                    Some(Update::Gone { rank: place.rank, ending: *ending })
                }
                (Happened::FolderGone, _) => Some(Update::FolderGone),
                _ => None,
            };
            update.map(|update| (update, index + 1))
        })
    }

    fn ending(&self, place: VersionRank, from: u64) -> Ending {
        if from <= self.forgotten {
            return Ending::Unknown;
        }
        let begin = self.history.partition_point(|(index, _)| *index < from);
        let found = self.history.range(begin..).find_map(|(_, happened)| match happened {
            Happened::Gone { place: gone, ending } if *gone == place => Some(*ending),
            _ => None,
        });
        found.unwrap_or(Ending::Unknown)
    }

    fn matches(&self, over: &(Record, u64)) -> bool {
        self.data.record.as_ref() == Some(over)
    }

    fn write(&mut self, record: Option<Record>, ends: Option<Duration>) -> Reply {
        self.deeds.push(match (&record, &self.data.record) {
            (Some(record), _) => Deed::RecordWritten(record.clone()),
            (None, Some((record, _))) => Deed::RecordRemoved(record.clone()),
            (None, None) => return Reply::Refused,
        });
        let index = self.next();
        if self.data.record.is_none() {
            self.data.record_created = index;
        }
        self.data.record = record.map(|record| (record, index));
        self.data.record_ends = ends;
        let (record, created) = (self.data.record.clone(), self.data.record_created);
        let happened = Happened::Record { record, created };
        self.happened(happened);
        Reply::Done { index }
    }

    fn remove(&mut self, place: VersionRank, ending: Ending) -> Reply {
        if self.data.keep_alives.remove(&place).is_none() {
            return Reply::Refused;
        }
        let index = self.next();
        self.happened(Happened::Gone { place, ending });
        self.deeds.push(match ending {
            Ending::Deleted => Deed::Deleted(place),
            _ => Deed::Expired(place),
        });
        Reply::Done { index }
    }

    fn next(&mut self) -> u64 {
        self.data.index += 1;
        self.data.index
    }

    fn happened(&mut self, happened: Happened) {
        self.history.push_back((self.data.index, happened));
        while self.history.len() > self.keeps {
            self.forgotten = self.history.pop_front().map_or(self.forgotten, |(index, _)| index);
        }
    }
}
