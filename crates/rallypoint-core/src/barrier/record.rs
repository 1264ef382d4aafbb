//! The record that all nodes of a run share, as PyTorch writes it.

use std::io;

use serde::Deserialize;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use serde_json::ser::Formatter;
use thiserror::Error;

/// Why a run was closed, beside what PyTorch writes.
const REASON: &str = "reason";

/// How far a version has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// A node prepares it.
    Setup,
    /// Nodes can join.
    Joinable,
    /// Its nodes are fixed, and confirm that they are there.
    Frozen,
    /// All have confirmed.
    Final,
    /// The run is over.
    Closed,
}

impl Status {
    const ALL: [Status; 5] = [Status::Setup, Status::Joinable, Status::Frozen, Status::Final, Status::Closed];

    fn as_str(self) -> &'static str {
        match self {
            Status::Setup => "setup",
            Status::Joinable => "joinable",
            Status::Frozen => "frozen",
            Status::Final => "final",
            Status::Closed => "closed",
        }
    }
}

/// What stands in `rdzv/active_version`.
///
/// Written byte for byte as Python's `json.dumps` does; what other programs add to it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// How far it has come.
    pub status: Status,
    /// The number of the version; only while it is set up there is none.
    pub version: Option<u64>,
    /// The ranks given out so far, in order.
    pub participants: Option<Vec<u64>>,
    /// The keep-alive keys of the nodes that have confirmed.
    pub keep_alives: Option<Vec<String>>,
    /// Nodes that wait for the next version; a final one has it.
    pub waiting: Option<u64>,
    /// Members that PyTorch does not write.
    other: Vec<(String, Value)>,
    /// As it was read, where it would be written otherwise.
    read_as: Option<String>,
}

/// A text that is not a record.
#[derive(Debug, Error)]
#[error("{text:?} is not the state of a rendezvous: {problem}")]
pub struct RecordError {
    text: String,
    problem: String,
}

impl Record {
    fn new(status: Status) -> Self {
        Record {
            status,
            version: None,
            participants: None,
            keep_alives: None,
            waiting: None,
            other: Vec::new(),
            read_as: None,
        }
    }

    /// A version that this node has begun to prepare. PyTorch's nodes leave no name, and compare texts: one of them that
    /// is late with what it prepared must not take this for it.
    #[must_use]
    pub fn setup(node: Option<&str>) -> Self {
        let other = node.map(|node| ("node".to_owned(), Value::from(node)));
        Record { other: other.into_iter().collect(), ..Record::new(Status::Setup) }
    }

    /// A version that nobody has joined yet.
    #[must_use]
    pub fn joinable(version: u64) -> Self {
        Record { version: Some(version), participants: Some(Vec::new()), ..Record::new(Status::Joinable) }
    }

    /// A run that was closed, for this reason, before it had a version.
    #[must_use]
    pub fn closed(reason: &str) -> Self {
        Record::new(Status::Closed).to_closed(reason)
    }

    /// Whether it is this version, in this status.
    #[must_use]
    pub fn is(&self, status: Status, version: u64) -> bool {
        self.status == status && self.version == Some(version)
    }

    /// Whether it is this version, and not final yet.
    #[must_use]
    pub fn is_open(&self, version: u64) -> bool {
        self.is(Status::Joinable, version) || self.is(Status::Frozen, version)
    }

    /// Whether it has the same nodes as `other`, as far as records tell: those of one number can differ after etcd lost
    /// its data.
    #[must_use]
    pub fn has_nodes_of(&self, other: &Record) -> bool {
        (self.version, &self.participants, &self.keep_alives)
            == (other.version, &other.participants, &other.keep_alives)
    }

    /// How many nodes have joined.
    #[must_use]
    pub fn joined(&self) -> usize {
        self.participants.as_ref().map_or(0, Vec::len)
    }

    /// How many nodes have confirmed.
    #[must_use]
    pub fn confirmed(&self) -> usize {
        self.keep_alives.as_ref().map_or(0, Vec::len)
    }

    /// Whether the keep-alive key `key` is in it.
    #[must_use]
    pub fn has_confirmed(&self, key: &str) -> bool {
        self.keep_alives.iter().flatten().any(|one| one == key)
    }

    /// The same with one node more, frozen if that makes `max`; and that node's rank.
    #[must_use]
    pub fn with_node(&self, max: usize) -> (Record, usize) {
        let rank = self.joined();
        let mut next = self.to_change();
        next.participants.get_or_insert_default().push(rank as u64);
        (if next.joined() == max { next.to_frozen() } else { next }, rank)
    }

    /// The same, with its nodes fixed.
    #[must_use]
    pub fn to_frozen(&self) -> Record {
        Record { status: Status::Frozen, keep_alives: Some(Vec::new()), ..self.to_change() }
    }

    /// The same with one confirmation more, final if it is the last.
    #[must_use]
    pub fn with_confirmed(&self, key: &str) -> Record {
        let mut next = self.to_change();
        next.keep_alives.get_or_insert_default().push(key.to_owned());
        if next.confirmed() == next.joined() {
            next.status = Status::Final;
            next.waiting = Some(0);
        }
        next
    }

    /// The same with one node more that waits.
    #[must_use]
    pub fn with_waiting(&self) -> Record {
        Record { waiting: Some(self.waiting.unwrap_or(0) + 1), ..self.to_change() }
    }

    /// The same, closed for this reason; an empty one is none. PyTorch's nodes give none, and keep ours.
    #[must_use]
    pub fn to_closed(&self, reason: &str) -> Record {
        let mut next = Record { status: Status::Closed, ..self.to_change() };
        next.other.retain(|(name, _)| name != REASON);
        if !reason.is_empty() {
            next.other.push((REASON.to_owned(), Value::from(reason)));
        }
        next
    }

    /// Why the run was closed, in the words of who closed it; empty where it did not say.
    #[must_use]
    pub fn reason(&self) -> &str {
        let reason = self.other.iter().find(|(name, _)| name == REASON);
        reason.and_then(|(_, value)| value.as_str()).unwrap_or_default()
    }

    fn to_change(&self) -> Record {
        Record { read_as: None, ..self.clone() }
    }

    /// Reads what a node wrote.
    pub fn parse(text: &str) -> Result<Record, RecordError> {
        let error = |problem: String| RecordError { text: text.chars().take(200).collect(), problem };
        let Members(members) = serde_json::from_str(text).map_err(|cause| error(cause.to_string()))?;
        let mut status = None;
        let mut record = Record::new(Status::Setup);
        for (name, value) in members {
            let wrong = || error(format!("its {name} is {value}"));
            match name.as_str() {
                "status" => {
                    let known = Status::ALL.into_iter().find(|status| value == status.as_str());
                    status = Some(known.ok_or_else(wrong)?);
                }
                // PyTorch writes it as a text.
                "version" => {
                    let text = value.as_str().and_then(|text| text.parse().ok());
                    record.version = Some(text.or(value.as_u64()).ok_or_else(wrong)?);
                }
                "participants" => record.participants = Some(parsed(&value).ok_or_else(wrong)?),
                "keep_alives" => record.keep_alives = Some(parsed(&value).ok_or_else(wrong)?),
                "num_workers_waiting" => record.waiting = Some(value.as_u64().ok_or_else(wrong)?),
                _ => record.other.push((name, value)),
            }
        }
        record.status = status.ok_or_else(|| error("it has no status".to_owned()))?;
        if matches!(record.status, Status::Joinable | Status::Frozen | Status::Final)
            && (record.version.is_none() || record.participants.is_none())
        {
            return Err(error("it has no version or no participants".to_owned()));
        }
        record.read_as = (record.to_text() != text).then(|| text.to_owned());
        Ok(record)
    }

    /// The text as it was read, or is to be written.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.read_as.clone().unwrap_or_else(|| to_python_json(self))
    }
}

/// JSON as Python's `json.dumps` writes it.
///
/// # Panics
///
/// If `value` cannot be written as JSON: a map whose keys are not texts.
#[must_use]
pub fn to_python_json(value: &impl Serialize) -> String {
    let mut text = Vec::new();
    let mut writer = serde_json::Serializer::with_formatter(&mut text, PythonStyle);
    value.serialize(&mut writer).expect("texts and numbers can be written as JSON");
    String::from_utf8(text).expect("the formatter writes ASCII")
}

fn parsed<T: for<'a> Deserialize<'a>>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("status", self.status.as_str())?;
        if let Some(version) = self.version {
            map.serialize_entry("version", &version.to_string())?;
        }
        if let Some(participants) = &self.participants {
            map.serialize_entry("participants", participants)?;
        }
        if let Some(keep_alives) = &self.keep_alives {
            map.serialize_entry("keep_alives", keep_alives)?;
        }
        if let Some(waiting) = self.waiting {
            map.serialize_entry("num_workers_waiting", &waiting)?;
        }
        for (name, value) in &self.other {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The members of a JSON object, in their order.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// JSON as Python writes it: a blank after commas and colons, and nothing beyond ASCII.
struct PythonStyle;

impl Formatter for PythonStyle {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        for one in fragment.chars() {
            if one.is_ascii() {
                writer.write_all(&[one as u8])?;
            } else {
                for unit in one.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn a_whole_life_is_written_as_pytorch_writes_it() {
        let mut record = Record::joinable(7);
        assert_eq!(Record::setup(None).to_text(), r#"{"status": "setup"}"#);
        assert_eq!(Record::setup(Some("n")).to_text(), r#"{"status": "setup", "node": "n"}"#);
        assert_eq!(record.to_text(), r#"{"status": "joinable", "version": "7", "participants": []}"#);
        for rank in 0..2 {
            let (next, given) = record.with_node(2);
            assert_eq!(given, rank);
            record = next;
        }
        assert_eq!(
            record.to_text(),
            r#"{"status": "frozen", "version": "7", "participants": [0, 1], "keep_alives": []}"#
        );
        record = record.with_confirmed("/ü/rank_1").with_confirmed("/ü/rank_0").with_waiting();
        assert_eq!(
            record.to_text(),
            r#"{"status": "final", "version": "7", "participants": [0, 1], "keep_alives": ["/\u00fc/rank_1", "/\u00fc/rank_0"], "num_workers_waiting": 1}"#
        );
        assert_eq!(Record::parse(&record.to_text()).unwrap(), record);
        assert!(record.to_closed("").to_text().starts_with(r#"{"status": "closed", "version": "7""#));
        assert_eq!(Record::closed("").to_text(), r#"{"status": "closed"}"#);
        // PyTorch keeps what it does not know.
        let closed = record.to_closed("enough");
        assert!(closed.to_text().ends_with(r#", "num_workers_waiting": 1, "reason": "enough"}"#));
        assert_eq!(Record::parse(&closed.to_text()).unwrap().reason(), "enough");
        assert_eq!((record.reason(), closed.to_closed("").reason()), ("", ""));
    }

    #[test]
    fn what_others_add_is_kept() {
        let text = r#"{"status": "joinable", "version": "1", "participants": [], "note": {"a": [1, 2]}}"#;
        assert_eq!(Record::parse(text).unwrap().to_text(), text);
    }

    /// Whoever writes over it names it by its text.
    #[test]
    fn what_is_written_in_another_way_is_known_by_it() {
        let text = r#"{"version":"1","note":1,"status":"joinable","participants":[]}"#;
        let record = Record::parse(text).unwrap();
        assert_eq!(record.to_text(), text);
        let (next, _) = record.with_node(2);
        assert_eq!(
            next.to_text(),
            r#"{"status": "joinable", "version": "1", "participants": [0], "note": 1}"#
        );
    }

    #[test]
    fn what_is_no_record_is_named() {
        for (text, problem) in [
            ("", "EOF"),
            ("[]", "an object"),
            ("{}", "no status"),
            (r#"{"status": "open"}"#, "its status is \"open\""),
            (r#"{"status": "final"}"#, "no version"),
            (r#"{"status": "joinable", "version": "x", "participants": []}"#, "its version is"),
            (r#"{"status": "joinable", "version": "1", "participants": 3}"#, "its participants is 3"),
        ] {
            let error = Record::parse(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
