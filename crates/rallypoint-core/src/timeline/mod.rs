//! What happened in a run, in order, for people: the events that its nodes wrote down, in words, and what they cost.
//!
//! - [`Event`]: one of them. `words`: what is said of it.
//! - [`Summary`]: the time that was lost, added up.

mod summary;
mod words;

use std::time::Duration;

use serde::{Serialize, Serializer};

pub use self::summary::{Span, SpanKind, Summary, spans};
use crate::round::{Entry, EventRecord};
use crate::time::rfc3339;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Where it is in etcd's order; 0 in a log of one node, which has its own.
    pub revision: i64,
    /// What was written down.
    pub record: EventRecord,
}

impl Event {
    /// What stands under a key of the timeline. None if no node has written it.
    #[must_use]
    pub fn read(entry: &Entry) -> Option<Self> {
        let record = serde_json::from_str(&entry.value).ok()?;
        Some(Event { revision: entry.mod_revision, record })
    }

    /// All events of a run, in order.
    #[must_use]
    pub fn read_all<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<Self> {
        let mut events: Vec<Event> = entries.into_iter().filter_map(Event::read).collect();
        // Of what was written in one transaction, each came at that moment; those are few, and in the order of their keys.
        events.sort_by_key(|event| event.revision);
        events
    }

    /// It in one sentence.
    #[must_use]
    pub fn text(&self) -> String {
        words::sentence(&self.record)
    }

    /// When, as people and machines both read it.
    #[must_use]
    pub fn time(&self) -> String {
        rfc3339(Duration::from_millis(self.record.at_ms))
    }
}

/// As a line of JSON: the record, with its place in the order, the time and the sentence.
impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Line<'a> {
            time: String,
            text: String,
            revision: i64,
            #[serde(flatten)]
            record: &'a EventRecord,
        }
        Line { time: self.time(), text: self.text(), revision: self.revision, record: &self.record }
            .serialize(serializer)
    }
}
