//! A final version is in the way: wait for its end, or bring it about.
//!
//! ```text
//!            nobody to tell; one is missing, or this node comes back from it
//! Listing ─────────────────────────────────────────────────────────────────► end it
//!    │ PyTorch's members live, or the group is whole
//!    ▼
//! announce ──► Announced ── one is missing, and those of PyTorch's had GRACE to see the number ──► end it
//! (a newcomer to a full group does not announce itself: it stands by)
//! ```

use std::time::Duration;

use super::etcd::{KeepAlive, VersionRank};
use super::{GRACE, Record};

/// How long a spare leaves a full group with a missing member to itself.
const SPARED: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Waiting {
    pub(super) version: u64,
    pub(super) role: Role,
    /// The keep-alives that are there, and the index from which on they were not looked at; nothing if it is
    /// time to look.
    members: Option<(Vec<KeepAlive>, u64)>,
    /// When this node was added to the number waiting.
    announced: Option<Duration>,
    absent: Option<Absent>,
}

/// Members that are missing.
#[derive(Debug, Clone, PartialEq)]
struct Absent {
    ranks: Vec<usize>,
    /// Since when none more was.
    since: Duration,
    /// The index at which the record was created: members put it back before their keep-alives.
    created: u64,
}

/// Who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Not a member of that version.
    Newcomer,
    /// A member that asks for a new version.
    Member(VersionRank),
    /// The same, whose keep-alive is no longer kept.
    Expiring(VersionRank),
}

/// What comes next.
pub(super) enum Next {
    List,
    /// Remove the record.
    End,
    /// Let the keep-alive of this node run out, then [`Waiting::expiring`].
    Expire(VersionRank),
    /// Add this node to the number waiting, then [`Waiting::announced`].
    Announce,
    /// Wait for a change of the record or of the members, beside so many others that wait.
    Wait {
        crowd: usize,
        until: Option<Duration>,
    },
}

/// What the node knows beside the record.
pub(super) struct Surroundings {
    pub(super) now: Duration,
    pub(super) max: usize,
    /// The index at which the record was created.
    pub(super) created: u64,
    /// The index from which on nothing was seen.
    pub(super) next: u64,
    /// Until then a keep-alive that is gone is no death.
    pub(super) grace_until: Duration,
    /// Others change the record.
    pub(super) woken: bool,
}

impl Waiting {
    pub(super) fn new(version: u64, role: Role) -> Self {
        Waiting { version, role, members: None, announced: None, absent: None }
    }

    pub(super) fn next(&mut self, record: &Record, around: &Surroundings) -> Next {
        let Some((members, listed)) = &self.members else { return Next::List };
        if record.waiting.unwrap_or(0) == 0 {
            // What etcd lost and a member put back does not have this node in it.
            self.announced = None;
        }
        let own = match self.role {
            Role::Newcomer => None,
            Role::Member(place) | Role::Expiring(place) => Some(place.rank),
        };
        let full = record.joined() >= around.max;
        // Also one that never confirmed: after etcd lost data, two of PyTorch's nodes can confirm the same rank.
        let gone: Vec<usize> =
            (0..record.joined()).filter(|rank| !members.iter().any(|member| member.rank == *rank)).collect();
        let absent = !gone.is_empty();
        // Who was missing before may have been back since.
        let since = match &self.absent {
            Some(before)
                if before.created == around.created
                    && gone.iter().all(|rank| before.ranks.contains(rank)) =>
            {
                before.since
            }
            _ => around.now,
        };
        self.absent = absent.then_some(Absent { ranks: gone, since, created: around.created });
        // A spare does not know whether etcd was away, so it leaves a full group to its members. They see who
        // dies, and count up the number waiting; if nobody does, they are dead.
        let spared_until = since + SPARED;
        let spared_until = spared_until.max(around.grace_until);
        let alone = own.is_none() && full && record.waiting.unwrap_or(0) == 0;
        let excused = alone && around.now < spared_until;
        let missing = absent && !excused;
        let to_tell = members.iter().any(|member| member.node.is_none() && Some(member.rank) != own);
        if !to_tell && (missing || own.is_some()) {
            return Next::End;
        }
        if let Role::Member(place) = self.role {
            return Next::Expire(place);
        }
        match self.announced {
            None if own.is_some() || missing || !full => Next::Announce,
            Some(announced) if missing && around.now >= announced + GRACE => Next::End,
            announced => {
                let crowd = usize::try_from(record.waiting.unwrap_or(0)).unwrap_or(usize::MAX);
                // Whoever went between the last look at them and what was done since would never be missed.
                if *listed != around.next && !(around.woken && super::pace::is_crowd(crowd)) {
                    return Next::List;
                }
                let deadline = announced.filter(|_| missing).map(|announced| announced + GRACE);
                let until = if absent && excused { Some(spared_until) } else { deadline };
                Next::Wait { crowd, until }
            }
        }
    }

    /// The keep-alives that are there. After a loss of data the one at this node's place can be another's: then the
    /// version is of other nodes.
    pub(super) fn listed(&mut self, members: Vec<KeepAlive>, next: u64, node: &str) {
        if let Role::Member(place) | Role::Expiring(place) = self.role
            && members.iter().any(|one| one.rank == place.rank && one.node.as_deref() != Some(node))
        {
            self.role = Role::Newcomer;
        }
        self.members = Some((members, next));
    }

    /// A watch of the members has come to this index without news of them.
    pub(super) fn seen_up_to(&mut self, next: u64) {
        if let Some((_, listed)) = &mut self.members {
            *listed = next;
        }
    }

    pub(super) fn look_again(&mut self) {
        self.members = None;
    }

    pub(super) fn announced(&mut self, now: Duration) {
        self.announced = Some(now);
    }

    pub(super) fn expiring(&mut self) {
        if let Role::Member(place) = self.role {
            self.role = Role::Expiring(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record_of_two(confirmed: [&str; 2]) -> Record {
        let record = Record::joinable(1).with_node(2).0.with_node(2).0;
        record.with_confirmed(confirmed[0]).with_confirmed(confirmed[1])
    }

    /// Two of PyTorch's nodes had confirmed the same rank, and nobody the other; all that were confirmed were there, so
    /// that a spare waited for ever.
    #[test]
    fn a_member_that_never_confirmed_is_missing() {
        let record = record_of_two(["/v_1/rank_1", "/v_1/rank_1"]);
        let around = |seconds: u64| Surroundings {
            now: Duration::from_secs(seconds),
            max: 2,
            created: 1,
            next: 7,
            grace_until: Duration::ZERO,
            woken: false,
        };
        let mut waiting = Waiting::new(1, Role::Newcomer);
        waiting.listed(vec![KeepAlive { rank: 1, node: None }], 7, "one");
        assert!(matches!(waiting.next(&record, &around(1)), Next::Wait { until: Some(_), .. }));
        assert!(matches!(waiting.next(&record, &around(6)), Next::Announce));
    }

    /// A spare gave a member time that was missing; when that was over the folder of the run had just ended, and all
    /// were.
    #[test]
    fn every_member_that_is_missing_gets_its_time() {
        let record = record_of_two(["/v_1/rank_0", "/v_1/rank_1"]);
        let around = |seconds: u64, created: u64| Surroundings {
            now: Duration::from_secs(seconds),
            max: 2,
            created,
            next: 7,
            grace_until: Duration::ZERO,
            woken: false,
        };
        let there = KeepAlive { rank: 1, node: Some("n".to_owned()) };
        let mut waiting = Waiting::new(1, Role::Newcomer);
        waiting.listed(vec![there.clone()], 7, "one");
        assert!(matches!(waiting.next(&record, &around(1, 1)), Next::Wait { until: Some(_), .. }));
        waiting.listed(Vec::new(), 7, "one");
        assert!(matches!(waiting.next(&record, &around(6, 1)), Next::Wait { until: Some(_), .. }));
        assert!(matches!(waiting.next(&record, &around(11, 9)), Next::Wait { until: Some(_), .. }));
        waiting.listed(vec![there], 7, "one");
        assert!(matches!(waiting.next(&record, &around(16, 9)), Next::End));
    }
}
