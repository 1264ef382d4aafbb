//! The ranks of this node's workers, and how they get to the store that they meet at.

use std::time::Duration;

use rallypoint_rendezvous::Rendezvous;

use super::Round;
use crate::decision::Event;
use crate::environment::WorkerRanks;
use crate::error::AgentError;
use crate::ranks::{NodeWorkers, RankError, agree};
use crate::serving::Serving;
use crate::stop::StopListener;
use crate::store_proxy::Entrance;
use crate::worker_store::{ServedStore, WorkerStore};

/// For the agent with rank 0 to answer, which listens already; if it has died, that is told sooner.
const TO_ANSWER: Duration = Duration::from_secs(30);

impl Round<'_> {
    /// The ranks of this node's workers, and who serves the store that all workers meet at.
    pub(super) async fn agree(
        &self,
        met: &Rendezvous,
        ours: &NodeWorkers,
        identical: bool,
    ) -> Result<(Vec<WorkerRanks>, Serving), RankError> {
        let (store, alone) = (&*met.store, met.world_size == 1);
        let choice = &self.agent.spec().worker_store;
        // Where all nodes are the same nothing is asked, but for the secret.
        let asks = !identical || matches!(choice, WorkerStore::Proxies(_));
        if !alone && asks {
            self.serving.announce(store).await?;
        }
        let places = agree(store, ours, met.world_size, identical).await?;
        let serving = match choice {
            _ if met.rank == 0 => self.serving,
            _ if !identical => Serving::read(store).await?,
            WorkerStore::Proxies(_) => Serving::wait(store).await?,
            WorkerStore::Agent => Serving::Agent,
            WorkerStore::Rank0 => Serving::Rank0,
        };
        Ok((places, serving))
    }

    /// Makes the way to the store, before the workers are started. The round may be over before it is there.
    pub(super) async fn enter_store(
        &mut self,
        met: &Rendezvous,
        served: Option<&ServedStore>,
        stop: &mut StopListener,
    ) -> Result<(), AgentError> {
        if let Some(served) = served {
            self.entrance = served.own_entrance().map_or(Entrance::Master, Entrance::Own);
            return Ok(());
        }
        let patience = TO_ANSWER.max(self.handler().time_to_notice() + TO_ANSWER / 2);
        let choice = &self.agent.spec().worker_store;
        let event = tokio::select! {
            entered = self.serving.proxy(choice, &met.master, patience) => match entered {
                Ok(proxy) => {
                    self.entrance = proxy.map_or(Entrance::Master, Entrance::Proxy);
                    return Ok(());
                }
                Err(error) => match self.loss().await {
                    Some(change) => Event::Changed(change),
                    None => return Err(error.into()),
                },
            },
            change = self.handler().changed() => Event::Changed(change),
            signal = stop.asked() => Event::Asked(signal),
        };
        self.decision.handle(event);
        Ok(())
    }
}
