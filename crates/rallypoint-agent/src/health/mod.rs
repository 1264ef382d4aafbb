//! A node meets the others only while it is fit.
//!
//! ```text
//!            ┌──────────────────────────────────────────────┐
//!            ▼        fit                        met        │ what others found out
//!   look at itself ─────────▶ wait for a round ───────▶ can the nodes reach each other?
//!            │ ▲                     │                      │ yes
//!       sick │ │ later               │ sick                 ▼
//!            ▼ │                     │                   the round
//!     step back, and wait ◀──────────┘
//! ```

pub(crate) mod reachability;
pub(crate) mod settings;

use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rallypoint_core::round::{EventRecord, What};
use rallypoint_core::text::plain;
use rallypoint_core::time::millis;
use rallypoint_health::{Check, Checks, Sick, Surroundings};
use rallypoint_rendezvous::{Rendezvous, RendezvousError, RendezvousHandler};
use tracing::{info, warn};

use crate::exclude::exclude_itself;
use crate::phase::Phase;

/// How long one check may take: less than the last call, in which the others wait for a node that meets them again.
pub const DEFAULT_HEALTH_TIMEOUT: Duration = Duration::from_secs(25);
/// How long after a check the next one is, of a node that waits.
pub const DEFAULT_HEALTH_INTERVAL: Duration = Duration::from_secs(60);

/// The longest that a node stays away which others cannot reach, unless the interval is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// How often a node that stays away looks whether the run goes on at all.
const RUN_IS_LOOKED_AT: Duration = Duration::from_secs(5);

/// What a node does that is not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenUnhealthy {
    /// It stays away from the others, looks again now and then, and comes when it is fit.
    #[default]
    Wait,
    /// It ends.
    End,
    /// It ends, and is kept out of the run, for so long or for as long as the run lives.
    Exclude(Option<Duration>),
}

impl FromStr for WhenUnhealthy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "wait" => Ok(WhenUnhealthy::Wait),
            "end" => Ok(WhenUnhealthy::End),
            "exclude" => Ok(WhenUnhealthy::Exclude(None)),
            _ => Err(format!("{text:?} is none of wait, end and exclude")),
        }
    }
}

/// The checks of a node, and when they are made.
#[derive(Debug)]
pub struct Health {
    checks: Checks,
    limit: Duration,
    interval: Duration,
    when_unhealthy: WhenUnhealthy,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The others have heard of this node.
    asked: bool,
    /// What was found out together with the others.
    found: Option<Sick>,
    /// How often, since all was well: who comes again only to be found so again stops the others each time.
    found_times: u32,
}

impl Health {
    /// These checks, each of which may take `limit`, with `interval` between two looks of a node that waits.
    #[must_use]
    pub fn new(
        checks: impl IntoIterator<Item = Check>,
        surroundings: Surroundings,
        (limit, interval): (Duration, Duration),
        when_unhealthy: WhenUnhealthy,
    ) -> Self {
        let checks = Checks::new(checks, surroundings, limit);
        Health { checks, limit, interval, when_unhealthy, state: Mutex::default() }
    }

    /// Meets the others as [`RendezvousHandler::next_rendezvous`] does, once this node is fit. `enter` is told what it does, as it
    /// begins to look at itself, stays away from them, or meets them; `note`, what the run has among its events of that.
    pub async fn next_rendezvous(
        &self,
        handler: &dyn RendezvousHandler,
        enter: impl Fn(Phase),
        note: impl Fn(&What),
    ) -> Result<Rendezvous, RendezvousError> {
        let mut told: Vec<Sick> = Vec::new();
        let happened = async |what: What| {
            note(&what);
            let node = handler.node_name().unwrap_or_default();
            let round = handler.progress().borrow().round.saturating_sub(1);
            handler.record(&EventRecord::new(millis(SystemTime::now()), node, round, what)).await;
        };
        loop {
            let found = self.state().found.take();
            let mut sick = Vec::from_iter(found);
            if sick.is_empty() {
                if told.is_empty() {
                    enter(Phase::Checking);
                }
                sick = self.checks.look().await;
            }
            if sick.is_empty() {
                if !told.is_empty() {
                    let times = self.state().found_times;
                    if times > 0 {
                        info!("this node joins, to see whether the nodes can reach each other now");
                    } else {
                        info!("this node passes its health checks again");
                        happened(What::Healthy).await;
                    }
                    told.clear();
                }
                enter(Phase::Meeting);
                self.state().asked = true;
                tokio::select! {
                    biased;
                    met = handler.next_rendezvous() => return met,
                    found = self.found_while_waiting() => sick = found,
                }
            }
            let problems = || sick.iter().map(|sick| plain(&sick.in_short())).collect::<Vec<_>>();
            let unhealthy =
                || RendezvousError::Unhealthy { run_id: handler.run_id().to_owned(), problems: problems() };
            // Not each time that its words differ.
            if told.is_empty() {
                happened(What::Unhealthy { problems: problems() }).await;
            }
            if self.when_unhealthy != WhenUnhealthy::Wait {
                // With all that a check has written; in the error there is a line of it.
                sick.iter().for_each(|sick| warn!("{sick}; this node does not join"));
            }
            match self.when_unhealthy {
                WhenUnhealthy::Wait => {}
                WhenUnhealthy::End => return Err(unhealthy()),
                WhenUnhealthy::Exclude(time) => {
                    exclude_itself(handler, &problems().join("; "), time).await;
                    return Err(unhealthy());
                }
            }
            if sick != told {
                let again = self.pause().as_secs_f64();
                for sick in &sick {
                    warn!("{sick}; this node does not join, and looks again every {again} s");
                }
                told = sick.clone();
            }
            enter(Phase::Away);
            if std::mem::take(&mut self.state().asked) {
                // An etcd that does not answer is no reason to stay: this node's lease ends.
                let comes_again = handler.withdraw().await.unwrap_or(true);
                if !comes_again {
                    return Err(unhealthy());
                }
            }
            if self.is_over_by_then(handler).await {
                // It says so, in its own words.
                return handler.next_rendezvous().await;
            }
        }
    }

    /// Stays away until it is time to look again; or, which is true, until the run is over meanwhile.
    async fn is_over_by_then(&self, handler: &dyn RendezvousHandler) -> bool {
        let over = async {
            // An etcd that does not answer says nothing of the run.
            while !handler.is_closed().await.unwrap_or(false) {
                tokio::time::sleep(RUN_IS_LOOKED_AT).await;
            }
        };
        tokio::time::timeout(self.pause(), over).await.is_ok()
    }

    /// How long a node stays away before it looks again: longer each time that others have found it out.
    fn pause(&self) -> Duration {
        let times = self.state().found_times.saturating_sub(1).min(16);
        self.interval.saturating_mul(1 << times).min(self.interval.max(LONGEST_PAUSE))
    }

    /// Looks again and again; what it finds.
    async fn found_while_waiting(&self) -> Vec<Sick> {
        loop {
            tokio::time::sleep(self.interval).await;
            let sick = self.checks.look().await;
            if !sick.is_empty() {
                return sick;
            }
        }
    }

    /// Whether the nodes that have met are to find out if they can reach each other, and how long that may take.
    #[must_use]
    pub fn looks_at_others(&self) -> Option<Duration> {
        self.checks.among_nodes().then_some(self.limit)
    }

    /// The nodes can reach each other.
    pub fn all_is_well(&self) {
        self.state().found_times = 0;
    }

    /// What the nodes have found out of this one. It stays away for a while.
    pub fn found(&self, why: String) {
        let mut state = self.state();
        state.found = Some(Sick::new(&Check::Port, why));
        state.found_times += 1;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
