//! Who is kept out of a run, and why.
//!
//! Each exclusion is a key of its own under `group/`, which every node watches: it costs no request more. It hangs on the
//! run's lease, or on one of its own that ends when it expires. That is etcd's time: clocks of nodes differ, and nobody
//! has to be there to lift it. It is written together with the group's record, which every commit compares: so no round
//! is completed after an exclusion by a leader that did not know of it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::etcd::{Entry, Op};
use super::keys::Keys;
use super::record::{RECORD_VERSION, json, number, parse};
use crate::text::{brief, count, list, plain};
use crate::time::rfc3339;

/// So many can be kept out at a time: each node that comes reads them all.
pub const MOST_EXCLUSIONS: usize = 128;
/// Reasons are cut to so many letters.
const LONGEST_REASON: usize = 200;
/// So many are named in one line.
const NAMED: usize = 4;

/// Who is kept out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whom {
    /// A node, by its name in the run.
    Node(String),
    /// Every node on this machine.
    Host(String),
}

impl Whom {
    /// Whether a node of this name on that machine is meant.
    #[must_use]
    pub fn is(&self, node: &str, host: &str) -> bool {
        match self {
            Whom::Node(name) => name == node,
            Whom::Host(name) => name == host,
        }
    }
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whom::Node(name) => write!(f, "node {}", plain(name)),
            Whom::Host(name) => write!(f, "host {}", plain(name)),
        }
    }
}

/// That somebody is kept out of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// See [`RECORD_VERSION`].
    #[serde(default)]
    pub version: u32,
    /// Who.
    #[serde(flatten)]
    pub whom: Whom,
    /// Why, in words.
    #[serde(default)]
    pub reason: String,
    /// The node that says so; empty for an operator.
    #[serde(default)]
    pub by: String,
    /// Since when, in milliseconds since 1970, by the clock of who wrote it.
    #[serde(default, deserialize_with = "number")]
    pub at_ms: u64,
    /// Until about when, by that clock; none for as long as the run lives. It ends when etcd ends its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

impl Exclusion {
    /// One that is written at `at_ms`, for so long or for as long as the run lives.
    #[must_use]
    pub fn new(whom: Whom, reason: &str, by: &str, at_ms: u64, time: Option<Duration>) -> Self {
        let until =
            |time: Duration| at_ms.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        Exclusion {
            version: RECORD_VERSION,
            whom,
            reason: brief(reason, LONGEST_REASON),
            by: by.to_owned(),
            at_ms,
            until_ms: time.map(until),
        }
    }

    /// Until when, in words: a moment, or as long as the run lives.
    #[must_use]
    pub fn until(&self) -> String {
        until(self.until_ms)
    }

    /// `node a (its disk is full)`.
    #[must_use]
    pub fn in_short(&self) -> String {
        format!("{} ({})", self.whom, plain(&self.reason))
    }

    pub(super) fn put(&self, keys: &Keys, lease: i64) -> Op {
        Op::Put { key: keys.exclusion(&self.whom), value: json(self), lease }
    }
}

/// Until when somebody is kept out, in words.
#[must_use]
pub fn until(until_ms: Option<u64>) -> String {
    match until_ms {
        // Nobody asks for the milliseconds.
        Some(at) => format!("until about {}", rfc3339(Duration::from_secs(at / 1000)).replace(".000Z", "Z")),
        None => "for as long as the run lives".to_owned(),
    }
}

/// Who is kept out, in one line: `1 node and 1 host are kept out: node a (its disk is full), host b (maintenance)`. None
/// where nobody is.
#[must_use]
pub fn kept_out(exclusions: &[Exclusion]) -> Option<String> {
    let nodes = exclusions.iter().filter(|exclusion| matches!(exclusion.whom, Whom::Node(_))).count();
    let kinds = [(nodes, "node"), (exclusions.len() - nodes, "host")];
    let kinds = kinds.into_iter().filter(|(number, _)| *number > 0);
    let kinds: Vec<String> = kinds.map(|(number, kind)| count(number, kind)).collect();
    let mut names: Vec<String> = exclusions.iter().take(NAMED).map(Exclusion::in_short).collect();
    if exclusions.len() > NAMED {
        names.push("...".to_owned());
    }
    let are = if exclusions.len() == 1 { "is" } else { "are" };
    (!exclusions.is_empty()).then(|| format!("{} {are} kept out: {}", list(&kinds), names.join(", ")))
}

/// All who are kept out, as far as a node knows.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Exclusions {
    /// Each with the lease that it hangs on.
    by_key: BTreeMap<String, (Exclusion, i64)>,
    /// The revision that all of it was read at, in one look.
    read: i64,
    /// The last revision that is known of.
    last: i64,
    /// Counts the times that something changed.
    version: u64,
}

impl Exclusions {
    /// What stands there, as of a revision.
    pub(super) fn read(&mut self, revision: i64, entries: &[Entry]) {
        if revision < self.last {
            return;
        }
        let found = entries.iter().filter_map(|entry| Some((entry.key.clone(), exclusion(entry)?)));
        let found: BTreeMap<String, (Exclusion, i64)> = found.collect();
        (self.read, self.last) = (revision, revision);
        if found != self.by_key {
            self.by_key = found;
            self.version += 1;
        }
    }

    /// A key was written, or is gone. Several can be, at one revision.
    pub(super) fn happened(&mut self, revision: i64, key: &str, entry: Option<&Entry>) {
        if revision <= self.read || revision < self.last {
            return;
        }
        self.last = revision;
        self.version += 1;
        match entry.and_then(exclusion) {
            Some(exclusion) => _ = self.by_key.insert(key.to_owned(), exclusion),
            None => _ = self.by_key.remove(key),
        }
    }

    /// All that was known is of another history, perhaps.
    pub(super) fn forget_revisions(&mut self) {
        (self.read, self.last) = (0, 0);
    }

    /// Tells whether something has changed since.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Exclusion> {
        self.by_key.values().map(|(exclusion, _)| exclusion)
    }

    /// What they hang on.
    pub(super) fn leases(&self) -> impl Iterator<Item = i64> {
        self.by_key.values().map(|(_, lease)| *lease)
    }

    /// Why a node of this name on that machine is kept out, if it is.
    pub(super) fn of(&self, node: &str, host: &str) -> Option<&Exclusion> {
        self.all().find(|exclusion| exclusion.whom.is(node, host))
    }
}

/// What is not written as we do keeps nobody out. What hangs on no lease was written by somebody who is no operator of
/// ours, and would stay for ever.
fn exclusion(entry: &Entry) -> Option<(Exclusion, i64)> {
    Some((parse(entry).ok().filter(|_| entry.lease != 0)?, entry.lease))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exclusion_is_one_flat_object() {
        let whom = Whom::Host("h1".to_owned());
        let exclusion = Exclusion::new(whom, "its GPU has failed", "n3", 1_000, Some(Duration::from_secs(9)));
        let text = json(&exclusion);
        assert_eq!(
            text,
            r#"{"version":1,"host":"h1","reason":"its GPU has failed","by":"n3","at_ms":1000,"until_ms":10000}"#
        );
        let entry = |value: &str, lease| Entry {
            key: "k".to_owned(),
            value: value.to_owned(),
            create_revision: 1,
            mod_revision: 1,
            lease,
        };
        assert_eq!(super::exclusion(&entry(&text, 7)), Some((exclusion, 7)));
        let later = super::exclusion(&entry(r#"{"node":"a","colour":"red"}"#, 7));
        assert_eq!(later.map(|(it, _)| it.whom), Some(Whom::Node("a".to_owned())));
        for (value, lease) in [(text.as_str(), 0), (r#"{"rack":"r"}"#, 7), ("moon", 7)] {
            assert_eq!(super::exclusion(&entry(value, lease)), None, "{value}");
        }
    }

    #[test]
    fn who_is_kept_out_is_said_in_one_line() {
        let of = |whom| Exclusion::new(whom, "so", "", 0, None);
        let node = |name: &str| of(Whom::Node(name.to_owned()));
        assert_eq!(kept_out(&[]), None);
        assert_eq!(kept_out(&[node("a")]).as_deref(), Some("1 node is kept out: node a (so)"));
        let both = kept_out(&[node("a"), of(Whom::Host("h".to_owned()))]);
        assert_eq!(both.as_deref(), Some("1 node and 1 host are kept out: node a (so), host h (so)"));
        let many: Vec<Exclusion> = (0..9).map(|name: i32| node(&name.to_string())).collect();
        assert!(kept_out(&many).is_some_and(|text| text.ends_with("node 3 (so), ...")));
    }

    #[test]
    fn what_is_late_does_not_undo_what_is_known() {
        let entry = |name: &str, mod_revision| Entry {
            key: name.to_owned(),
            value: json(&Exclusion::new(Whom::Node(name.to_owned()), "so", "", 0, None)),
            create_revision: mod_revision,
            mod_revision,
            lease: 1,
        };
        let mut exclusions = Exclusions::default();
        exclusions.happened(7, "a", Some(&entry("a", 7)));
        exclusions.happened(7, "b", Some(&entry("b", 7)));
        exclusions.read(6, &[]);
        assert!(exclusions.of("a", "").is_some() && exclusions.of("b", "").is_some());
        exclusions.read(9, &[entry("b", 7)]);
        exclusions.happened(8, "b", None);
        assert!(exclusions.of("a", "").is_none() && exclusions.of("b", "").is_some());
        exclusions.happened(10, "b", None);
        assert_eq!(exclusions.all().count(), 0);
    }
}
