//! A node of PyTorch's, by its own rules: it compares values, not indices, polls the number waiting while it works,
//! keeps a keep-alive without a value, and ends of whatever it does not expect.

use std::time::Duration;

use rallypoint_core::barrier::{
    FROZEN_TTL, KEEP_ALIVE_TTL, LAST_CALL_TTL, Record, Reply, Request, SETUP_TTL, Status, VersionRank, View,
    Watched,
};

/// What it asks of the world.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Send(Request),
    /// Writes a record over one of this value; none removes it.
    Compare {
        old: Record,
        new: Option<Record>,
        ttl: Option<Duration>,
    },
    Watch {
        keys: Watched,
        from: u64,
        until: Option<Duration>,
    },
    Sleep(Duration),
    Met {
        place: VersionRank,
        world: usize,
    },
    Closed,
    /// An error that it does not know ends the process.
    Dies,
}

#[derive(Debug, Clone, PartialEq)]
enum At {
    /// Makes the folder of the run and its counter, where they are missing.
    Begin,
    Create,
    Counter,
    Count {
        version: u64,
    },
    Folder {
        version: u64,
    },
    Publish {
        version: u64,
    },
    Look,
    Join {
        version: u64,
    },
    Joining {
        place: VersionRank,
    },
    LastCall {
        place: VersionRank,
        until: Duration,
    },
    Refreshing {
        place: VersionRank,
        until: Duration,
        freezes: bool,
    },
    Peers {
        place: VersionRank,
    },
    Confirm {
        place: VersionRank,
    },
    KeepAlive {
        place: VersionRank,
        record: Record,
    },
    Confirming {
        place: VersionRank,
    },
    Final {
        place: VersionRank,
    },
    Announce {
        version: u64,
    },
    Announcing {
        version: u64,
    },
    Free {
        version: u64,
    },
    Listing {
        version: u64,
        record: Record,
        next: u64,
    },
    Ending,
    /// Slept before it begins again.
    Retry,
    Works {
        place: VersionRank,
    },
}

#[derive(Debug)]
pub(crate) struct Torch {
    at: At,
    min: usize,
    max: usize,
    last_call: Duration,
    root: String,
    /// What it keeps, until its thread ends.
    pub(crate) keeps: Option<VersionRank>,
}

impl Torch {
    pub(crate) fn new(min: usize, max: usize, last_call: Duration, root: &str) -> Self {
        Torch { at: At::Begin, min, max, last_call, root: root.to_owned(), keeps: None }
    }

    /// The process begins.
    pub(crate) fn begin(&mut self) -> Ask {
        Ask::Send(Request::MakeRun { counter: 0 })
    }

    /// Begins to meet, or begins again: it disowns its keep-alive, which runs out.
    fn start(&mut self) -> Ask {
        self.keeps = None;
        self.at = At::Create;
        Ask::Send(Request::CreateRecord { record: Record::setup(None), ttl: Some(SETUP_TTL) })
    }

    fn read(&mut self, at: At) -> Ask {
        self.at = at;
        Ask::Send(Request::ReadRecord)
    }

    fn retry(&mut self, pause: Duration) -> Ask {
        self.at = At::Retry;
        Ask::Sleep(pause)
    }

    /// Its sleep or its watch is over.
    pub(crate) fn wake(&mut self) -> Ask {
        match self.at.clone() {
            At::Retry => self.start(),
            at => self.read(at),
        }
    }

    /// The answer to what it asked for last; none if the connection failed.
    pub(crate) fn answer(&mut self, now: Duration, reply: Option<Reply>) -> Ask {
        let Some(reply) = reply else { return Ask::Dies };
        let done = matches!(reply, Reply::Done { .. });
        match (self.at.clone(), reply) {
            (At::Begin, _) => self.start(),
            (At::Create, Reply::Done { .. }) => {
                self.at = At::Counter;
                Ask::Send(Request::ReadCounter)
            }
            (At::Create, _) => self.read(At::Look),
            (At::Counter, Reply::Counter(Some((version, over)))) => {
                self.at = At::Count { version: version + 1 };
                Ask::Send(Request::SwapCounter { version: version + 1, over })
            }
            (At::Count { version }, Reply::Done { .. }) => {
                self.at = At::Folder { version };
                Ask::Send(Request::MakeVersion { version })
            }
            (At::Folder { version }, Reply::Done { .. }) => {
                self.at = At::Publish { version };
                let new = Some(Record::joinable(version));
                Ask::Compare { old: Record::setup(None), new, ttl: None }
            }
            (At::Publish { version }, Reply::Done { .. }) => self.read(At::Join { version }),
            (At::Look, Reply::Record(View { record: Some((record, _)), next, .. })) => {
                let version = record.version.unwrap_or_default();
                match record.status {
                    Status::Closed => Ask::Closed,
                    Status::Joinable => self.read(At::Join { version }),
                    Status::Final => self.read(At::Announce { version }),
                    Status::Setup | Status::Frozen => {
                        self.at = At::Retry;
                        Ask::Watch { keys: Watched::Record, from: next, until: Some(now + SETUP_TTL) }
                    }
                }
            }
            (At::Join { version }, Reply::Record(View { record: Some((record, _)), .. }))
                if record.is(Status::Joinable, version) && record.joined() < self.max =>
            {
                let (new, rank) = record.with_node(self.max);
                let ttl = if new.status == Status::Frozen {
                    Some(FROZEN_TTL)
                } else {
                    (new.joined() >= self.min).then_some(LAST_CALL_TTL)
                };
                self.at = At::Joining { place: VersionRank { version, rank } };
                Ask::Compare { old: record, new: Some(new), ttl }
            }
            (At::Joining { place }, Reply::Refused) => self.read(At::Join { version: place.version }),
            (At::Joining { place }, _) if place.rank + 1 == self.min && place.rank + 1 < self.max => {
                self.read(At::LastCall { place, until: now + self.last_call })
            }
            (At::Joining { place }, _) => self.read(At::Peers { place }),
            (At::LastCall { place, until }, Reply::Record(View { record: Some((record, _)), .. }))
                if record.is(Status::Joinable, place.version) =>
            {
                let freezes = now >= until;
                self.at = At::Refreshing { place, until, freezes };
                let new = if freezes { record.to_frozen() } else { record.clone() };
                let ttl = if freezes { FROZEN_TTL } else { LAST_CALL_TTL };
                Ask::Compare { old: record, new: Some(new), ttl: Some(ttl) }
            }
            (At::LastCall { place, .. }, Reply::Record(View { record: Some((record, _)), .. }))
                if record.is(Status::Frozen, place.version) =>
            {
                self.read(At::Confirm { place })
            }
            (At::Refreshing { place, freezes: true, .. }, Reply::Done { .. }) => {
                self.read(At::Confirm { place })
            }
            (At::Refreshing { place, until, .. }, Reply::Done { index }) => {
                self.at = At::LastCall { place, until };
                let until = Some((now + LAST_CALL_TTL / 2).min(until));
                Ask::Watch { keys: Watched::Record, from: index + 1, until }
            }
            (At::Refreshing { place, until, .. }, _) => self.read(At::LastCall { place, until }),
            (At::Peers { place }, Reply::Record(View { record: Some((record, _)), next, .. })) => {
                if record.is(Status::Frozen, place.version) {
                    self.read(At::Confirm { place })
                } else if record.is(Status::Joinable, place.version) {
                    Ask::Watch { keys: Watched::Record, from: next, until: None }
                } else {
                    self.retry(Duration::from_secs(1))
                }
            }
            (At::Confirm { place }, Reply::Record(View { record: Some((record, _)), .. }))
                if record.is(Status::Frozen, place.version) =>
            {
                self.at = At::KeepAlive { place, record };
                Ask::Send(Request::WriteKeepAlive(place))
            }
            (At::KeepAlive { place, record }, _) => {
                let key = format!("{}/rdzv/v_{}/rank_{}", self.root, place.version, place.rank);
                let new = record.with_confirmed(&key);
                let ttl = (new.status == Status::Frozen).then_some(FROZEN_TTL);
                self.at = At::Confirming { place };
                Ask::Compare { old: record, new: Some(new), ttl }
            }
            (At::Confirming { place }, Reply::Refused) => self.read(At::Confirm { place }),
            (At::Confirming { place }, _) => {
                self.keeps = Some(place);
                self.read(At::Final { place })
            }
            (At::Final { place }, Reply::Record(View { record: Some((record, _)), next, .. })) => {
                if record.is(Status::Final, place.version) {
                    self.at = At::Works { place };
                    Ask::Met { place, world: record.joined() }
                } else if record.is(Status::Frozen, place.version) {
                    Ask::Watch { keys: Watched::Record, from: next, until: None }
                } else {
                    self.retry(Duration::from_secs(1))
                }
            }
            (At::Announce { version }, Reply::Record(View { record: Some((record, _)), .. }))
                if record.is(Status::Final, version) =>
            {
                self.at = At::Announcing { version };
                Ask::Compare { new: Some(record.with_waiting()), old: record, ttl: None }
            }
            (At::Announcing { version }, Reply::Refused) => self.read(At::Announce { version }),
            (At::Announcing { version }, _) => self.read(At::Free { version }),
            (At::Free { version }, Reply::Record(View { record: Some((record, _)), next, .. }))
                if record.is(Status::Final, version) =>
            {
                self.at = At::Listing { version, record, next };
                Ask::Send(Request::ListMembers { version })
            }
            (At::Listing { version, record, next }, Reply::Members { members, .. }) => {
                if members.len() < record.confirmed() {
                    self.at = At::Ending;
                    return Ask::Compare { old: record, new: None, ttl: None };
                }
                self.at = At::Free { version };
                Ask::Watch { keys: Watched::Version(version), from: next, until: None }
            }
            (At::Works { place }, Reply::Record(View { record, .. })) => {
                let waiting = record.filter(|(record, _)| record.status == Status::Final);
                let waiting = waiting.and_then(|(record, _)| record.waiting).unwrap_or(0);
                if waiting > 0 {
                    return self.start();
                }
                self.at = At::Works { place };
                Ask::Sleep(Duration::from_secs(1))
            }
            // It expects a counter, and nobody else to set up a version.
            (At::Counter | At::Count { .. } | At::Folder { .. } | At::Publish { .. }, _) if !done => {
                Ask::Dies
            }
            // Its states that are not as it wants them are begun again.
            _ => self.retry(Duration::ZERO),
        }
    }
}

/// How often its thread renews.
pub(crate) const RENEWS: Duration = Duration::from_millis(KEEP_ALIVE_TTL.as_millis() as u64 / 2);
