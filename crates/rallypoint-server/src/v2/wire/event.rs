//! What happened to a node, and how a node looks from outside.

use std::sync::OnceLock;

use bytes::Bytes;

use super::json;
use super::path::Path;
use super::time::Time;

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Get,
    Set,
    Create,
    Update,
    CompareAndSwap,
    Delete,
    CompareAndDelete,
    Expire,
}

impl Action {
    /// In the order of their declaration, so that `ALL[action as usize] == action`.
    pub(crate) const ALL: [Action; 8] = [
        Action::Get,
        Action::Set,
        Action::Create,
        Action::Update,
        Action::CompareAndSwap,
        Action::Delete,
        Action::CompareAndDelete,
        Action::Expire,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Action::Get => "get",
            Action::Set => "set",
            Action::Create => "create",
            Action::Update => "update",
            Action::CompareAndSwap => "compareAndSwap",
            Action::Delete => "delete",
            Action::CompareAndDelete => "compareAndDelete",
            Action::Expire => "expire",
        }
    }
}

/// A node as it was at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    pub(crate) path: Path,
    /// None for directories and for what is gone.
    pub(crate) value: Option<Bytes>,
    pub(crate) dir: bool,
    /// When it ends, and the TTL that was left.
    pub(crate) expires: Option<(Time, u64)>,
    pub(crate) nodes: Vec<View>,
    pub(crate) modified: u64,
    pub(crate) created: u64,
}

impl View {
    fn push_json(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        if !self.path.is_root() {
            out.extend_from_slice(b"\"key\":");
            json::push_string(out, self.path.as_bytes());
            out.push(b',');
        }
        if let Some(value) = &self.value {
            out.extend_from_slice(b"\"value\":");
            json::push_string(out, value);
            out.push(b',');
        }
        if self.dir {
            out.extend_from_slice(b"\"dir\":true,");
        }
        if let Some((end, ttl)) = self.expires {
            out.extend_from_slice(format!("\"expiration\":\"{end}\",").as_bytes());
            push_number(out, "ttl", ttl);
        }
        if !self.nodes.is_empty() {
            out.extend_from_slice(b"\"nodes\":[");
            for (at, node) in self.nodes.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                node.push_json(out);
            }
            out.extend_from_slice(b"],");
        }
        push_number(out, "modifiedIndex", self.modified);
        push_number(out, "createdIndex", self.created);
        if out.last() == Some(&b',') {
            out.pop();
        }
        out.push(b'}');
    }
}

/// etcd leaves every zero out.
fn push_number(out: &mut Vec<u8>, name: &str, number: u64) {
    if number != 0 {
        out.extend_from_slice(format!("\"{name}\":{number},").as_bytes());
    }
}

/// Above it an event is written anew for each who watches: it would take its memory twice for as long as it is kept.
const KEEP_JSON: usize = 64 << 10;

/// The answer to a request, and what watchers are told.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) action: Action,
    pub(crate) node: View,
    pub(crate) prev: Option<View>,
    /// A refresh raises the index and is told to nobody.
    pub(crate) refresh: bool,
    /// Written once however many watch, unless it is large.
    json: OnceLock<Bytes>,
}

impl Event {
    pub(crate) fn new(action: Action, node: View, prev: Option<View>) -> Self {
        Event { action, node, prev, refresh: false, json: OnceLock::new() }
    }

    pub(crate) fn refreshing(mut self, refresh: bool) -> Self {
        self.refresh = refresh;
        self
    }

    pub(crate) fn index(&self) -> u64 {
        self.node.modified
    }

    /// Whether there was no such node before.
    pub(crate) fn is_new_node(&self) -> bool {
        match self.action {
            Action::Create => true,
            Action::Set => self.prev.is_none(),
            _ => false,
        }
    }

    /// About the memory it holds on to.
    pub(crate) fn weight(&self) -> usize {
        let of = |view: &View| view.path.as_bytes().len() + view.value.as_ref().map_or(0, Bytes::len);
        size_of::<Event>() + of(&self.node) + self.prev.as_ref().map_or(0, of)
    }

    /// The same, with what is in its nodes.
    pub(crate) fn weight_below(&self) -> usize {
        fn below(view: &View) -> usize {
            view.nodes.iter().map(|node| of(node) + below(node)).sum()
        }
        fn of(view: &View) -> usize {
            size_of::<View>() + view.path.as_bytes().len() + view.value.as_ref().map_or(0, Bytes::len)
        }
        self.weight() + below(&self.node)
    }

    /// The event as a line of JSON.
    pub(crate) fn to_json(&self) -> Bytes {
        if self.weight_below() > KEEP_JSON {
            return self.write_json();
        }
        self.json.get_or_init(|| self.write_json()).clone()
    }

    fn write_json(&self) -> Bytes {
        let mut out = format!("{{\"action\":\"{}\",\"node\":", self.action.name()).into_bytes();
        self.node.push_json(&mut out);
        if let Some(prev) = &self.prev {
            out.extend_from_slice(b",\"prevNode\":");
            prev.push_json(&mut out);
        }
        out.extend_from_slice(b"}\n");
        out.into()
    }

    /// The event for a client that asked for no values.
    pub(crate) fn to_json_without_nodes(&self) -> Bytes {
        match self.action {
            Action::Set | Action::Create | Action::Update | Action::CompareAndSwap => {
                format!("{{\"action\":\"{}\"}}\n", self.action.name()).into()
            }
            _ => self.to_json(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_in_the_order_of_their_declaration() {
        for (at, action) in Action::ALL.into_iter().enumerate() {
            assert_eq!(action as usize, at);
        }
    }

    #[test]
    fn what_is_zero_or_empty_is_left_out_but_an_empty_value_is_not() {
        let root = View { dir: true, ..View::default() };
        assert_eq!(
            Event::new(Action::Get, root, None).to_json(),
            "{\"action\":\"get\",\"node\":{\"dir\":true}}\n"
        );
        let view =
            View { path: Path::clean(b"/a"), value: Some(Bytes::new()), modified: 2, ..View::default() };
        let event = Event::new(Action::Set, view.clone(), Some(view));
        let node = "{\"key\":\"/a\",\"value\":\"\",\"modifiedIndex\":2}";
        assert_eq!(event.to_json(), format!("{{\"action\":\"set\",\"node\":{node},\"prevNode\":{node}}}\n"));
    }
}
