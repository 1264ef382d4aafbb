//! How a leader that is gone is followed by another.
//!
//! ```text
//!             there is no leader             its moment has come
//!   Quiet ──────────────────────▶ Waiting ──────────────────────▶ Asking
//!     ▲                              │                               │
//!     └────── there is a leader ─────┴───────────────────────────────┘
//! ```

use std::time::Duration;

use super::context::{Context, Task};
use super::etcd::{Condition, Entry, Failure, Op, Reply, Request, Txn};
use super::presence::{KeyAt, put_leader};
use super::view::got;
use crate::Backoff;

/// How long it may take until one of the others has taken the place of a leader that is gone. Long against the
/// time in which the news of a new leader gets around, so that few try.
const SUCCESSION: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Election {
    stage: Stage,
    backoff: Backoff,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Quiet,
    Waiting { at: Duration },
    Asking,
}

/// What a campaign has shown.
#[derive(Debug)]
pub(super) enum Campaigned {
    Nothing,
    /// This node leads since that revision.
    Won(i64),
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
        self.stage == Stage::Asking
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
    pub(super) fn run(&mut self, context: &mut Context<'_>, nodes: usize, lease: i64, own: KeyAt) {
        match self.stage {
            Stage::Quiet => {
                let random = context.random.f64().max(f64::MIN_POSITIVE);
                let part = (1.0 + random.ln() / (nodes.max(2) as f64).ln()).max(0.0);
                self.stage = Stage::Waiting { at: context.now + SUCCESSION.mul_f64(part) };
            }
            Stage::Waiting { at } if at <= context.now => self.campaign(context, lease, own),
            Stage::Waiting { .. } | Stage::Asking => {}
        }
    }

    fn campaign(&mut self, context: &mut Context<'_>, lease: i64, own: KeyAt) {
        let (leader, node) = (context.keys.leader(), context.keys.node(&context.config.id));
        let txn = Txn {
            when: vec![Condition::Missing(leader.clone()), Condition::ModifiedAt(node, own.modified)],
            then: vec![put_leader(context, lease)],
            otherwise: vec![Op::Get(leader)],
        };
        self.stage = Stage::Asking;
        context.out.request(Task::Campaign, Request::Txn(txn));
    }

    pub(super) fn campaigned(
        &mut self,
        context: &mut Context<'_>,
        reply: Result<Reply, Failure>,
    ) -> Campaigned {
        self.stage = Stage::Quiet;
        match reply {
            Ok(Reply::Txn(reply)) => {
                self.backoff = Backoff::default();
                let leader = reply.results.into_iter().next().and_then(got);
                match leader {
                    _ if reply.held => Campaigned::Won(reply.revision),
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
