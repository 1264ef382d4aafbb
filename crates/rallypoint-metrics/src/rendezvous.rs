//! What a rendezvous counts, as one node of it.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::Labelled;

/// Where a node is in a rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It has not asked for a round, or has left.
    Idle,
    /// It has asked for a round, and etcd has not taken that yet.
    Registering,
    /// It waits for enough nodes.
    Waiting,
    /// Enough are there; more are waited for.
    LastCall,
    /// There is no room for it; it stands by.
    Spare,
    /// It is in a round.
    Working,
    /// Its round is over, and it has not asked for another one yet.
    Changed,
}

impl Phase {
    /// All of them.
    pub const ALL: [Phase; 7] = [
        Phase::Idle,
        Phase::Registering,
        Phase::Waiting,
        Phase::LastCall,
        Phase::Spare,
        Phase::Working,
        Phase::Changed,
    ];

    /// As labels have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::Registering => "registering",
            Phase::Waiting => "waiting",
            Phase::LastCall => "last_call",
            Phase::Spare => "spare",
            Phase::Working => "working",
            Phase::Changed => "changed",
        }
    }
}

/// Why a member is there no more.
const WHY: [&str; 4] = ["died", "left", "replaced", "excluded"];
/// How a call for a round can end.
const OUTCOMES: [&str; 2] = ["joined", "failed"];

/// What a rendezvous counts, as one node of it.
#[derive(Debug, Clone, Default)]
pub struct Rendezvous(Arc<Families>);

#[derive(Debug)]
struct Families {
    info: Family<Vec<(&'static str, String)>, Gauge>,
    round: Gauge,
    rounds: Labelled<Counter>,
    rank: Gauge,
    members: Gauge,
    waiting: Gauge,
    spares: Gauge,
    lost: Labelled<Counter>,
    phase: Labelled<Gauge>,
    phase_start: Gauge<f64, AtomicU64>,
    phase_duration: Labelled<Histogram>,
    now: Mutex<Phase>,
}

fn durations() -> Histogram {
    Histogram::new([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0, 36000.0])
}

impl Default for Families {
    fn default() -> Self {
        let phases = Phase::ALL.map(Phase::name);
        let families = Families {
            info: Family::default(),
            round: Gauge::default(),
            rounds: Labelled::of_one("outcome", &OUTCOMES, Counter::default),
            rank: Gauge::default(),
            members: Gauge::default(),
            waiting: Gauge::default(),
            spares: Gauge::default(),
            lost: Labelled::of_one("why", &WHY, Counter::default),
            phase: Labelled::of_one("phase", &phases, Gauge::default),
            phase_start: Gauge::default(),
            phase_duration: Labelled::of_one("phase", &phases[1..], durations),
            now: Mutex::new(Phase::Idle),
        };
        families.phase.get(&[Phase::Idle.name()]).set(1);
        families.rank.set(-1);
        families
    }
}

impl Rendezvous {
    /// Which run this is, and who this node is in it.
    pub fn about(&self, run_id: &str, node: &str, backend: &str) {
        let labels =
            vec![("run_id", run_id.to_owned()), ("node", node.to_owned()), ("backend", backend.to_owned())];
        self.0.info.clear();
        self.0.info.get_or_create_owned(&labels).set(1);
    }

    /// This node is in another phase from `at` on; it was in the last one for so long.
    pub fn enter(&self, phase: Phase, at: SystemTime, lasted: Duration) {
        let mut now = self.0.now.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *now, phase);
        self.0.phase.get(&[before.name()]).set(0);
        self.0.phase.get(&[phase.name()]).set(1);
        self.0.phase_start.set(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
        if before != Phase::Idle {
            self.0.phase_duration.get(&[before.name()]).observe(lasted.as_secs_f64());
        }
    }

    /// This node has a place in a round.
    pub fn joined(&self, round: u64, rank: usize, members: usize) {
        self.0.rounds.get(&["joined"]).inc();
        self.0.round.set(i64::try_from(round).unwrap_or(i64::MAX));
        self.0.rank.set(number(rank));
        self.0.members.set(number(members));
    }

    /// A call for a round has ended without one.
    pub fn not_joined(&self) {
        self.0.rounds.get(&["failed"]).inc();
    }

    /// It has no place any more.
    pub fn placeless(&self) {
        self.0.rank.set(-1);
        self.0.members.set(0);
    }

    /// So many nodes wait to get in, and so many stand by, as far as this node knows.
    pub fn others(&self, waiting: usize, spares: usize) {
        self.0.waiting.set(number(waiting));
        self.0.spares.set(number(spares));
    }

    /// A member of the last round died, left or was replaced.
    pub fn lost(&self, why: &str) {
        self.0.lost.get(&[why]).inc();
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let of = &*self.0;
        registry.register("rallypoint_run_info", "The run, and this node in it; always 1", of.info.clone());
        registry.register(
            "rallypoint_round",
            "The number of the last round that this node was in",
            of.round.clone(),
        );
        registry.register(
            "rallypoint_rounds",
            "Calls for a round that have ended, by how",
            of.rounds.family(),
        );
        registry.register(
            "rallypoint_node_rank",
            "This node's place in its round; -1 without one",
            of.rank.clone(),
        );
        registry.register(
            "rallypoint_members",
            "Nodes in this node's round; 0 without one",
            of.members.clone(),
        );
        registry.register("rallypoint_waiting_nodes", "Nodes that wait to get in", of.waiting.clone());
        registry.register(
            "rallypoint_spare_nodes",
            "Nodes that there is no room for and that stand by",
            of.spares.clone(),
        );
        registry.register(
            "rallypoint_lost_members",
            "Members of this node's rounds that died, left or were replaced",
            of.lost.family(),
        );
        registry.register(
            "rallypoint_phase",
            "Where this node is in the rendezvous: 1 for its phase",
            of.phase.family(),
        );
        registry.register(
            "rallypoint_phase_start_timestamp_seconds",
            "When this node's phase began; 0 before the first",
            of.phase_start.clone(),
        );
        registry.register(
            "rallypoint_phase_duration_seconds",
            "How long phases lasted that are over",
            of.phase_duration.family(),
        );
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
