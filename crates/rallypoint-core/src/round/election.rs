//! How a leader that is gone is followed by another.
//!
//! ```text
//!             there is no leader             its moment has come
//!   Quiet ──────────────────────▶ Waiting ──────────────────────▶ Asking
//!     ▲                              │                               │
//!     └────── there is a leader ─────┴───────────────────────────────┘
//! ```
//!
//! A leader's key hangs on its lease. One that hangs on none was written by somebody who is no node, and would stay
//! for ever: it is removed, and then there is no leader.

use std::time::Duration;

use super::context::{Context, Task};
use super::etcd::{Condition, Entry, Failure, Op, Reply, Request, Txn};
use super::presence::{KeyAt, put_leader};
use super::view::got;
use crate::Backoff;

/// How long it may take until one of the others has taken the place of a leader that is gone, in a small group and for
/// each node of a large one. Long against the time in which the news of a new leader gets around, so that few try.
/// Somebody tries at once or soon after, however long this is.
const SUCCESSION: Duration = Duration::from_millis(250);
const SUCCESSION_PER_NODE: Duration = Duration::from_micros(250);

#[derive(Debug)]
pub(super) struct Election {
    stage: Stage,
    backoff: Backoff,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Quiet,
    Waiting { at: Duration },
    Asking(Vacancy),
}

/// That there is no leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vacancy {
    Free,
    /// The key is there since that revision, and is no node's.
    Nobodys {
        modified: i64,
    },
}

/// What a campaign has shown.
#[derive(Debug)]
pub(super) enum Campaigned {
    Nothing,
    /// This node leads since that revision.
    Won(i64),
    /// What is not a node's is gone since that revision.
    Freed(i64),
    /// Another one leads.
    Led(i64, Entry),
    /// There is no leader, so it was this node's own key: it is gone with its lease, or another process has it.
    KeyGone,
    LeaseLost,
}

impl Election {
    pub(super) fn new() -> Self {
        Election { stage: Stage::Quiet, backoff: Backoff::default() }
    }

    pub(super) fn is_asking(&self) -> bool {
        matches!(self.stage, Stage::Asking(_))
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        if let Stage::Waiting { at } = self.stage { Some(at) } else { None }
    }

    /// There is a leader, or this node cannot be one.
    pub(super) fn call_off(&mut self) {
        if let Stage::Waiting { .. } = self.stage {
            self.stage = Stage::Quiet;
        }
    }

    /// There is no leader in a group of about `nodes`. This node tries to be it after a random moment: few come
    /// early, and the larger the group the fewer, so that whoever is first is known to the others before they try.
    pub(super) fn run(
        &mut self,
        context: &mut Context<'_>,
        vacancy: Vacancy,
        nodes: usize,
        lease: i64,
        own: KeyAt,
    ) {
        if self.stage == Stage::Quiet {
            let random = context.random.f64().max(f64::MIN_POSITIVE);
            let part = (1.0 + random.ln() / (nodes.max(2) as f64).ln()).max(0.0);
            let all = SUCCESSION_PER_NODE.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX));
            self.stage = Stage::Waiting { at: context.now + all.max(SUCCESSION).mul_f64(part) };
        }
        // The moment may be now.
        if matches!(self.stage, Stage::Waiting { at } if at <= context.now) {
            let txn = match vacancy {
                Vacancy::Free => campaign(context, lease, own),
                Vacancy::Nobodys { modified } => remove(context, modified),
            };
            self.stage = Stage::Asking(vacancy);
            context.out.request(Task::Campaign, Request::Txn(txn));
        }
    }

    pub(super) fn campaigned(
        &mut self,
        context: &mut Context<'_>,
        reply: Result<Reply, Failure>,
    ) -> Campaigned {
        let asked = std::mem::replace(&mut self.stage, Stage::Quiet);
        match reply {
            Ok(Reply::Txn(reply)) => {
                self.backoff = Backoff::default();
                let leader = reply.results.into_iter().next().and_then(got);
                match leader {
                    _ if reply.held && asked == Stage::Asking(Vacancy::Free) => {
                        Campaigned::Won(reply.revision)
                    }
                    None if asked != Stage::Asking(Vacancy::Free) => Campaigned::Freed(reply.revision),
                    Some(leader) => Campaigned::Led(reply.revision, leader),
                    None => Campaigned::KeyGone,
                }
            }
            Err(Failure::LeaseGone) => Campaigned::LeaseLost,
            _ => {
                let wait = self.backoff.next(context.random.f64());
                self.stage = Stage::Waiting { at: context.now + wait };
                Campaigned::Nothing
            }
        }
    }
}

fn campaign(context: &Context<'_>, lease: i64, own: KeyAt) -> Txn {
    let (leader, node) = (context.keys.leader(), context.keys.node(&context.config.id));
    Txn {
        when: vec![Condition::Missing(leader.clone()), Condition::ModifiedAt(node, own.modified)],
        then: vec![put_leader(context, lease)],
        otherwise: vec![Op::Get(leader)],
    }
}

/// Should a leader's key be of the same revision, in another history, then the group elects once more.
fn remove(context: &Context<'_>, modified: i64) -> Txn {
    let leader = context.keys.leader();
    Txn {
        when: vec![Condition::ModifiedAt(leader.clone(), modified)],
        then: vec![Op::Delete(leader.clone())],
        otherwise: vec![Op::Get(leader)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::tests::Bench;
    use super::*;

    /// In a large group etcd is slow to tell all of a new leader, and each that tries before it hears of it makes it slower.
    #[test]
    fn of_many_nodes_few_try_before_they_can_have_heard_of_a_new_leader() {
        const NODES: usize = 10_000;
        let mut bench = Bench::new();
        let mut moments: Vec<Duration> = (0..NODES)
            .map(|_| {
                let mut election = Election::new();
                let (mut context, own) = (bench.context(), KeyAt { created: 1, modified: 1 });
                election.run(&mut context, Vacancy::Free, NODES, 1, own);
                election.timeout().map_or(Duration::ZERO, |at| at - context.now)
            })
            .collect();
        moments.sort_unstable();
        assert!(moments[0] <= Duration::from_millis(250), "nobody tries for {:?}", moments[0]);
        let tries = moments.partition_point(|moment| *moment < Duration::from_secs(1));
        assert!(tries < 100, "{tries} of {NODES} try within a second");
    }
}
