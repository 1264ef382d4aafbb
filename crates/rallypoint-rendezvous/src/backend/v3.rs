//! On etcd v3: the state under one key that hangs on a lease, its token the key's revision.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rallypoint_etcd::v3::api::{Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};
use rallypoint_etcd::v3::{Client, Repeat, revision_of};
use rallypoint_etcd::{Error, ErrorKind};
use rallypoint_store::EtcdStore;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{
    Changed, DEFAULT_TTL, Fence, RendezvousBackend, STATE_PREFIX, STORE_PREFIX, Token, checked, settings,
};
use crate::error::{RendezvousError, Result};
use crate::parameters::RendezvousParameters;

/// The same promises as [`EtcdV2Backend`](super::EtcdV2Backend), on an etcd of today.
#[derive(Debug, Clone)]
pub struct EtcdV3Backend {
    client: Client,
    key: Vec<u8>,
    ttl: Duration,
    /// The lease that this node's next state hangs on, and when it was granted.
    lease: Arc<Mutex<Option<(i64, Instant)>>>,
}

impl EtcdV3Backend {
    /// The backend and the store of the run that these parameters name; they are the same as those of PyTorch's
    /// `etcd-v2`. Each run has a store of its own.
    pub async fn create(parameters: &RendezvousParameters) -> Result<(Self, EtcdStore)> {
        let settings = settings(parameters)?;
        let endpoints = settings.endpoints.clone();
        let run_id = checked(&parameters.run_id)?;
        let client = Client::connect(settings)
            .await
            .map_err(|error| RendezvousError::connection(&endpoints, error))?;
        let store = EtcdStore::new(client.clone(), &format!("{STORE_PREFIX}/{run_id}"));
        Ok((EtcdV3Backend::new(client, run_id, Some(STATE_PREFIX), None)?, store))
    }

    /// The state of a run under `key_prefix`, which stays for at least `ttl` after its last change.
    pub fn new(
        client: Client,
        run_id: &str,
        key_prefix: Option<&str>,
        ttl: Option<Duration>,
    ) -> Result<Self> {
        let run_id = checked(run_id)?;
        let key = match key_prefix {
            Some(prefix) if !prefix.is_empty() => format!("{prefix}/{run_id}"),
            _ => run_id.to_owned(),
        };
        let ttl = ttl.filter(|ttl| !ttl.is_zero()).unwrap_or(DEFAULT_TTL);
        Ok(EtcdV3Backend { client, key: key.into_bytes(), ttl, lease: Arc::default() })
    }

    fn failed(&self, error: Error) -> RendezvousError {
        RendezvousError::connection(&self.client.settings().endpoints, error)
    }

    /// A lease that lasts the TTL at least. Granting one for every change would be a request more each time.
    async fn lease(&self) -> Result<i64> {
        let spare = self.ttl / 8;
        let mut lease = self.lease.lock().await;
        if let Some((id, granted)) = *lease
            && granted.elapsed() < spare
        {
            return Ok(id);
        }
        let (id, _) = self.client.lease_grant(self.ttl + spare).await.map_err(|error| self.failed(error))?;
        *lease = Some((id, Instant::now()));
        Ok(id)
    }

    async fn try_set(&self, state: &[u8], fence: Compare) -> Result<Option<Changed>> {
        let lease = self.lease().await?;
        let txn = || {
            let put = TxnOp::put(self.key.clone(), state, Some(PutOptions::new().with_lease(lease)));
            Txn::new().when([fence.clone()]).and_then([put]).or_else([TxnOp::get(self.key.clone(), None)])
        };
        let answer = match self.client.txn(&self.key, Repeat::Unsafe, txn).await {
            Ok(answer) => answer,
            // Whether it was set is told by what is there now; nobody else writes the same state.
            Err(error) if error.may_have_applied() => {
                let there = self.get_state().await?;
                return Ok(there.map(|(now, token)| Changed { was_set: now == state, state: now, token }));
            }
            Err(error) => return Err(self.failed(error)),
        };
        if answer.succeeded() {
            let revision = revision_of(answer.header()).map_err(|error| self.failed(error))?;
            let token = Token::from(revision.unsigned_abs());
            return Ok(Some(Changed { state: state.to_vec(), token, was_set: true }));
        }
        let there = answer.op_responses().into_iter().find_map(|answer| match answer {
            TxnOpResponse::Get(answer) => answer.kvs().first().map(now),
            _ => None,
        });
        Ok(there.map(|(state, token)| Changed { state, token, was_set: false }))
    }
}

fn now(kv: &KeyValue) -> (Vec<u8>, Token) {
    (kv.value().to_vec(), Token::from(kv.mod_revision().unsigned_abs()))
}

#[async_trait]
impl RendezvousBackend for EtcdV3Backend {
    fn name(&self) -> &str {
        "etcd-v3"
    }

    async fn get_state(&self) -> Result<Option<(Vec<u8>, Token)>> {
        let answer = self.client.get(self.key.clone(), None).await.map_err(|error| self.failed(error))?;
        Ok(answer.kvs().first().map(now))
    }

    async fn set_state(&self, state: &[u8], token: Option<&Token>) -> Result<Option<Changed>> {
        let key = self.key.clone();
        let fence = match Fence::of(token) {
            Fence::Absent => Compare::version(key, CompareOp::Equal, 0),
            Fence::At(revision) => {
                Compare::mod_revision(key, CompareOp::Equal, i64::try_from(revision).unwrap_or(i64::MAX))
            }
            Fence::Never => {
                let state = self.get_state().await?;
                return Ok(state.map(|(state, token)| Changed { state, token, was_set: false }));
            }
        };
        match self.try_set(state, fence.clone()).await {
            // The lease has ended in the meantime.
            Err(RendezvousError::Connection { source, .. })
                if source
                    .downcast_ref::<Error>()
                    .is_some_and(|error| error.kind() == ErrorKind::LeaseNotFound) =>
            {
                *self.lease.lock().await = None;
                self.try_set(state, fence).await
            }
            result => result,
        }
    }
}
