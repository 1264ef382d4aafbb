//! Bugs planted between the machine and etcd, to see that the checks find them.

use fastrand::Rng;
use rallypoint_core::round::{Condition, Entry, Event, Op, RankRecord, Request, RoundRecord, Txn, Update};

use crate::world::RUN;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    None,
    /// Whoever was the leader once can commit a round.
    CommitByAnyLeader,
    /// A place counts whatever plan it is from.
    RankFromAnyPlan,
    /// Now and then a watch says nothing of an event.
    LostWakeUp,
}

impl Planted {
    pub(crate) fn named(name: &str) -> Self {
        let all = [Planted::CommitByAnyLeader, Planted::RankFromAnyPlan, Planted::LostWakeUp];
        all.into_iter().find(|planted| format!("{planted:?}") == name).unwrap_or(Planted::None)
    }

    pub(crate) fn alter_request(self, request: Request) -> Request {
        match request {
            Request::Txn(mut txn) if self == Planted::CommitByAnyLeader && writes_round(&txn) => {
                let leader = format!("{RUN}group/leader");
                txn.when
                    .retain(|condition| !matches!(condition, Condition::CreatedAt(key, _) if *key == leader));
                Request::Txn(txn)
            }
            request => request,
        }
    }

    /// Whether this update is kept from the machine.
    pub(crate) fn loses_update(self, rng: &mut Rng) -> bool {
        self == Planted::LostWakeUp && rng.u8(..100) < 5
    }

    /// The place that a machine without plans would take from a round it hears of: the last one it knows of.
    pub(crate) fn stale_rank(self, known: Option<&Entry>, update: &Update) -> Option<Update> {
        if self != Planted::RankFromAnyPlan {
            return None;
        }
        let key = format!("{RUN}group/round");
        let entries: Vec<&Entry> = match update {
            Update::Events(events) => events
                .iter()
                .filter_map(|event| if let Event::Put(entry) = event { Some(entry) } else { None })
                .collect(),
            Update::Snapshot { entries, .. } => entries.iter().collect(),
        };
        let round = entries.into_iter().rev().find(|entry| entry.key == key)?;
        let round: RoundRecord = serde_json::from_str(&round.value).expect("a round can be read");
        let mut known = known?.clone();
        let mut rank: RankRecord = serde_json::from_str(&known.value).expect("a place can be read");
        (rank.plan, rank.round) = (round.plan, round.round);
        known.value = serde_json::to_string(&rank).expect("a place can be written");
        Some(Update::Snapshot { revision: known.mod_revision, entries: vec![known] })
    }
}

fn writes_round(txn: &Txn) -> bool {
    let round = format!("{RUN}group/round");
    txn.then.iter().any(|op| matches!(op, Op::Put { key, .. } if *key == round))
}
