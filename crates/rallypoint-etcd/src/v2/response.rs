//! What comes back.

use serde::Deserialize;

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Action {
    /// A read.
    Get,
    /// A write without conditions.
    Set,
    /// A write where nothing was, or an in-order one.
    Create,
    /// A write over something, or a refresh.
    Update,
    /// A removal.
    Delete,
    /// A write on a condition.
    CompareAndSwap,
    /// A removal on a condition.
    CompareAndDelete,
    /// A removal because the TTL ran out.
    Expire,
    /// Something that etcd is not known to do.
    #[serde(other)]
    Unknown,
}

impl Action {
    /// Whether the key is gone after it.
    #[must_use]
    pub fn removes(self) -> bool {
        matches!(self, Action::Delete | Action::CompareAndDelete | Action::Expire)
    }
}

/// A key and what it holds, or a directory.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its key, from the root, without the client's prefix. The root itself has none.
    #[serde(default)]
    pub key: String,
    /// Its value; directories and removed keys have none.
    pub value: Option<String>,
    /// Whether it is a directory.
    #[serde(default)]
    pub dir: bool,
    /// What is in the directory, as far as it was asked for. Keys that begin with `_` are not listed.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// The index at which it came to be.
    #[serde(default)]
    pub created_index: u64,
    /// The index of its last change.
    #[serde(default)]
    pub modified_index: u64,
    /// Seconds it had left when this was written or read; below zero, it is about to be removed.
    pub ttl: Option<i64>,
    /// When it is removed, in RFC 3339, by the clock of the server that took the write.
    pub expiration: Option<String>,
}

impl Node {
    /// The last part of its key.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }

    fn strip(&mut self, prefix: &str) {
        if let Some(rest) = self.key.strip_prefix(prefix) {
            self.key = rest.to_owned();
        }
        for node in &mut self.nodes {
            node.strip(prefix);
        }
    }
}

/// A read, a write, or an event of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Response {
    /// What was done.
    pub action: Action,
    /// The key after it.
    pub node: Node,
    /// The key before it, where it was there.
    pub prev_node: Option<Node>,
    /// The index of the whole store when the server answered; for an event, when its watch began.
    #[serde(skip)]
    pub etcd_index: u64,
}

impl Response {
    pub(super) fn parse(body: &[u8], etcd_index: u64, prefix: &str) -> Result<Response, serde_json::Error> {
        let mut response = Response { etcd_index, ..serde_json::from_slice(body)? };
        if !prefix.is_empty() {
            response.node.strip(prefix);
            if let Some(node) = &mut response.prev_node {
                node.strip(prefix);
            }
        }
        Ok(response)
    }
}

/// A read of a key that may not be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The key, if it is there.
    pub node: Option<Node>,
    /// The index of the whole store at the time of the read: a watch from the next one misses nothing.
    pub etcd_index: u64,
}

/// What the server is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Version {
    /// Version of the server that answered.
    #[serde(rename = "etcdserver")]
    pub server: String,
    /// Version of the protocol its cluster agreed on.
    #[serde(rename = "etcdcluster")]
    pub cluster: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_says_is_understood() {
        let body = r#"{"action":"compareAndSwap",
            "node":{"key":"/p/a","value":"2","expiration":"2126-10-22T03:33:58.5Z","ttl":31,"modifiedIndex":5,"createdIndex":4},
            "prevNode":{"key":"/p/a","value":"","modifiedIndex":4,"createdIndex":4}}"#;
        let response = Response::parse(body.as_bytes(), 9, "/p").unwrap();
        assert_eq!(response.action, Action::CompareAndSwap);
        assert_eq!((response.node.key.as_str(), response.node.ttl), ("/a", Some(31)));
        assert_eq!(response.prev_node.unwrap().value.as_deref(), Some(""));
        assert_eq!(response.etcd_index, 9);

        let root = r#"{"action":"get","node":{"dir":true,"nodes":[{"key":"/p/d","dir":true,"modifiedIndex":1,"createdIndex":1}]}}"#;
        let root = Response::parse(root.as_bytes(), 1, "/p").unwrap().node;
        assert_eq!((root.key.as_str(), root.nodes[0].name()), ("", "d"));

        let later = r#"{"action":"teleport","node":{"key":"/a"}}"#;
        assert_eq!(Response::parse(later.as_bytes(), 1, "").unwrap().action, Action::Unknown);
    }
}
