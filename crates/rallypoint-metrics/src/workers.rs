//! What an agent counts of its workers.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::Labelled;

/// What a worker can be.
const STATES: [&str; 4] = ["running", "succeeded", "failed", "terminated"];
/// How a worker can end.
const ENDS: [&str; 3] = ["succeeded", "failed", "terminated"];
/// Why workers are started again.
const CAUSES: [&str; 9] = [
    "worker_failed",
    "other_node_failed",
    "node_died",
    "node_left",
    "node_replaced",
    "node_excluded",
    "node_waiting",
    "cut_off",
    "other",
];

/// What an agent counts of its workers.
#[derive(Debug, Clone, Default)]
pub struct Workers(Arc<Families>);

#[derive(Debug)]
struct Families {
    states: Labelled<Gauge>,
    starts: Counter,
    ends: Labelled<Counter>,
    restarts: Labelled<Counter>,
    restarts_left: Gauge,
    output: Labelled<Counter>,
}

impl Default for Families {
    fn default() -> Self {
        Families {
            states: Labelled::of_one("state", &STATES, Gauge::default),
            starts: Counter::default(),
            ends: Labelled::of_one("state", &ENDS, Counter::default),
            restarts: Labelled::of_one("cause", &CAUSES, Counter::default),
            restarts_left: Gauge::default(),
            output: Labelled::of_one("stream", &["stdout", "stderr"], Counter::default),
        }
    }
}

impl Workers {
    /// Workers of a new round were started: those of the last one do not count any more.
    pub fn started(&self, workers: usize) {
        for (_, state) in self.0.states.iter() {
            state.set(0);
        }
        self.0.states.get(&["running"]).set(i64::try_from(workers).unwrap_or(i64::MAX));
        self.0.starts.inc_by(workers as u64);
    }

    /// A worker has ended like this.
    pub fn ended(&self, state: &str) {
        self.0.states.get(&["running"]).dec();
        self.0.states.get(&[state]).inc();
        self.0.ends.get(&[state]).inc();
    }

    /// The nodes meet again for this cause, and start their workers afresh.
    pub fn restarted(&self, cause: &str) {
        self.0.restarts.get(&[cause]).inc();
    }

    /// So many of `--max-restarts` are left.
    pub fn restarts_left(&self, left: u32) {
        self.0.restarts_left.set(i64::from(left));
    }

    /// What a stream's bytes are added to.
    #[must_use]
    pub fn output(&self, stream: &str) -> Counter {
        self.0.output.get(&[stream]).clone()
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let of = &*self.0;
        registry.register(
            "rallypoint_workers",
            "Workers of this node's last round, by state",
            of.states.family(),
        );
        registry.register(
            "rallypoint_worker_starts",
            "Workers that this node has started",
            of.starts.clone(),
        );
        registry.register(
            "rallypoint_worker_ends",
            "Workers of this node that have ended, by how",
            of.ends.family(),
        );
        registry.register(
            "rallypoint_restarts",
            "How often the nodes met again and started their workers afresh, by cause",
            of.restarts.family(),
        );
        registry.register(
            "rallypoint_restarts_left",
            "What is left of this node's restarts after failures of its own workers",
            of.restarts_left.clone(),
        );
        registry.register(
            "rallypoint_worker_output_bytes",
            "What workers have written, where the launcher carries it",
            of.output.family(),
        );
    }
}
