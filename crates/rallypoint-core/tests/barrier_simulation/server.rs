//! A model of the part of etcd's v2 API that the barrier uses: indices, conditions, TTLs, and a history that
//! watches read from.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rallypoint_core::barrier::{
    GRACE, KEEP_ALIVE_TTL, KeepAlive, Place, Record, Reply, Request, Status, View,
};

/// What happened at an index.
#[derive(Debug, Clone)]
enum Happened {
    State(Option<(Record, u64)>),
    Gone { version: u64 },
}

#[derive(Debug, Default)]
pub(crate) struct Server {
    index: u64,
    record: Option<(Record, u64)>,
    record_expires: Option<Duration>,
    counter: Option<(u64, u64)>,
    versions: BTreeSet<u64>,
    keep_alives: BTreeMap<(u64, usize), Duration>,
    history: Vec<(u64, Happened)>,
    /// A planted bug: writes over a record do not compare.
    blind: bool,
    /// What no execution may show.
    pub(crate) violation: Option<String>,
}

impl Server {
    pub(crate) fn new(blind: bool) -> Self {
        Server { blind, ..Server::default() }
    }

    pub(crate) fn record(&self) -> Option<&Record> {
        self.record.as_ref().map(|(record, _)| record)
    }

    /// How many changes there were.
    pub(crate) fn changes(&self) -> usize {
        self.history.len()
    }

    /// Whether the group of `version` is as it was when it met.
    pub(crate) fn is_whole(&self, version: u64) -> bool {
        let Some((record, _)) = &self.record else { return false };
        let alive = self.keep_alives.range((version, 0)..(version + 1, 0)).count();
        record.is(Status::Final, version) && record.waiting == Some(0) && alive == record.joined()
    }

    /// When the next TTL ends.
    pub(crate) fn next_end(&self) -> Option<Duration> {
        self.keep_alives.values().copied().chain(self.record_expires).min()
    }

    /// Ends what has come to its end.
    pub(crate) fn advance(&mut self, now: Duration) {
        if self.record_expires.is_some_and(|end| end <= now) {
            self.write(None, None);
        }
        let ended: Vec<_> =
            self.keep_alives.iter().filter(|(_, end)| **end <= now).map(|(key, _)| *key).collect();
        for key in ended {
            self.remove(key);
        }
    }

    pub(crate) fn renew(&mut self, now: Duration, place: Place) -> bool {
        let end = self.keep_alives.get_mut(&(place.version, place.rank));
        end.map(|end| *end = now + KEEP_ALIVE_TTL).is_some()
    }

    pub(crate) fn close(&mut self) {
        let record = self.record.take().map_or_else(Record::closed, |(record, _)| record.into_closed());
        self.write(Some(record), None);
    }

    /// Carries out anything but a watch.
    pub(crate) fn serve(&mut self, now: Duration, request: &Request) -> Reply {
        let done = |server: &Server| Reply::Done { index: server.index };
        match request {
            Request::ReadState => Reply::State(View { record: self.record.clone(), next: self.index + 1 }),
            Request::CreateState { .. } if self.record.is_some() => Reply::Refused,
            Request::CreateState { record, ttl } => {
                self.write(Some(record.clone()), Some(now + *ttl));
                done(self)
            }
            Request::SwapState { record, over, ttl } if self.matches(*over) => {
                self.write(Some(record.clone()), ttl.map(|ttl| now + ttl));
                done(self)
            }
            Request::DeleteState { over } if self.matches(*over) => {
                self.write(None, None);
                done(self)
            }
            Request::SwapState { .. } | Request::DeleteState { .. } => Reply::Refused,
            Request::MakeRun => {
                self.index += 1;
                self.counter.get_or_insert((0, self.index));
                done(self)
            }
            Request::ReadCounter => {
                self.counter.map_or(Reply::NoCounter, |(version, index)| Reply::Counter { version, index })
            }
            Request::SwapCounter { version, over } => {
                if self.counter.is_none_or(|(_, index)| index != *over) {
                    return Reply::Refused;
                }
                self.index += 1;
                self.counter = Some((*version, self.index));
                done(self)
            }
            Request::MakeVersion { version } => {
                if !self.versions.insert(*version) {
                    return Reply::Refused;
                }
                self.index += 1;
                done(self)
            }
            Request::ListVersion { version } => {
                let members = self.keep_alives.range((*version, 0)..(version + 1, 0));
                Reply::Members(members.map(|((_, rank), _)| KeepAlive { rank: *rank, ours: true }).collect())
            }
            Request::Hold(place) => {
                self.index += 1;
                self.keep_alives.insert((place.version, place.rank), now + KEEP_ALIVE_TTL);
                done(self)
            }
            Request::Release(place) => {
                if self.remove((place.version, place.rank)) {
                    done(self)
                } else {
                    Reply::Refused
                }
            }
            Request::RunOut(place) => {
                if let Some(end) = self.keep_alives.get_mut(&(place.version, place.rank)) {
                    *end = now + GRACE;
                }
                done(self)
            }
            Request::WatchState { .. } | Request::WatchVersion { .. } => {
                unreachable!("watches are kept apart")
            }
        }
    }

    /// What a watch has to tell, if it has.
    pub(crate) fn told(&self, request: &Request) -> Option<Reply> {
        let (from, of) = match request {
            Request::WatchState { from, .. } => (*from, None),
            Request::WatchVersion { from, version, .. } => (*from, Some(*version)),
            _ => return None,
        };
        let begin = self.history.partition_point(|(index, _)| *index < from);
        self.history[begin..].iter().find_map(|(index, happened)| match happened {
            Happened::State(record) => Some(Reply::State(View { record: record.clone(), next: index + 1 })),
            Happened::Gone { version } if of == Some(*version) => Some(Reply::Gone),
            Happened::Gone { .. } => None,
        })
    }

    fn matches(&self, over: u64) -> bool {
        self.record.as_ref().is_some_and(|(_, index)| *index == over || self.blind)
    }

    fn write(&mut self, record: Option<Record>, expires: Option<Duration>) {
        if let Some((before, _)) = &self.record
            && before.status == Status::Closed
            && record.as_ref().is_none_or(|after| after.status != Status::Closed)
        {
            self.violation = Some(format!("a closed run was opened again: {record:?}"));
        }
        self.index += 1;
        self.record = record.map(|record| (record, self.index));
        self.record_expires = expires;
        self.history.push((self.index, Happened::State(self.record.clone())));
    }

    fn remove(&mut self, key: (u64, usize)) -> bool {
        let was_there = self.keep_alives.remove(&key).is_some();
        if was_there {
            self.index += 1;
            self.history.push((self.index, Happened::Gone { version: key.0 }));
        }
        was_there
    }
}
