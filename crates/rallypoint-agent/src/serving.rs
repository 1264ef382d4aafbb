//! Who serves the store that the workers of a round meet at, as the node with rank 0 tells the others.

use std::io;
use std::time::Duration;

use rallypoint_store::{Store, StoreError};
use rallypoint_tcpstore::{Secret, StoreTls};
use serde::{Deserialize, Serialize};

/// In the round's store, who serves the workers' store, and how workers get there. Earlier versions only look whether it is
/// there, and take it for [`Serving::Agent`].
const SERVED: &[u8] = b"rallypoint/worker_store";
const AGENT: &[u8] = b"agent";
/// For the node with rank 0 to say how workers get to their store, which it does before it is ready for anything else.
const TO_BE_SAID: Duration = Duration::from_secs(30);

/// Who serves the store that workers meet at, and how they get there, as the node with rank 0 says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// The worker with rank 0.
    Rank0,
    /// The agent with rank 0, to which all workers connect.
    Agent,
    /// The agent with rank 0, to which other agents connect for their workers.
    Proxies(Invitation),
}

/// What an agent needs to be let in by the one with rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invitation {
    pub(crate) secret: Secret,
    pub(crate) tls: bool,
}

impl Invitation {
    /// One with a secret of its own, for agents with or without TLS.
    pub(crate) fn random(tls: Option<&StoreTls>) -> io::Result<Self> {
        let secret = Secret::random().ok_or_else(|| io::Error::other("the system has no randomness"))?;
        Ok(Invitation { secret, tls: tls.is_some() })
    }
}

/// An invitation as it stands in the round's store.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    secret: String,
    #[serde(default)]
    tls: bool,
}

impl Serving {
    /// Says so to the other nodes of a round. To be called before they know that this node is ready.
    pub async fn announce(self, store: &dyn Store) -> Result<(), StoreError> {
        match self {
            Serving::Rank0 => Ok(()),
            Serving::Agent => store.set(SERVED, AGENT).await,
            Serving::Proxies(Invitation { secret, tls }) => {
                let written = Written { secret: secret.to_hex(), tls };
                store.set(SERVED, &serde_json::to_vec(&written).unwrap_or_default()).await
            }
        }
    }

    /// What the node with rank 0 has said. To be called when that is known to be ready.
    pub async fn read(store: &dyn Store) -> Result<Self, StoreError> {
        if store.check(&[SERVED]).await? { Serving::wait(store).await } else { Ok(Serving::Rank0) }
    }

    /// What it says, as soon as it does. One that says nothing for a while leaves the store to its worker.
    pub async fn wait(store: &dyn Store) -> Result<Self, StoreError> {
        let Ok(text) = tokio::time::timeout(TO_BE_SAID, store.get(SERVED)).await else {
            return Ok(Serving::Rank0);
        };
        let text = text?;
        let written = serde_json::from_slice::<Written>(&text).ok();
        let invitation = written.and_then(|Written { secret, tls }| {
            Some(Invitation { secret: Secret::from_hex(&secret).ok()?, tls })
        });
        // What a later version says is for those who know it.
        Ok(invitation.map_or(Serving::Agent, Serving::Proxies))
    }

    /// Whether an agent serves.
    #[must_use]
    pub fn is_agent(self) -> bool {
        self != Serving::Rank0
    }
}
