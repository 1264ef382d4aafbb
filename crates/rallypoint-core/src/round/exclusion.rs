//! Who is excluded from a run, and why.
//!
//! Each exclusion is a key of its own under `group/`, which every node watches: it costs no request more. It hangs on the
//! run's lease, or on one of its own that ends when it expires. That is etcd's time: clocks of nodes differ, and nobody
//! has to be there to lift it. It is written together with the group's record, which every commit compares: so no round
//! is completed after an exclusion by a leader that did not know of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::etcd::{Entry, Op};
use super::keys::Keys;
use super::record::{RECORD_VERSION, json, number, parse};
use super::whom::Whom;
use crate::text::{brief, count, list, plain};
use crate::time::rfc3339;

/// So many can be excluded at a time: each node that comes reads them all.
pub const MOST_EXCLUSIONS: usize = 128;
/// The shortest that somebody can be excluded: etcd's leases are not shorter.
pub const SHORTEST_EXCLUSION: Duration = Duration::from_secs(2);
/// The longest; without an end it is for as long as the run lives.
pub const LONGEST_EXCLUSION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Reasons are cut to so many letters.
const LONGEST_REASON: usize = 200;
/// So many that have expired are kept until a leader has written that down.
const MOST_EXPIRED: usize = 16;
/// So many are named in one line.
const NAMED: usize = 4;

/// That somebody is excluded from a run.
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

/// Until when somebody is excluded, in words.
#[must_use]
pub fn until(until_ms: Option<u64>) -> String {
    match until_ms {
        // Nobody asks for the milliseconds.
        Some(at) => format!("until about {}", rfc3339(Duration::from_secs(at / 1000)).replace(".000Z", "Z")),
        None => "for as long as the run lives".to_owned(),
    }
}

/// Who is excluded, in one line: `1 node and 1 host are excluded: node a (its disk is full), host b (maintenance)`. None
/// where nobody is.
#[must_use]
pub fn kept_out(exclusions: &[Exclusion]) -> Option<String> {
    let are = if exclusions.len() == 1 { "is" } else { "are" };
    (!exclusions.is_empty())
        .then(|| format!("{} {are} excluded: {}", how_many(exclusions), names(exclusions)))
}

/// The same without the verb: `1 node and 1 host: node a (its disk is full), host b (maintenance)`.
#[must_use]
pub fn kept_out_in_short(exclusions: &[Exclusion]) -> Option<String> {
    (!exclusions.is_empty()).then(|| format!("{}: {}", how_many(exclusions), names(exclusions)))
}

fn how_many(exclusions: &[Exclusion]) -> String {
    let nodes = exclusions.iter().filter(|exclusion| matches!(exclusion.whom, Whom::Node(_))).count();
    let kinds = [(nodes, "node"), (exclusions.len() - nodes, "host")];
    let kinds = kinds.into_iter().filter(|(number, _)| *number > 0);
    list(&kinds.map(|(number, kind)| count(number, kind)).collect::<Vec<_>>())
}

fn names(exclusions: &[Exclusion]) -> String {
    let mut names: Vec<String> = exclusions.iter().take(NAMED).map(Exclusion::in_short).collect();
    if exclusions.len() > NAMED {
        names.push("...".to_owned());
    }
    names.join(", ")
}

/// All who are excluded, as far as a node knows.
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
    /// Those that have expired while this node was watching, the last few, and how many in all.
    expired: Vec<Exclusion>,
    expired_count: usize,
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

    /// A key was written, or is gone. Several can be, at one revision. Who lets somebody in writes the group's record with it
    /// (`by_hand`); what goes by itself has expired.
    pub(super) fn happened(&mut self, revision: i64, key: &str, entry: Option<&Entry>, by_hand: bool) {
        if revision <= self.read || revision < self.last {
            return;
        }
        self.last = revision;
        self.version += 1;
        match entry.and_then(exclusion) {
            Some(exclusion) => _ = self.by_key.insert(key.to_owned(), exclusion),
            None => {
                let gone = self.by_key.remove(key).map(|(exclusion, _)| exclusion);
                if let Some(expired) = gone.filter(|gone| gone.until_ms.is_some() && !by_hand) {
                    self.expired.push(expired);
                    self.expired_count += 1;
                    self.expired.drain(..self.expired.len().saturating_sub(MOST_EXPIRED));
                }
            }
        }
    }

    /// How many have expired while this node was watching.
    pub(super) fn expired_count(&self) -> usize {
        self.expired_count
    }

    /// Those after the first so many, as far as they are kept.
    pub(super) fn expired_after(&self, told: usize) -> impl Iterator<Item = &Exclusion> {
        let new = self.expired_count.saturating_sub(told);
        self.expired.iter().skip(self.expired.len().saturating_sub(new))
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

    /// Why a node of this name on that machine is excluded, if it is.
    pub(super) fn of(&self, node: &str, host: &str) -> Option<&Exclusion> {
        self.all().find(|exclusion| exclusion.whom.is(node, host))
    }
}

/// What is not written as we do keeps nobody out. What hangs on no lease was written by somebody who is no operator of
/// ours, and would stay for ever.
fn exclusion(entry: &Entry) -> Option<(Exclusion, i64)> {
    Some((parse(entry).ok().filter(|_| entry.lease != 0)?, entry.lease))
}

/// Reads for how long somebody is to be kept out: seconds, or a number with `s`, `m`, `h` or `d`.
pub fn exclusion_time(text: &str) -> Result<Duration, &'static str> {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h', 'd']) {
        Some(number) => (number, &text[number.len()..]),
        None => (text, "s"),
    };
    let seconds = match unit {
        "d" => 86_400,
        "h" => 3_600,
        "m" => 60,
        _ => 1,
    };
    let time = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    let time =
        time.map(Duration::from_secs).filter(|time| (SHORTEST_EXCLUSION..=LONGEST_EXCLUSION).contains(time));
    time.ok_or("a time is seconds, or a number with s, m, h or d, from 2s to 30d")
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
        assert_eq!(kept_out(&[node("a")]).as_deref(), Some("1 node is excluded: node a (so)"));
        assert_eq!(kept_out_in_short(&[node("a")]).as_deref(), Some("1 node: node a (so)"));
        let both = kept_out(&[node("a"), of(Whom::Host("h".to_owned()))]);
        assert_eq!(both.as_deref(), Some("1 node and 1 host are excluded: node a (so), host h (so)"));
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
        exclusions.happened(7, "a", Some(&entry("a", 7)), true);
        exclusions.happened(7, "b", Some(&entry("b", 7)), true);
        exclusions.read(6, &[]);
        assert!(exclusions.of("a", "").is_some() && exclusions.of("b", "").is_some());
        exclusions.read(9, &[entry("b", 7)]);
        exclusions.happened(8, "b", None, true);
        assert!(exclusions.of("a", "").is_none() && exclusions.of("b", "").is_some());
        exclusions.happened(10, "b", None, true);
        assert_eq!(exclusions.all().count(), 0);
    }

    #[test]
    fn what_goes_by_itself_has_expired_and_what_is_lifted_has_not() {
        let mut exclusions = Exclusions::default();
        for number in 1..=40 {
            let (name, time) = (format!("n{number}"), (number % 2 == 0).then_some(Duration::from_secs(1)));
            let exclusion = Exclusion::new(Whom::Node(name.clone()), "so", "", 0, time);
            let value = json(&exclusion);
            let entry =
                Entry { key: name.clone(), value, create_revision: 1, mod_revision: number, lease: 1 };
            exclusions.happened(number * 3, &name, Some(&entry), true);
            // Those without a time go only with the run.
            exclusions.happened(number * 3 + 1, &name, None, number == 40);
        }
        assert_eq!(exclusions.expired_count(), 19);
        assert_eq!(exclusions.expired_after(0).count(), MOST_EXPIRED);
        let new: Vec<String> = exclusions.expired_after(18).map(|gone| gone.whom.to_string()).collect();
        assert_eq!(new, ["node n38"]);
    }

    #[test]
    fn times_have_a_unit_or_are_seconds() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7_200), ("30d", 2_592_000)] {
            assert_eq!(exclusion_time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "h", "1", "31d", "-5", "1w", "1.5h", "99999999999999999999d"] {
            assert!(exclusion_time(wrong).is_err(), "{wrong}");
        }
    }
}
