//! The run's lease: what everything hangs on that outlives a node. The leader keeps it alive.
//!
//! ```text
//!                 the record is gone, or its lease
//!   Recorded ──────────────────────────────────────▶ Granting
//!      ▲                                                │ granted
//!      └── a record that names it was written ── New ◀──┘
//! ```

use std::time::Duration;

use super::super::context::Context;

#[derive(Debug, Clone, Copy)]
pub(super) enum RunLease {
    /// The one that the record names.
    Recorded {
        renew_at: Duration,
    },
    Granting,
    /// One that no record names yet.
    New {
        lease: i64,
    },
}

impl RunLease {
    /// A record names it, as of now.
    pub(super) fn recorded(context: &Context<'_>) -> Self {
        RunLease::Recorded { renew_at: context.now + context.config.run_ttl / 3 }
    }

    /// A record names this lease.
    pub(super) fn is_named(&mut self, context: &Context<'_>, named: i64) {
        if matches!(self, RunLease::New { lease } if *lease == named) {
            *self = RunLease::recorded(context);
        }
    }
}
