//! An operator who keeps nodes out of the run and lets them in again, as the commands do.

use std::time::Duration;

use rallypoint_core::round::{
    ChangeExclusions, Exclusion, ExclusionAuthor, ExclusionChange, ExclusionOutcome, ExclusionStep, Failure,
    Reply, Request, Whom,
};

use crate::check::Violation;
use crate::network::TIMEOUT;
use crate::world::{Step, World};

#[derive(Debug, Default)]
pub(crate) struct Keeper {
    change: Option<ChangeExclusions>,
    /// Counts the requests: an answer that comes after its time is none.
    asked: u64,
    pub(crate) outcome: Option<ExclusionOutcome>,
}

impl World {
    /// An operator changes who is kept out, unless the last change is under way.
    pub(crate) fn keeper_changes(&mut self, change: ExclusionChange) {
        if self.keeper.change.is_some() {
            return;
        }
        self.trace(|| format!("an operator changes who is kept out: {change:?}"));
        self.cause();
        let at_ms = u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX);
        let change = ChangeExclusions::new(&self.keys, change, ExclusionAuthor::Operator, at_ms);
        (self.keeper.change, self.keeper.outcome) = (Some(change), None);
        self.keeper_goes_on(Duration::ZERO);
    }

    fn keeper_goes_on(&mut self, pause: Duration) {
        let Some(change) = &self.keeper.change else { return };
        match change.poll() {
            ExclusionStep::Done(outcome) => {
                let unused = change.unused_leases();
                (self.keeper.change, self.keeper.outcome) = (None, outcome.ok());
                self.trace(|| format!("the operator is done: {:?}", self.keeper.outcome));
                for lease in unused {
                    let (request, history) = (Request::Revoke(lease), self.etcd.history);
                    self.after(Duration::ZERO, Step::KeeperAsks { number: 0, request, history });
                }
            }
            ExclusionStep::Send(request) => {
                self.keeper.asked += 1;
                let (number, history) = (self.keeper.asked, self.etcd.history);
                let lost = Err(Failure::Unknown);
                self.after(pause + TIMEOUT, Step::KeeperHears { number, reply: lost });
                let delay = pause + self.up_to(Duration::from_millis(20));
                let Some(request) = self.planted.alter_request(request) else { return };
                let request = self.planted.alter_exclusion(request);
                if self.rng.f64() >= self.weather.lost {
                    self.after(delay, Step::KeeperAsks { number, request, history });
                }
            }
        }
    }

    pub(crate) fn keeper_asks(
        &mut self,
        number: u64,
        request: &Request,
        history: u64,
    ) -> Result<(), Violation> {
        if history != self.etcd.history {
            return Ok(());
        }
        if self.now < self.etcd_away_until {
            if !self.etcd_restarts {
                let at = self.etcd_away_until;
                self.at(at, Step::KeeperAsks { number, request: request.clone(), history });
            }
            return Ok(());
        }
        let reply = self.etcd.apply(self.now, request);
        self.publish()?;
        if self.rng.f64() >= self.weather.lost {
            let delay = self.up_to(Duration::from_millis(20));
            self.after(delay, Step::KeeperHears { number, reply });
        }
        Ok(())
    }

    pub(crate) fn keeper_hears(&mut self, number: u64, reply: Result<Reply, Failure>) {
        if number != self.keeper.asked {
            return;
        }
        let Some(change) = &mut self.keeper.change else { return };
        let pause = if change.handle(reply) { Duration::ZERO } else { Duration::from_millis(100) };
        self.keeper_goes_on(pause);
    }

    /// Whether etcd has it that a node of this name is kept out.
    pub(crate) fn is_kept_out(&self, id: &str) -> bool {
        let prefix = self.keys.exclusions();
        self.etcd.prefix(&prefix).any(|entry| keeps_out(&entry.value, id))
    }
}

/// Whether an exclusion as it stands in etcd is of a node of this name.
pub(crate) fn keeps_out(exclusion: &str, id: &str) -> bool {
    serde_json::from_str::<Exclusion>(exclusion).is_ok_and(|exclusion| exclusion.whom.is(id, &host_of(id)))
}

/// The number in a node's name; others have none.
fn number_of(id: &str) -> Option<usize> {
    id.strip_prefix('n')?.parse().ok()
}

/// The machine that a node runs on: each has two.
pub(crate) fn host_of(id: &str) -> String {
    number_of(id).map_or_else(|| format!("host-of-{id}"), |number| format!("h{}", number / 2))
}

/// The rack that a node is in, where there are so many.
pub(crate) fn rack_of(id: &str, racks: usize) -> String {
    format!("rack{}", number_of(id).map_or(0, |number| number % racks))
}

/// Somebody to keep out.
pub(crate) fn whom(id: &str, host: bool) -> Whom {
    if host { Whom::Host(host_of(id)) } else { Whom::Node(id.to_owned()) }
}
