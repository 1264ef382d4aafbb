//! The native backend, `rallypoint`: rounds on etcd v3, built for many nodes.
//!
//! - [`NativeHandler`]: one node's side of a run.
//! - [`NativeSettings`]: what it is started with.
//! - [`list`], [`status`], [`events`], [`close`], [`exclude`], [`include()`], [`excluded`]: what an operator sees and can do,
//!   without being a node.
//!
//! The decisions are made by [`rallypoint_core::round`]; `driver` carries them out.

mod clusters;
mod command;
mod driver;
mod handler;
mod identity;
mod news;
mod operator;
mod own_events;
mod patience;
mod reach;
mod settings;
mod translate;

pub use handler::NativeHandler;
pub(crate) use identity::local_address;
pub use operator::{
    LastRound, Missing, NodeState, NodeStatus, NotBack, RunRow, RunState, RunStatus, Unhealthy, Unreadable,
    ask_leases, close, events, events_prefix, exclude, excluded, include, last_round, list, node_at, row,
    runs, status,
};
pub use rallypoint_core::round::{
    LONGEST_EXCLUSION, Lost, MOST_EXCLUSIONS, MasterRecord, RankPolicy, RunSettings, SHORTEST_EXCLUSION,
    WhenExcluded, Why, default_lease, exclusion_time,
};
pub use rallypoint_core::timeline::{Event, Killed, Span, SpanKind, Summary, Without, spans};
pub use settings::{
    DEFAULT_JOIN_TIMEOUT, DEFAULT_ROOT, LONGEST_NAME, NativeSettings, OPTIONS, check_run_id, run_prefix,
    token,
};

pub use crate::parameters::TORCHRUNS;

/// The backend's name.
pub const BACKEND: &str = "rallypoint";
