//! The workers of a round, for when a node is taken away.

use std::sync::Arc;

use rallypoint_rendezvous::Rendezvous;

use super::Round;
use crate::environment::WorkerRanks;
use crate::preemption::{Crew, Files, SavedBoard};

impl Round<'_> {
    /// Makes what it takes to tell these workers of a preemption.
    pub(super) fn crew(&mut self, met: &Rendezvous, places: &[WorkerRanks]) {
        let folder = self.agent.spec().preemption.folder.as_deref();
        self.preemption.begin(Crew {
            round: met.round,
            node: met.rank,
            host: self.agent.host().to_owned(),
            name: self.agent.name().to_owned(),
            nodes: met.world_size,
            ranks: places.iter().map(|place| place.rank).collect(),
            files: Files::make(folder, met.round, places.len()),
            board: SavedBoard::new(Arc::clone(&met.store), met.world_size),
        });
    }
}
