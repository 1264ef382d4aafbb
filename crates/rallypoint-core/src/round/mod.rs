//! The native rendezvous: rounds on etcd v3, whose cost per node does not grow with the number of nodes.
//!
//! A [`Node`] is one node's part in a run, as a machine without IO, clock or randomness of its own: whoever
//! drives it carries out its [`Output`]s and tells it what came of them and what time it is. The promises are
//! checked by simulation (`tests/simulation`); `docs/protocol.md` tells the story for people.
//!
//! - `node`: what goes in and comes out. `presence`: the node's own key; `group`: what it learns of the others;
//!   `leaving`: how it goes.
//! - `leader`: what the one node does that plans the rounds; `roster` is whom it sees, `plan` who sits where,
//!   `planning` how that is made so, `publishing` what else the group is told.
//! - `record`, `keys`: what stands in etcd. `etcd`: the few words of etcd that the machine speaks.
//! - `settings`: what a run and a node are started with.

mod etcd;
mod group;
mod keys;
mod leader;
mod leaving;
mod node;
mod output;
mod plan;
mod planning;
mod presence;
mod publishing;
mod record;
mod roster;
mod settings;

pub use etcd::{
    Condition, Entry, Event, Failure, Op, OpReply, Reply, Request, Txn, TxnReply, Update, Watched,
};
pub use keys::Keys;
pub use node::Node;
pub use output::{Change, Joined, NodeEvent, Output, Refusal, WatchId};
pub use record::{Lost, MasterRecord, NAMED_LOSSES, News, NodeRecord, RankRecord, RoundRecord, Wants, Why};
pub use settings::{
    DEFAULT_CLOSED_TTL, DEFAULT_LAST_CALL, DEFAULT_LEASE, DEFAULT_RUN_TTL, NodeConfig, RankPolicy,
    RunSettings, SHORTEST_LEASE,
};
