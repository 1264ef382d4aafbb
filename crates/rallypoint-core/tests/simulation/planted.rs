//! Bugs planted between the machine and etcd, or the machine and its program, to see that the checks find them.

use std::time::Duration;

use fastrand::Rng;
use rallypoint_core::round::{
    Change, Condition, Entry, Event, Joined, Node, NodeEvent, NodeRecord, Op, OpReply, RankRecord, Refusal,
    Reply, Request, RoundRecord, Txn, Update,
};

use crate::chaos::Fault;
use crate::etcd::key_of;
use crate::world::RUN;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    None,
    /// Whoever was the leader once can commit a round that it has planned.
    CommitUnfenced,
    /// A place counts whatever plan it is from.
    RankFromAnyPlan,
    /// Now and then a watch says nothing of an event.
    LostWakeUp,
    /// After its stream was cut, a watch goes on from where it was, whatever etcd has lost.
    TrustEveryHistory,
    /// A node that has just been started takes every missing key for a death, and asks nobody.
    NoGraceForNewcomers,
    /// A plan that comes to nothing costs the members their places.
    PlacesWithoutPrevious,
    /// A process that was replaced is not told.
    ReplacedUntold,
    /// Members are not told that etcd has lost their round.
    LossUntold,
    /// A refused request is never answered.
    RefusalUnanswered,
    /// Of two that leave a closed run together, each sees the other and nobody tidies up.
    NobodySweeps,
    /// Places of nodes that are gone stay.
    NobodyTidies,
    /// Nodes do not say which seat they had.
    SeatsUnsaid,
    /// A member whose key is gone is called dead without being asked.
    NobodyAsks,
    /// A write that was refused is sent again at once, many times.
    Spin,
    /// What happened is not written down.
    EventsUnwritten,
    /// An exclusion is written without a word in the group's record.
    ExcludedAside,
    /// Nobody is told by a watch that somebody is kept out.
    ExclusionsUntold,
    /// All nodes say that they are in one rack.
    RacksUnsaid,
    /// Whoever stands by is said to be waited for.
    SparesWait,
    /// A node goes by the number of its round alone.
    GoesByNumber,
    /// Who is refused because the run is closed takes the mark of that with it.
    MarkRevoked,
    /// A node is not told that etcd refuses it a watch.
    RefusedWatchUntold,
    /// A group is told of newcomers that are not there.
    NewcomersInvented,
}

pub(crate) const ALL: [Planted; 23] = [
    Planted::CommitUnfenced,
    Planted::RankFromAnyPlan,
    Planted::LostWakeUp,
    Planted::TrustEveryHistory,
    Planted::NoGraceForNewcomers,
    Planted::PlacesWithoutPrevious,
    Planted::ReplacedUntold,
    Planted::LossUntold,
    Planted::RefusalUnanswered,
    Planted::NobodySweeps,
    Planted::NobodyTidies,
    Planted::SeatsUnsaid,
    Planted::NobodyAsks,
    Planted::Spin,
    Planted::EventsUnwritten,
    Planted::ExcludedAside,
    Planted::ExclusionsUntold,
    Planted::RacksUnsaid,
    Planted::SparesWait,
    Planted::GoesByNumber,
    Planted::MarkRevoked,
    Planted::RefusedWatchUntold,
    Planted::NewcomersInvented,
];

impl Planted {
    pub(crate) fn named(name: &str) -> Self {
        ALL.into_iter().find(|planted| format!("{planted:?}") == name).unwrap_or(Planted::None)
    }

    /// Whether it takes a world in which some are kept out, or only whole segments are seated.
    pub(crate) fn is_choosy(self) -> bool {
        use Planted::{ExcludedAside, ExclusionsUntold, RacksUnsaid, SparesWait};
        matches!(self, ExcludedAside | ExclusionsUntold | RacksUnsaid | SparesWait)
    }

    /// The promises that it is about.
    pub(crate) fn breaks(self) -> &'static [u8] {
        match self {
            Planted::None => &[],
            Planted::CommitUnfenced => &[1, 2, 3],
            Planted::RankFromAnyPlan => &[1, 2, 7],
            Planted::NobodySweeps | Planted::NobodyTidies => &[5],
            Planted::NoGraceForNewcomers => &[7, 9],
            Planted::PlacesWithoutPrevious => &[7, 8],
            Planted::Spin => &[10],
            Planted::EventsUnwritten => &[12],
            Planted::ExcludedAside => &[13],
            Planted::ExclusionsUntold => &[14],
            Planted::RacksUnsaid => &[15],
            Planted::SparesWait => &[6, 14],
            Planted::MarkRevoked => &[4],
            Planted::RefusedWatchUntold => &[11],
            Planted::NewcomersInvented => &[7],
            _ => &[4, 6, 7, 8, 9, 10],
        }
    }

    /// The kinds of faults that bring it out; none for all of them.
    pub(crate) fn faults(self) -> &'static [Fault] {
        match self {
            Planted::CommitUnfenced => {
                &[Fault::CrashLeader, Fault::StallLeader, Fault::Restart, Fault::WorkerFailure]
            }
            Planted::TrustEveryHistory | Planted::LossUntold | Planted::SeatsUnsaid => {
                &[Fault::BackUp, Fault::DataLost, Fault::Newcomer]
            }
            Planted::NoGraceForNewcomers => &[Fault::EtcdPaused],
            Planted::PlacesWithoutPrevious => &[Fault::CrashAtRequest, Fault::Restart, Fault::WorkerFailure],
            Planted::ReplacedUntold => &[Fault::Double],
            Planted::RefusalUnanswered => &[Fault::Full, Fault::Denied],
            Planted::NobodyTidies => &[Fault::Crash, Fault::Newcomer],
            Planted::NobodyAsks => &[Fault::LeaseEnded],
            Planted::ExcludedAside => &[Fault::Exclude, Fault::Include, Fault::WorkerFailure],
            Planted::SparesWait => &[Fault::Newcomer, Fault::Crash],
            Planted::GoesByNumber => &[Fault::DataLost, Fault::Newcomer],
            Planted::RefusedWatchUntold => &[Fault::Denied],
            _ => &[],
        }
    }

    /// The request as it goes out; none if it does not.
    pub(crate) fn alter_request(self, request: Request) -> Option<Request> {
        let Request::Txn(mut txn) = request else { return Some(request) };
        match self {
            Planted::CommitUnfenced if writes_round(&txn) => {
                let (leader, plan) = (format!("{RUN}group/leader"), format!("{RUN}plan"));
                // And the places, of which it would show that somebody else has planned since.
                let ranks = format!("{RUN}rank/");
                txn.when.retain(|condition| match condition {
                    Condition::CreatedAt(key, _)
                    | Condition::ModifiedAt(key, _)
                    | Condition::Holds(key, _) => *key != leader && *key != plan && !key.starts_with(&ranks),
                    _ => true,
                });
            }
            Planted::PlacesWithoutPrevious => {
                for op in &mut txn.then {
                    if let Op::Put { key, value, .. } = op
                        && key.starts_with(&format!("{RUN}rank/"))
                    {
                        let mut place: RankRecord = serde_json::from_str(value).expect("a place can be read");
                        place.previous = None;
                        *value = serde_json::to_string(&place).expect("a place can be written");
                    }
                }
            }
            Planted::NobodyAsks | Planted::NoGraceForNewcomers => {
                for op in &mut txn.then {
                    if let Op::Put { value, .. } = op {
                        *value = value.replace(r#","asked":true"#, "");
                    }
                }
            }
            Planted::SeatsUnsaid => {
                for op in &mut txn.then {
                    if let Op::Put { key, value, .. } = op
                        && key.starts_with(&format!("{RUN}node/"))
                    {
                        let mut node: NodeRecord = serde_json::from_str(value).expect("a node can be read");
                        node.seat = None;
                        *value = serde_json::to_string(&node).expect("a node can be written");
                    }
                }
            }
            Planted::RacksUnsaid => {
                for op in &mut txn.then {
                    if let Op::Put { key, value, .. } = op
                        && key.starts_with(&format!("{RUN}node/"))
                    {
                        let mut node: NodeRecord = serde_json::from_str(value).expect("a node can be read");
                        node.rack = "everywhere".to_owned();
                        *value = serde_json::to_string(&node).expect("a node can be written");
                    }
                }
            }
            Planted::SparesWait | Planted::NewcomersInvented => {
                for op in &mut txn.then {
                    if let Op::Put { key, value, .. } = op
                        && *key == format!("{RUN}group/round")
                    {
                        let mut round: RoundRecord =
                            serde_json::from_str(value).expect("a round can be read");
                        let invented = self == Planted::NewcomersInvented && round.news.lost_count == 0;
                        let spares = if self == Planted::SparesWait { round.news.spares } else { 0 };
                        round.news.waiting += if invented { 1 } else { spares };
                        *value = serde_json::to_string(&round).expect("a round can be written");
                    }
                }
            }
            Planted::NobodySweeps => {
                for op in &mut txn.then {
                    if let Op::Txn(inner) = op
                        && sweeps(inner)
                    {
                        inner.otherwise.clear();
                    }
                }
            }
            Planted::EventsUnwritten => {
                let events = format!("{RUN}event/");
                txn.then.retain(|op| !matches!(op, Op::Put { key, .. } if key.starts_with(&events)));
            }
            Planted::NobodyTidies if tidies(&txn) => {
                txn.then.retain(|op| !matches!(op, Op::Delete(_) | Op::DeletePrefix(_)));
            }
            _ => {}
        }
        Some(Request::Txn(txn))
    }

    /// The exclusion as it goes out.
    pub(crate) fn alter_exclusion(self, request: Request) -> Request {
        match request {
            Request::Txn(mut txn) if self == Planted::ExcludedAside => {
                let exclusions = format!("{RUN}group/excluded/");
                txn.then.retain(|op| match op {
                    Op::Put { key, .. } => key.starts_with(&exclusions),
                    _ => true,
                });
                Request::Txn(txn)
            }
            request => request,
        }
    }

    /// The update as a process hears it that is in that round.
    pub(crate) fn alter_update(self, update: Update, seat: Option<&Joined>) -> Update {
        match update {
            Update::Events(mut events) if self == Planted::GoesByNumber => {
                for event in &mut events {
                    if let Event::Put(entry) = event {
                        mistake_round(entry, seat);
                    }
                }
                Update::Events(events)
            }
            Update::Events(mut events) if self == Planted::ExclusionsUntold => {
                let exclusions = format!("{RUN}group/excluded/");
                events.retain(|event| !key_of(event).starts_with(&exclusions));
                Update::Events(events)
            }
            update => update,
        }
    }

    /// Whether this update is kept from the machine.
    pub(crate) fn loses_update(self, rng: &mut Rng) -> bool {
        self == Planted::LostWakeUp && rng.u8(..100) < 5
    }

    pub(crate) fn trusts_every_history(self) -> bool {
        self == Planted::TrustEveryHistory
    }

    pub(crate) fn answers_refusals(self) -> bool {
        self != Planted::RefusalUnanswered
    }

    pub(crate) fn tells_refused_watches(self) -> bool {
        self != Planted::RefusedWatchUntold
    }

    /// Whether a process that is refused so ends the lease of the closed mark.
    pub(crate) fn revokes_marks(self, refusal: &Refusal) -> bool {
        self == Planted::MarkRevoked && matches!(refusal, Refusal::Closed(_))
    }

    /// The reply as a process hears it that is in that round.
    pub(crate) fn alter_reply(self, reply: &mut Reply, seat: Option<&Joined>) {
        if let (Planted::GoesByNumber, Reply::Txn(reply)) = (self, reply) {
            for result in &mut reply.results {
                if let OpReply::Got(Some(entry)) = result {
                    mistake_round(entry, seat);
                }
            }
        }
    }

    /// How often a request goes out.
    pub(crate) fn sends(self) -> u32 {
        if self == Planted::Spin { 30 } else { 1 }
    }

    /// What a machine is made to believe before it begins.
    pub(crate) fn prepare(self, now: Duration, lease: Duration, node: &mut Node) {
        if self == Planted::NoGraceForNewcomers {
            for step in (0..20).rev() {
                let served = Reply::Range { revision: 0, entries: Vec::new() };
                node.handle_reply(now.saturating_sub(lease * step / 4), 0, Ok(served));
            }
        }
    }

    /// Whether the program is not told of this.
    pub(crate) fn conceals(self, event: &NodeEvent) -> bool {
        match event {
            NodeEvent::Changed(Change::Replaced { .. }) | NodeEvent::Refused(Refusal::Replaced { .. }) => {
                self == Planted::ReplacedUntold
            }
            NodeEvent::Changed(Change::StateLost) => self == Planted::LossUntold,
            _ => false,
        }
    }

    /// The place that a machine without plans would take from a round it hears of: the last one it knows of.
    pub(crate) fn stale_rank(self, known: Option<&Entry>, update: &Update) -> Option<Update> {
        if self != Planted::RankFromAnyPlan {
            return None;
        }
        let key = format!("{RUN}group/round");
        let Update::Events(events) = update else { return None };
        let round = events.iter().rev().find_map(|event| match event {
            Event::Put(entry) if entry.key == key => Some(entry),
            _ => None,
        })?;
        let record: RoundRecord = serde_json::from_str(&round.value).expect("a round can be read");
        let mut known = known?.clone();
        let mut rank: RankRecord = serde_json::from_str(&known.value).expect("a place can be read");
        (rank.plan, rank.round) = (record.plan, record.round);
        known.value = serde_json::to_string(&rank).expect("a place can be written");
        known.mod_revision = round.mod_revision;
        Some(Update::Events(vec![Event::Put(known)]))
    }
}

/// Takes a round for the one of that seat if it has the same number.
fn mistake_round(entry: &mut Entry, seat: Option<&Joined>) {
    let Some(seat) = seat.filter(|_| entry.key == format!("{RUN}group/round")) else { return };
    let mut round: RoundRecord = serde_json::from_str(&entry.value).expect("a round can be read");
    if round.round == seat.round {
        round.plan.clone_from(&seat.plan);
        entry.value = serde_json::to_string(&round).expect("a round can be written");
    }
}

fn writes_round(txn: &Txn) -> bool {
    let round = format!("{RUN}group/round");
    txn.then.iter().any(|op| matches!(op, Op::Put { key, .. } if *key == round))
}

fn sweeps(txn: &Txn) -> bool {
    txn.when.iter().any(|condition| matches!(condition, Condition::OnlyCreatedAt(..)))
}

fn tidies(txn: &Txn) -> bool {
    txn.when.len() > 1 && txn.then.iter().any(|op| matches!(op, Op::Delete(_) | Op::DeletePrefix(_)))
}
