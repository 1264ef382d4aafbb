//! What stores count.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::Labelled;

/// The operations of a store.
const OPERATIONS: [&str; 17] = [
    "set",
    "get",
    "add",
    "wait",
    "check",
    "compare_set",
    "delete_key",
    "num_keys",
    "list_keys",
    "append",
    "multi_get",
    "multi_set",
    "queue_push",
    "queue_pop",
    "queue_len",
    "barrier",
    "other",
];

/// The messages of PyTorch's `TCPStore`.
const MESSAGES: [&str; 18] = [
    "set",
    "get",
    "add",
    "wait",
    "check",
    "compare_set",
    "delete",
    "count_keys",
    "list_keys",
    "append",
    "multi_get",
    "multi_set",
    "queue_push",
    "queue_pop",
    "queue_len",
    "barrier",
    "cancel_wait",
    "other",
];

/// Operations on the stores of rounds.
#[derive(Debug, Clone)]
pub struct Store(Arc<Labelled<Counter>>);

impl Default for Store {
    fn default() -> Self {
        Store(Arc::new(Labelled::of_one("kind", &OPERATIONS, Counter::default)))
    }
}

impl Store {
    /// An operation of this kind was asked for.
    pub fn operation(&self, kind: &str) {
        self.0.get(&[kind]).inc();
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "rallypoint_store_operations",
            "Operations on the store of a round, which is in etcd",
            self.0.family(),
        );
    }
}

/// What the store that workers meet at counts, on the node that serves it.
#[derive(Debug, Clone, Default)]
pub struct WorkerStore(Arc<Families>);

#[derive(Debug)]
struct Families {
    messages: Labelled<Counter>,
    connections: Gauge,
}

impl Default for Families {
    fn default() -> Self {
        Families {
            messages: Labelled::of_one("kind", &MESSAGES, Counter::default),
            connections: Gauge::default(),
        }
    }
}

impl WorkerStore {
    /// A message of this kind has come.
    pub fn operation(&self, kind: &str) {
        self.0.messages.get(&[kind]).inc();
    }

    /// So many connections more.
    pub fn opened(&self) {
        self.0.connections.inc();
    }

    /// So many connections less.
    pub fn closed(&self, connections: usize) {
        self.0.connections.dec_by(i64::try_from(connections).unwrap_or(i64::MAX));
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "rallypoint_worker_store_operations",
            "Messages of workers to the store that they meet at, where this node serves it",
            self.0.messages.family(),
        );
        registry.register(
            "rallypoint_worker_store_connections",
            "Connections to the store that workers meet at, where this node serves it",
            self.0.connections.clone(),
        );
    }
}
