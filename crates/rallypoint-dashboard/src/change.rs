//! What is sent: a view whole, or how it differs from an older one.

use std::collections::HashSet;

use serde::Serialize;

use crate::past::ShownEvent;
use crate::source::Node;
use crate::timeline::Timeline;
use crate::view::{Head, RunView, Runs};

/// What somebody looks at.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum View {
    Runs(Runs),
    Run(Box<RunView>),
    Etcd(Reachable),
}

/// Whether etcd answers, and what is said while it does not.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Reachable {
    pub(crate) answers: bool,
    pub(crate) text: String,
}

/// A name and its data, as a stream of events has them.
pub(crate) type Message = (&'static str, String);

impl View {
    pub(crate) fn whole(&self) -> Message {
        match self {
            View::Runs(runs) => ("runs", json(runs)),
            View::Etcd(etcd) => ("etcd", json(etcd)),
            View::Run(run) => {
                let RunView { head, timeline, nodes, events } = &**run;
                let (head, timeline) = (Some(head), Some(timeline));
                let nodes = nodes.values().collect();
                (
                    "run",
                    json(&Change {
                        head,
                        timeline,
                        nodes,
                        events: events.iter().collect(),
                        ..Change::default()
                    }),
                )
            }
        }
    }

    /// What makes `older` this one. None if nothing does.
    pub(crate) fn since(&self, older: &View) -> Option<Message> {
        if self == older {
            return None;
        }
        match (self, older) {
            (View::Run(new), View::Run(old)) => Some(("change", json(&Change::between(old, new)))),
            _ => Some(self.whole()),
        }
    }
}

/// What differs in a run; what is not named is as it was.
#[derive(Debug, Default, Serialize)]
struct Change<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<&'a Head>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<&'a Timeline>,
    /// New, or not as they were.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<&'a Node>,
    /// The names of those that are there no more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<&'a str>,
    /// New ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<&'a ShownEvent>,
    /// The events so far are no part of the timeline any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    afresh: bool,
}

impl<'a> Change<'a> {
    fn between(old: &'a RunView, new: &'a RunView) -> Self {
        let head = (old.head != new.head).then_some(&new.head);
        let timeline = (old.timeline != new.timeline).then_some(&new.timeline);
        let nodes = new.nodes.iter().filter(|(name, node)| old.nodes.get(*name) != Some(node));
        let gone = old.nodes.keys().filter(|name| !new.nodes.contains_key(*name));
        // A timeline grows at its end. If its last event is there no more, it is another's.
        let last = old.events.last();
        let goes_on = last.is_none_or(|last| new.events.iter().any(|event| event.id == last.id));
        let from = last.filter(|_| goes_on).map_or(i64::MIN, |last| last.revision);
        let known = old.events.iter().filter(|event| goes_on && event.revision >= from);
        let known: HashSet<&str> = known.map(|event| event.id.as_str()).collect();
        let is_new = |event: &&ShownEvent| event.revision >= from && !known.contains(event.id.as_str());
        let events = new.events.iter().filter(is_new);
        Change {
            head,
            timeline,
            nodes: nodes.map(|(_, node)| node).collect(),
            gone: gone.map(String::as_str).collect(),
            events: events.collect(),
            afresh: !goes_on,
        }
    }
}

fn json(value: &impl Serialize) -> String {
    // All keys are text, and no number is infinite: it cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Seen;

    /// What stands in etcd, as the commands write it.
    fn run(nodes: usize, events: usize) -> Seen {
        let node = |n: usize| {
            serde_json::json!({"node": format!("gpu-{n:05}"), "state": "member", "rank": n,
            "address": format!("10.0.{}.{}", n / 256, n % 256), "rack": format!("r{}", n / 32), "about": "8 x H100", "since": 1_700_000_000})
        };
        let event = |n: usize| {
            serde_json::json!({"revision": n + 1, "at_ms": 1_700_000_000_000_u64 + n as u64, "by": "gpu-00000",
            "round": n, "event": "failed", "text": format!("rank {n} failed")})
        };
        let nodes: Vec<_> = (0..nodes).map(node).collect();
        let events: Vec<_> = (0..events).map(event).collect();
        let run = serde_json::json!({"run_id": "job42", "state": "running", "round": 1, "world_size": nodes.len(), "nodes": nodes, "events": events});
        serde_json::from_value(run).unwrap()
    }

    fn view(seen: &Seen) -> View {
        View::Run(Box::new(RunView::of(seen.clone())))
    }

    fn change(old: &Seen, new: &Seen) -> serde_json::Value {
        let (name, data) = view(new).since(&view(old)).unwrap();
        assert_eq!(name, "change");
        serde_json::from_str(&data).unwrap()
    }

    #[test]
    fn one_change_among_ten_thousand_nodes_is_a_few_hundred_bytes() {
        let old = run(10_000, 100);
        let mut new = old.clone();
        new.nodes[4711].about = "8 x H200".to_owned();
        let (_, data) = view(&new).since(&view(&old)).unwrap();
        assert!(data.len() < 300, "{} bytes: {data}", data.len());
        assert!(data.contains("gpu-04711") && data.contains("8 x H200"), "{data}");
    }

    #[test]
    fn a_change_has_what_is_new_what_differs_and_what_is_gone() {
        let old = run(3, 2);
        let mut new = run(3, 4);
        new.nodes.remove(1);
        new.nodes[1].state = "joining".to_owned();
        let change = change(&old, &new);
        assert_eq!(change["gone"], serde_json::json!(["gpu-00001"]));
        assert_eq!(change["nodes"][0]["node"], "gpu-00002");
        assert_eq!(change["nodes"].as_array().map(Vec::len), Some(1));
        let revisions: Vec<_> =
            change["events"].as_array().unwrap().iter().map(|event| &event["revision"]).collect();
        assert_eq!(revisions, [3, 4]);
        assert!(
            change["head"].is_object() && change["timeline"].is_object() && change.get("afresh").is_none()
        );
    }

    #[test]
    fn all_events_of_one_transaction_are_sent() {
        let old = run(3, 2);
        let mut new = run(3, 6);
        // Two of the last revision that was sent, and two of the next.
        for (event, (revision, kind)) in
            new.events[2..].iter_mut().zip([(2, "leads"), (2, "failed"), (3, "lost"), (3, "lost")])
        {
            (event.revision, event.kind) = (revision, kind.to_owned());
        }
        let change = change(&old, &new);
        let ids: Vec<_> = change["events"].as_array().unwrap().iter().map(|event| &event["id"]).collect();
        assert_eq!(ids, ["2-leads-0", "2-failed-1", "3-lost-0", "3-lost-1"]);
        assert!(change.get("afresh").is_none());
        let marks = change["timeline"]["marks"].as_array().unwrap();
        let of: HashSet<_> = marks.iter().map(|mark| mark["event"].as_str()).collect();
        assert_eq!(of.len(), marks.len(), "each has an event of its own");
    }

    #[test]
    fn a_timeline_that_begins_anew_is_sent_afresh() {
        let old = run(1, 5);
        let mut new = run(1, 1);
        new.events[0].revision = 900;
        let change = change(&old, &new);
        assert_eq!(change["afresh"], true);
        assert_eq!(change["events"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn what_has_not_changed_is_not_sent() {
        assert_eq!(view(&run(3, 3)).since(&view(&run(3, 3))), None);
    }
}
