//! What a node that is gone said of itself while it was there.

use rallypoint_core::round::{Keys, NodeRecord};
use rallypoint_etcd::v3::{Client, Entry, KeyRange};
use rallypoint_etcd::{ErrorKind, Result};

use super::super::settings::run_prefix;

/// What stood in etcd of a node at an earlier revision. None if it was not there, and where etcd has compacted that away.
pub async fn node_at(client: &Client, run_id: &str, node: &str, revision: i64) -> Result<Option<NodeRecord>> {
    let key = Keys::new(&run_prefix(run_id)).node(node);
    let options = KeyRange::key(key.clone()).get_options().with_revision(revision);
    match client.get(key, Some(options)).await {
        Err(error) if error.kind() == ErrorKind::Compacted => Ok(None),
        Err(error) => Err(error),
        Ok(mut answer) => {
            let entry = answer.take_kvs().pop().map(Entry::from);
            Ok(entry.and_then(|entry| serde_json::from_slice(&entry.value).ok()))
        }
    }
}
