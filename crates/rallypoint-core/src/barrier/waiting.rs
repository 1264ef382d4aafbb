//! A final version is in the way: wait for its end, or bring it about.

use std::time::Duration;

use super::machine::{CROWD, Goal, KeepAlive, Machine, Place, Request};
use super::{GRACE, Status};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Free {
    pub(super) version: u64,
    /// This node's place in it, if it is a member that comes back.
    pub(super) place: Option<Place>,
    /// The keep-alives that are there; nothing if it is time to look.
    pub(super) members: Option<Vec<KeepAlive>>,
    /// All that went before this index is not among them.
    pub(super) listed: u64,
    /// When this node was added to the number waiting.
    pub(super) announced: Option<Duration>,
    /// A returning member's keep-alive is no longer kept.
    pub(super) running_out: bool,
}

impl Machine {
    pub(super) fn free(&mut self, now: Duration, random: f64, free: Free) {
        let Some((record, over)) = self.seen(Status::Final, free.version) else {
            self.came_from = Some(free.version);
            return self.restart(now, random);
        };
        self.goal = Goal::Free(free.clone());
        let Free { version, place, announced, .. } = free;
        let Some(members) = free.members else {
            return self.ask(Request::ListVersion { version });
        };
        let mine = |member: &KeepAlive| place.is_some_and(|place| place.rank == member.rank);
        let missing = record.keep_alives.iter().flatten().any(|key| {
            let rank = key.rsplit("rank_").next().and_then(|rank| rank.parse().ok());
            !members.iter().any(|member| Some(member.rank) == rank)
        });
        let others_to_tell = members.iter().any(|member| !member.ours && !mine(member));
        if !others_to_tell && (missing || place.is_some()) {
            return self.ask(Request::DeleteState { over });
        }
        if let Some(place) = place.filter(|_| !free.running_out) {
            return self.ask(Request::RunOut(place));
        }
        let full = record.joined() >= self.settings.max;
        match announced {
            None if place.is_some() || missing || !full => {
                self.ask(Request::SwapState { record: record.with_waiting(), over, ttl: None });
            }
            Some(announced) if missing && now >= announced + GRACE => {
                self.ask(Request::DeleteState { over });
            }
            _ => {
                let until = announced.filter(|_| missing).map(|announced| announced + GRACE);
                let crowd = usize::try_from(record.waiting.unwrap_or(0)).unwrap_or(usize::MAX);
                if self.woken && crowd >= CROWD {
                    return self.wait(now, random, crowd, until);
                }
                // Whoever went between the last look at them and what was done since would never be missed.
                if free.listed != self.view.next {
                    return self.ask(Request::ListVersion { version });
                }
                let time = until.unwrap_or(Duration::MAX).saturating_sub(now);
                self.ask(Request::WatchVersion { version, from: self.view.next, time });
            }
        }
    }

    pub(super) fn runs_out(&mut self, now: Duration, random: f64) {
        if let Goal::Free(free) = &mut self.goal {
            free.running_out = true;
        }
        self.judge(now, random, self.view.clone());
    }
}
