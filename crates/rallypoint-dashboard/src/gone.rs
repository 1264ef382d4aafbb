//! What was last known of members that are gone: who looks for the machine has to know where it stands.

use std::collections::{HashMap, HashSet};

use futures::future::try_join_all;
use rallypoint_etcd::Result;
use rallypoint_etcd::v3::Client;
use rallypoint_rendezvous::native;

use crate::source::{Node, Seen};

/// So many are remembered and asked for, as many as are named.
const MOST: usize = 64;

/// What is known of nodes that have been there.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    /// Those that were there when the run was last read.
    there: HashMap<String, Node>,
    /// Those that went since, and those that etcd was asked for. None of whom it knew nothing any more.
    known: HashMap<String, Option<Node>>,
}

impl Gone {
    /// Adds to what was read of a run what is remembered. Of whom nobody here has seen anything, etcd is asked once: it keeps
    /// what stood there when the round was formed, until it is compacted.
    pub(crate) async fn recall(&mut self, client: &Client, seen: &mut Seen) -> Result<()> {
        self.look(&seen.nodes);
        let there: HashSet<&str> = seen.nodes.iter().map(|node| node.node.as_str()).collect();
        let lost = seen.lost.iter().chain(&seen.without).map(|lost| lost.node.clone());
        let lost = lost.filter(|node| !there.contains(node.as_str()));
        let lost: Vec<String> = lost.take(MOST).collect();
        let formed =
            seen.events.iter().rev().find(|event| event.kind == "formed" && event.round == seen.round);
        if let Some(revision) = formed.map(|event| event.revision) {
            let run = seen.run_id.as_str();
            let unknown: Vec<String> =
                lost.iter().filter(|node| !self.known.contains_key(*node)).cloned().collect();
            let asked: Vec<_> =
                unknown.into_iter().map(|node| last_word(client, run, node, revision)).collect();
            self.known.extend(try_join_all(asked).await?);
        }
        let known = lost.into_iter().filter_map(|node| {
            let last = self.known.get(&node)?.clone()?;
            Some((node, last))
        });
        seen.last_known = known.collect();
        Ok(())
    }

    /// Takes in who is there, and remembers who was and is no more.
    fn look(&mut self, nodes: &[Node]) {
        let now: HashSet<&str> = nodes.iter().map(|node| node.node.as_str()).collect();
        let went: Vec<String> =
            self.there.keys().filter(|name| !now.contains(name.as_str())).cloned().collect();
        if self.known.len() + went.len() > 2 * MOST {
            self.known.clear();
        }
        for name in went {
            let node = self.there.remove(&name);
            if self.known.len() < 2 * MOST {
                self.known.insert(name, node);
            }
        }
        for node in nodes {
            if self.there.get(&node.node) != Some(node) {
                self.there.insert(node.node.clone(), node.clone());
            }
        }
    }
}

/// What a node said of itself at that revision.
async fn last_word(
    client: &Client,
    run: &str,
    node: String,
    revision: i64,
) -> Result<(String, Option<Node>)> {
    let record = native::node_at(client, run, &node, revision).await?;
    let last = record.map(|record| Node {
        address: record.address,
        host: record.host,
        rack: record.rack,
        about: record.about,
        since: record.since,
        ..Node::default()
    });
    Ok((node, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_seen_is_remembered_as_it_was_last() {
        let node =
            |node: &str, rack: &str| Node { node: node.to_owned(), rack: rack.to_owned(), ..Node::default() };
        let mut gone = Gone::default();
        let rack = |gone: &Gone| gone.known["b"].as_ref().map(|node| node.rack.clone());
        gone.look(&[node("a", "r1"), node("b", "r1")]);
        assert!(gone.known.is_empty());
        gone.look(&[node("a", "r1")]);
        assert_eq!(rack(&gone).as_deref(), Some("r1"));
        gone.look(&[node("a", "r1"), node("b", "r2")]);
        gone.look(&[node("a", "r1")]);
        assert_eq!(rack(&gone).as_deref(), Some("r2"));
    }

    #[test]
    fn of_a_large_group_that_goes_only_so_many_are_remembered() {
        let nodes = |count: usize| -> Vec<Node> {
            (0..count).map(|n| Node { node: n.to_string(), ..Node::default() }).collect()
        };
        let mut gone = Gone::default();
        gone.look(&nodes(1000));
        gone.look(&nodes(0));
        assert_eq!((gone.there.len(), gone.known.len()), (0, 2 * MOST));
    }
}
