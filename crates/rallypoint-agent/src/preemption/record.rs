//! A node that goes: as nodes tell each other, and as workers read it.

use std::time::{Duration, SystemTime};

use rallypoint_core::text::plain;
use rallypoint_core::time::millis;
use serde::{Deserialize, Serialize};

/// A node that is going to be taken away, as it tells the others. A later version may say more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Preempted {
    /// Its place in the round.
    pub(crate) node: usize,
    /// The machine, for the workers.
    pub(crate) host: String,
    /// What the others call it; empty where an earlier version says it.
    #[serde(default)]
    pub(crate) name: String,
    /// Its workers.
    #[serde(default)]
    pub(crate) ranks: Vec<usize>,
    /// The name of the signal that said so.
    #[serde(default)]
    pub(crate) signal: String,
    /// How long its workers can still save, from when it was told: the nodes' clocks may differ. None: nobody knows.
    #[serde(default)]
    pub(crate) left_ms: Option<u64>,
}

impl Preempted {
    pub(crate) fn left(&self) -> Option<Duration> {
        self.left_ms.map(Duration::from_millis)
    }

    /// In a few words.
    pub(crate) fn in_short(&self) -> String {
        let left =
            self.left().map(|left| format!(": its workers have {} s to save", left.as_secs_f64().round()));
        let Preempted { node, host, name, signal, .. } = self;
        let name = plain(if name.is_empty() { host } else { name });
        format!("node {node} ({name}) is preempted by {}{}", plain(signal), left.unwrap_or_default())
    }
}

/// The same, with the deadline by the clock of the node that heard of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Heard {
    pub(crate) who: Preempted,
    pub(crate) deadline: Option<SystemTime>,
}

impl Heard {
    pub(crate) fn now(who: Preempted) -> Self {
        let deadline = who.left().and_then(|left| SystemTime::now().checked_add(left));
        Heard { who, deadline }
    }
}

/// What stands in a worker's file.
#[derive(Debug, Serialize)]
struct Notice<'a> {
    /// The node of this worker is one of those that go.
    here: bool,
    /// The earliest, in seconds since 1970.
    deadline: Option<f64>,
    /// What was left of it when this was written.
    seconds_left: Option<f64>,
    nodes: Vec<Node<'a>>,
}

#[derive(Debug, Serialize)]
struct Node<'a> {
    node: usize,
    host: &'a str,
    ranks: &'a [usize],
    signal: &'a str,
    deadline: Option<f64>,
    here: bool,
}

/// What a worker of node `own` reads at this time of all that go, and of those that want to get in, who wait so long.
pub(crate) fn notice(all: &[Heard], joining: Option<SystemTime>, own: usize, now: SystemTime) -> Vec<u8> {
    let seconds = |at: SystemTime| Duration::from_millis(millis(at)).as_secs_f64();
    let nodes = all.iter().map(|heard| Node {
        node: heard.who.node,
        host: &heard.who.host,
        ranks: &heard.who.ranks,
        signal: &heard.who.signal,
        deadline: heard.deadline.map(seconds),
        here: heard.who.node == own,
    });
    let nodes: Vec<Node<'_>> = nodes.collect();
    let earliest = all.iter().filter_map(|heard| heard.deadline).chain(joining).min();
    let left = earliest.map(|at| at.duration_since(now).unwrap_or_default().as_secs_f64());
    let here = nodes.iter().any(|node| node.here);
    let notice = Notice { here, deadline: earliest.map(seconds), seconds_left: left, nodes };
    serde_json::to_vec(&notice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::time::UNIX_EPOCH;

    use super::*;

    fn who(node: usize, left_ms: Option<u64>) -> Preempted {
        let (host, name) = (format!("h{node}"), format!("n{node}"));
        Preempted { node, host, name, ranks: vec![node], signal: "SIGTERM".into(), left_ms }
    }

    #[test]
    fn a_worker_reads_who_goes_until_when_and_whether_it_is_its_node() {
        let at = |seconds| Some(UNIX_EPOCH + Duration::from_secs(seconds));
        let all = [(2, at(120)), (3, at(110)), (4, None)]
            .map(|(node, deadline)| Heard { who: who(node, None), deadline });
        let read = |own| -> serde_json::Value {
            serde_json::from_slice(&notice(&all, None, own, UNIX_EPOCH + Duration::from_secs(100))).unwrap()
        };
        assert_eq!((read(0)["here"].clone(), read(2)["here"].clone()), (false.into(), true.into()));
        assert_eq!(
            (read(0)["deadline"].clone(), read(0)["seconds_left"].clone()),
            (110.0.into(), 10.0.into())
        );
        assert_eq!(read(2)["nodes"].as_array().unwrap().len(), 3);
        assert_eq!(read(2)["nodes"][0]["ranks"], serde_json::json!([2]));
        assert_eq!(read(2)["nodes"][2]["deadline"], serde_json::Value::Null);
        let joins: serde_json::Value = serde_json::from_slice(&notice(&[], at(120), 0, UNIX_EPOCH)).unwrap();
        assert_eq!((joins["deadline"].clone(), joins["here"].clone()), (120.0.into(), false.into()));
        assert_eq!(joins["nodes"], serde_json::json!([]), "nobody goes");
    }

    #[test]
    fn what_another_version_writes_is_read() {
        let read: Preempted = serde_json::from_str(r#"{"node": 1, "host": "h", "more": true}"#).unwrap();
        assert_eq!((read.node, read.left()), (1, None));
        assert!(read.in_short().starts_with("node 1 (h) is preempted"), "{}", read.in_short());
        assert_eq!(
            who(2, Some(19_900)).in_short(),
            "node 2 (n2) is preempted by SIGTERM: its workers have 20 s to save"
        );
    }
}
