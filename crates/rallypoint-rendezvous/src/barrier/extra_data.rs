//! Small data that the nodes of a version share beside its store, in one JSON object.

use std::time::Duration;

use rallypoint_core::barrier::to_python_json;
use rallypoint_etcd::v2::{Code, Get, Node, Put, Watched};
use serde_json::{Map, Value};

use super::EtcdBarrier;
use super::wire::is;
use crate::error::{RendezvousError, Result};

impl EtcdBarrier {
    /// Stores `value` under `key` in the extra data of a version.
    pub async fn store_extra_data(&self, version: u64, key: &str, value: Value) -> Result<()> {
        let path = self.extra_data(version);
        loop {
            let found = self.wire.client.find(&path, Get::new()).await;
            let node = found.map_err(|error| self.wire.failed(error))?.node;
            let mut data = node.as_ref().map(|node| self.parse(node)).transpose()?.unwrap_or_default();
            data.insert(key.to_owned(), value.clone());
            let text = to_python_json(&data);
            let put = match &node {
                Some(node) => Put::value(&text).prev_index(node.modified_index),
                None => Put::value(&text).prev_exist(false),
            };
            match self.wire.client.put(&path, put).await {
                Ok(_) => return Ok(()),
                // Somebody else was faster, or we were and nobody told us: storing it again does no harm.
                Err(error)
                    if is(&error, Code::TestFailed)
                        || is(&error, Code::NodeExists)
                        || error.may_have_applied() => {}
                Err(error) => return Err(self.wire.failed(error)),
            }
            tokio::time::sleep(Duration::from_millis(20).mul_f64(fastrand::f64())).await;
        }
    }

    /// The value under `key` in the extra data of a version; waits for it, for `timeout` at most if there is one.
    pub async fn load_extra_data(&self, version: u64, key: &str, timeout: Option<Duration>) -> Result<Value> {
        let waiting = async {
            let path = self.extra_data(version);
            let mut found =
                self.wire.client.find(&path, Get::new()).await.map_err(|error| self.wire.failed(error))?;
            loop {
                if let Some(node) = &found.node
                    && let Some(value) = self.parse(node)?.remove(key)
                {
                    return Ok(value);
                }
                let mut watcher = self.wire.client.watch(&path, found.etcd_index + 1);
                match watcher.next().await.map_err(|error| self.wire.failed(error))? {
                    Watched::Event(event) if !event.action.removes() => {
                        found.etcd_index = event.node.modified_index;
                        found.node = Some(event.node);
                    }
                    _ => {
                        found = self
                            .wire
                            .client
                            .find(&path, Get::new())
                            .await
                            .map_err(|error| self.wire.failed(error))?;
                    }
                }
            }
        };
        let Some(after) = timeout else { return waiting.await };
        tokio::time::timeout(after, waiting).await.unwrap_or_else(|_| {
            let what = format!("extra data {key:?} of version {version}");
            Err(RendezvousError::Timeout { run_id: self.config.run_id.clone(), what, after })
        })
    }

    fn extra_data(&self, version: u64) -> String {
        format!("{}/extra_data", self.wire.version(version))
    }

    fn parse(&self, node: &Node) -> Result<Map<String, Value>> {
        serde_json::from_str(node.value.as_deref().unwrap_or_default()).map_err(|error| {
            RendezvousError::State {
                run_id: self.config.run_id.clone(),
                problem: format!("{} is not a JSON object", node.key),
                source: Some(error.into()),
            }
        })
    }
}
