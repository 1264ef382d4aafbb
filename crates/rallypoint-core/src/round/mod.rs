//! The native rendezvous: rounds on etcd v3, whose cost per node does not grow with the number of nodes.
//!
//! A [`Node`] is one node's part in a run, as a machine without IO, clock or randomness of its own: whoever
//! drives it carries out its [`Output`]s and tells it what came of them and what time it is. The promises are
//! checked by simulation (`tests/simulation`); `docs/protocol.md` tells the story for people.
//!
//! Each part owns its state and shows a small diagram of it; `node` routes between them, and `node::drive` asks each of them
//! after every input what there is to do:
//!
//! - `view`: what is known of the group. `membership`: what this node wants, and what follows from what it sees.
//! - `presence`: the node's own lease and key. `election`: who leads. `departure`: how a node goes.
//! - `leader`: what the one node does that plans the rounds.
//! - `close`: how a run is closed, by a member or an operator. `exclude`: how somebody is kept out of it, or let in again.
//! - `look`: when a node looks at all that concerns it, once more.
//! - `silence`: what may be concluded from a key that is gone. `context`: the way out, and what waits for an answer.
//! - `record`, `event`, `exclusion`, `keys`: what stands in etcd. `etcd`: the few words of etcd that the machine speaks.
//! - `settings`: what a run and a node are started with. `output`: what a node wants done, and what it has to tell.

mod close;
mod closing;
mod context;
mod departure;
mod election;
mod etcd;
mod event;
mod exclude;
mod exclusion;
mod keys;
mod leader;
mod look;
mod membership;
mod node;
mod output;
mod presence;
mod record;
mod settings;
mod silence;
mod view;
mod whom;

pub use close::{CloseRun, CloseStep};
pub use etcd::{
    Condition, Entry, Event, Failure, Op, OpReply, Reply, Request, Txn, TxnReply, Update, Watched,
};
pub use event::{EventRecord, Failed, Formed, NAMED_MEMBERS, NAMED_NEWCOMERS, Newcomer, What};
pub use exclude::{ChangeExclusions, ExclusionAuthor, ExclusionChange, ExclusionOutcome, ExclusionStep};
pub use exclusion::{
    Exclusion, LONGEST_EXCLUSION, MOST_EXCLUSIONS, SHORTEST_EXCLUSION, exclusion_time, kept_out,
    kept_out_in_short, until,
};
pub use keys::{GROUP_EVENTS, Keys, NODE_EVENTS};
pub use node::Node;
pub use output::{Change, CloseOutcome, Joined, NodeEvent, Output, Refusal, WatchId};
pub use record::{
    Corrupt, Lost, MasterRecord, NAMED_LOSSES, News, NodeRecord, PreviousPlace, RECORD_VERSION, RankRecord,
    RoundRecord, Seat, Wants, Why,
};
pub use settings::{
    DEFAULT_CLOSED_TTL, DEFAULT_LAST_CALL, DEFAULT_LEASE, DEFAULT_RUN_TTL, LONGEST_DEFAULT_LEASE, NodeConfig,
    PLACES_PER_REQUEST, RankPolicy, RunSettings, SHORTEST_LEASE, WhenExcluded, default_lease,
};
pub use whom::Whom;
