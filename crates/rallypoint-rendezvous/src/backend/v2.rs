//! On the v2 wire: the state in base64 under one key, its token the key's index.

use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rallypoint_etcd::v2::{Client, Code, Get, Node, Put};
use rallypoint_etcd::{Error, ErrorKind};
use rallypoint_store::EtcdV2Store;

use super::{
    Changed, DEFAULT_TTL, Fence, RendezvousBackend, STATE_PREFIX, STORE_PREFIX, Token, checked, settings,
};
use crate::error::{RendezvousError, Result};
use crate::parameters::RendezvousParameters;

/// PyTorch's `EtcdRendezvousBackend`: nodes that use the one and nodes that use the other share a state.
#[derive(Debug, Clone)]
pub struct EtcdV2Backend {
    client: Client,
    run_id: String,
    key: String,
    ttl: Duration,
}

impl EtcdV2Backend {
    /// The backend and the store that PyTorch makes of these parameters. All runs on an etcd share that store,
    /// as they do there.
    pub async fn create(parameters: &RendezvousParameters) -> Result<(Self, EtcdV2Store)> {
        let settings = settings(parameters)?;
        let endpoints = settings.endpoints.clone();
        checked(&parameters.run_id)?;
        let client = Client::connect(settings)
            .await
            .map_err(|error| RendezvousError::connection(&endpoints, error))?;
        let store = EtcdV2Store::new(client.clone(), STORE_PREFIX);
        Ok((EtcdV2Backend::new(client, &parameters.run_id, Some(STATE_PREFIX), None)?, store))
    }

    /// The state of a run under `key_prefix`, which stays for `ttl` after its last change.
    pub fn new(
        client: Client,
        run_id: &str,
        key_prefix: Option<&str>,
        ttl: Option<Duration>,
    ) -> Result<Self> {
        let run_id = checked(run_id)?.to_owned();
        let key = match key_prefix {
            Some(prefix) if !prefix.is_empty() => format!("{prefix}/{run_id}"),
            _ => run_id.clone(),
        };
        let ttl = ttl.filter(|ttl| !ttl.is_zero()).unwrap_or(DEFAULT_TTL);
        Ok(EtcdV2Backend { client, run_id, key, ttl })
    }

    fn failed(&self, error: Error) -> RendezvousError {
        RendezvousError::connection(&self.client.settings().endpoints, error)
    }

    fn decode(&self, node: &Node) -> Result<(Vec<u8>, Token)> {
        let corrupt = |problem: &str, source| RendezvousError::State {
            run_id: self.run_id.clone(),
            problem: format!("{} {problem}", self.key),
            source,
        };
        let Some(text) = &node.value else { return Err(corrupt("is a folder", None)) };
        let state =
            STANDARD.decode(text).map_err(|error| corrupt("does not hold base64", Some(Box::new(error))))?;
        Ok((state, Token::from(node.modified_index)))
    }

    async fn as_it_is(&self) -> Result<Option<Changed>> {
        let state = self.get_state().await?;
        Ok(state.map(|(state, token)| Changed { state, token, was_set: false }))
    }
}

#[async_trait]
impl RendezvousBackend for EtcdV2Backend {
    fn name(&self) -> &str {
        "etcd-v2"
    }

    async fn get_state(&self) -> Result<Option<(Vec<u8>, Token)>> {
        let found = self.client.find(&self.key, Get::new()).await.map_err(|error| self.failed(error))?;
        found.node.map(|node| self.decode(&node)).transpose()
    }

    async fn set_state(&self, state: &[u8], token: Option<&Token>) -> Result<Option<Changed>> {
        let text = STANDARD.encode(state);
        let put = Put::value(&text).ttl(self.ttl);
        let put = match Fence::of(token) {
            Fence::Absent => put.prev_exist(false),
            Fence::At(index) => put.prev_index(index),
            Fence::Never => return self.as_it_is().await,
        };
        match self.client.put(&self.key, put).await {
            Ok(written) => {
                let (state, token) = self.decode(&written.node)?;
                Ok(Some(Changed { state, token, was_set: true }))
            }
            // Whether it was set is told by what is there now; nobody else writes the same state.
            Err(error) if error.may_have_applied() => {
                let now = self.as_it_is().await?;
                Ok(now.map(|now| Changed { was_set: now.state == state, ..now }))
            }
            Err(error) => match error.kind() {
                ErrorKind::V2(Code::NodeExists | Code::TestFailed | Code::KeyNotFound) => {
                    self.as_it_is().await
                }
                _ => Err(self.failed(error)),
            },
        }
    }
}
