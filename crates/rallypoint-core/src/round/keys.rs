//! The names of a run's keys.

use super::whom::Whom;

/// So many events of the group are kept.
pub const GROUP_EVENTS: u64 = 256;
/// So many events are kept that a node has written of itself, and as many of its failures.
pub const NODE_EVENTS: u64 = 8;

/// The keys of one run.
#[derive(Debug, Clone)]
pub struct Keys {
    run: String,
}

impl Keys {
    /// The keys under `run`, which ends in a slash.
    #[must_use]
    pub fn new(run: &str) -> Self {
        Keys { run: run.to_owned() }
    }

    /// Beginning of all of them.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Beginning of the keys that every node watches.
    #[must_use]
    pub fn group(&self) -> String {
        format!("{}group/", self.run)
    }

    /// Who plans the rounds; there for as long as that node is.
    #[must_use]
    pub fn leader(&self) -> String {
        format!("{}group/leader", self.run)
    }

    /// The last completed round, and the news of it. Written by the leader, and by who closes the run.
    #[must_use]
    pub fn round(&self) -> String {
        format!("{}group/round", self.run)
    }

    /// Beginning of the keys that tell who is kept out.
    #[must_use]
    pub fn exclusions(&self) -> String {
        format!("{}group/excluded/", self.run)
    }

    /// That whoever is meant is kept out; there for as long as that is so.
    #[must_use]
    pub fn exclusion(&self, whom: &Whom) -> String {
        match whom {
            Whom::Node(name) => format!("{}node/{name}", self.exclusions()),
            Whom::Host(name) => format!("{}host/{name}", self.exclusions()),
        }
    }

    /// Beginning of the keys of all nodes.
    #[must_use]
    pub fn nodes(&self) -> String {
        format!("{}node/", self.run)
    }

    /// What a node says of itself; there for as long as the node is.
    #[must_use]
    pub fn node(&self, id: &str) -> String {
        format!("{}node/{id}", self.run)
    }

    /// Beginning of the places of all nodes.
    #[must_use]
    pub fn ranks(&self) -> String {
        format!("{}rank/", self.run)
    }

    /// A node's place. Written by the leader, watched by the node.
    #[must_use]
    pub fn rank(&self, id: &str) -> String {
        format!("{}rank/{id}", self.run)
    }

    /// The last plan begun. Written by the leader with the first places of each plan.
    #[must_use]
    pub fn plan(&self) -> String {
        format!("{}plan", self.run)
    }

    /// Beginning of the data that the members of a round share. The plan is part of it: where etcd has lost its data,
    /// two rounds can have one number, and their members must not meet in one store.
    #[must_use]
    pub fn store(&self, round: u64, plan: &str) -> String {
        format!("{}store/{round}-{plan}/", self.run)
    }

    /// Beginning of the data of all rounds.
    #[must_use]
    pub fn stores(&self) -> String {
        format!("{}store/", self.run)
    }

    /// Where the data of the run is that outlives its rounds.
    #[must_use]
    pub fn run_store(&self) -> String {
        format!("{}store/run/", self.run)
    }

    /// Beginning of what is known of the run's past.
    #[must_use]
    pub fn events(&self) -> String {
        format!("{}event/", self.run)
    }

    /// Where the `number`th event of the group is kept, in place of one that is [`GROUP_EVENTS`](super::GROUP_EVENTS) older.
    #[must_use]
    pub fn group_event(&self, number: u64) -> String {
        format!("{}event/group/{:03}", self.run, number % GROUP_EVENTS)
    }

    /// Beginning of the events that a node has written of itself.
    #[must_use]
    pub fn node_events(&self, id: &str) -> String {
        format!("{}event/node/{id}/", self.run)
    }

    /// Where the `number`th event is kept that a node has written of itself.
    #[must_use]
    pub fn node_event(&self, id: &str, number: u64) -> String {
        format!("{}event/node/{id}/{}", self.run, number % NODE_EVENTS)
    }

    /// The same of a failure: other events do not take its place.
    #[must_use]
    pub fn node_failure(&self, id: &str, number: u64) -> String {
        format!("{}event/node/{id}/failed-{}", self.run, number % NODE_EVENTS)
    }

    /// The node that `key` belongs to, of [`node`](Keys::node) or [`rank`](Keys::rank).
    #[must_use]
    pub fn id_of<'a>(&self, key: &'a str) -> &'a str {
        key.get(self.run.len() + "node/".len()..).unwrap_or_default()
    }
}
