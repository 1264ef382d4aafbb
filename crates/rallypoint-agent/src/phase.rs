//! What an agent is doing, for whoever shows it.

/// What the agent is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It waits for others.
    Meeting,
    /// It makes its health checks, before it meets others.
    Checking,
    /// It stays away from others, since it fails its health checks.
    Away,
    /// They have met; the workers are about to be started.
    Starting,
    /// Workers run.
    Running,
    /// Its workers have finished; those of others may not have.
    Finishing {
        /// The nodes of the round.
        nodes: usize,
    },
    /// The workers of all nodes have finished. What those of this node have said last is on its way to where it goes.
    Writing,
    /// It is done.
    Ended,
}
