//! The run's lease: what everything hangs on that outlives a node. The leader keeps it alive.
//!
//! ```text
//!                 the record is gone, or its lease
//!   Recorded ──────────────────────────────────────▶ Granting
//!      ▲                                                │ granted
//!      ├── a record that names it was written ─── New ◀─┘
//!      │                                           │
//!      └── a record turns up that names another ───┘
//! ```

use std::time::Duration;

use super::super::context::{Context, Task};
use super::super::etcd::Request;

#[derive(Debug, Clone, Copy)]
pub(super) enum RunLease {
    /// The one that the record names.
    Recorded { renew_at: Duration },
    /// `gone`: the one that the record named last, if that is why.
    Granting { gone: Option<i64> },
    /// One that no record names yet. Its time runs all the same: where etcd is full, that may take long.
    New { lease: i64, gone: Option<i64>, renew_at: Duration },
}

impl RunLease {
    /// It was refreshed, as of now.
    pub(super) fn refreshed(context: &Context<'_>) -> Self {
        RunLease::Recorded { renew_at: renew_at(context) }
    }

    /// It was granted, as of now.
    pub(super) fn granted(context: &Context<'_>, lease: i64, gone: Option<i64>) -> Self {
        RunLease::New { lease, gone, renew_at: renew_at(context) }
    }

    /// The record names this lease. What hangs on it stays there, unless it is known to be gone: of two leases the
    /// members would be told one, and their places would hang on the other.
    pub(super) fn is_named(&mut self, context: &mut Context<'_>, named: i64) {
        match *self {
            RunLease::New { lease, renew_at, .. } if lease == named => {
                *self = RunLease::Recorded { renew_at }
            }
            RunLease::New { gone, .. } | RunLease::Granting { gone } if gone != Some(named) => {
                self.drop_new(context);
                *self = RunLease::Recorded { renew_at: context.now };
            }
            _ => {}
        }
    }

    /// One that no record names is of no use any more. Of one that is granted later the reply tells.
    pub(super) fn drop_new(self, context: &mut Context<'_>) {
        if let RunLease::New { lease, .. } = self {
            context.out.request(Task::Forgotten, Request::Revoke(lease));
        }
    }
}

fn renew_at(context: &Context<'_>) -> Duration {
    context.now + context.config.run_ttl / 3
}

#[cfg(test)]
mod tests {
    use super::super::super::context::tests::Bench;
    use super::super::super::output::Output;
    use super::*;

    fn revoked(bench: &mut Bench) -> Vec<i64> {
        let mut leases = Vec::new();
        while let Some(output) = bench.out.pop() {
            if let Output::Request { request: Request::Revoke(lease), .. } = output {
                leases.push(lease);
            }
        }
        leases
    }

    #[test]
    fn what_an_earlier_leaders_record_hangs_on_stays_the_runs_lease() {
        let mut bench = Bench::new();
        let mut lease = RunLease::granted(&bench.context(), 2, None);
        lease.is_named(&mut bench.context(), 1);
        assert!(matches!(lease, RunLease::Recorded { .. }), "{lease:?}");
        assert_eq!(revoked(&mut bench), [2]);
        let mut lease = RunLease::Granting { gone: None };
        lease.is_named(&mut bench.context(), 1);
        assert!(matches!(lease, RunLease::Recorded { .. }), "{lease:?}");
    }

    #[test]
    fn a_record_whose_lease_is_gone_gets_the_new_one() {
        let mut bench = Bench::new();
        let mut lease = RunLease::granted(&bench.context(), 2, Some(1));
        lease.is_named(&mut bench.context(), 1);
        assert!(matches!(lease, RunLease::New { lease: 2, .. }), "{lease:?}");
        lease.is_named(&mut bench.context(), 2);
        assert!(matches!(lease, RunLease::Recorded { .. }), "{lease:?}");
        assert_eq!(revoked(&mut bench), [0; 0]);
    }
}
