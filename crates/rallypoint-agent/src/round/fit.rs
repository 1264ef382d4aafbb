//! Whether the nodes of a round can reach each other, before their workers are started.

use rallypoint_rendezvous::{Rendezvous, RendezvousHandler};

use super::Round;
use crate::decision::Event;
use crate::error::AgentError;
use crate::health::reachability::{Nodes, Unreachable, unreachable};
use crate::notice::Notice;
use crate::ranks::RankError;
use crate::stop::StopListener;

impl Round<'_> {
    /// Finds out with the others whether they can, where this node is asked to. If not, who is to blame stays away from the
    /// next round.
    pub(super) async fn reach_each_other(
        &mut self,
        met: &Rendezvous,
        stop: &mut StopListener,
    ) -> Result<(), AgentError> {
        let agent = self.agent;
        let Some((health, limit)) =
            agent.health().and_then(|health| Some((health, health.looks_at_others()?)))
        else {
            return Ok(());
        };
        let address = agent.handler().address().unwrap_or_else(|| agent.host());
        let event = tokio::select! {
            found = unreachable(Nodes::of(met, Some(self.serving)), address, limit) => match found {
                Ok(None) => {
                    health.all_is_well();
                    return Ok(());
                }
                Ok(Some(Unreachable { node, why })) => {
                    let host = name_of(agent.handler(), node).await;
                    if node == self.rank {
                        health.found(why.clone());
                    }
                    Event::Notice(Notice::regroups(node, &host, why))
                }
                Err(error) => match self.loss().await {
                    Some(change) => Event::Changed(change),
                    None => return Err(RankError::from(error).into()),
                },
            },
            change = self.handler().changed() => Event::Changed(change),
            signal = stop.asked() => Event::Asked(signal),
        };
        self.decision.handle(event);
        Ok(())
    }
}

/// The name of a node, as well as that is known.
async fn name_of(handler: &dyn RendezvousHandler, rank: usize) -> String {
    let members = handler.members().await.unwrap_or_default();
    let member = members.into_iter().find(|member| member.rank == rank);
    member.map_or_else(|| "its name is not known".to_owned(), |member| member.node)
}
