//! What happened in a run, in order, for people: the events that its nodes wrote down, in words, and what they cost.
//!
//! - [`Event`]: one of them. `words`: what is said of it. [`Killed`]: whose launcher was killed, and
//!   [`Without`]: who had finished before it went, neither of which the group knows.
//! - [`Span`]: what the run did in a part of its time.
//! - [`Summary`]: the time that was lost, added up.

mod killed;
mod spans;
mod summary;
mod without;
mod words;

use std::time::Duration;

use serde::{Serialize, Serializer};

pub use self::killed::Killed;
pub use self::spans::{Span, SpanKind, spans};
pub use self::summary::Summary;
pub use self::without::Without;
use crate::round::{Entry, EventRecord, What};
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
    /// What stands under a key of the timeline, written at that revision. None if no node has written it.
    #[must_use]
    pub fn parse(value: &str, revision: i64) -> Option<Self> {
        Some(Event { revision, record: serde_json::from_str(value).ok()? })
    }

    /// All events of a run, in order.
    #[must_use]
    pub fn read_all<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<Self> {
        let read = |entry: &Entry| Event::parse(&entry.value, entry.mod_revision);
        let mut events: Vec<Event> = entries.into_iter().filter_map(read).collect();
        // Of what was written in one transaction, each came at that moment; those are few, and in the order of their keys.
        events.sort_by_key(|event| event.revision);
        causes_first(&mut events);
        let killed = Killed::told_by(&events);
        events.iter_mut().for_each(|event| killed.amend(event));
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

/// A node tells of its failure when its workers have ended, and rank 0 may have told before that its own were stopped for it.
/// So may the others have that one was killed.
fn causes_first(events: &mut [Event]) {
    for index in 1..events.len() {
        let mut at = index;
        while at > 0 && is_cause(&events[at], &events[at - 1]) {
            events.swap(at, at - 1);
            at -= 1;
        }
    }
}

fn is_cause(event: &Event, before: &Event) -> bool {
    let (event, before) = (&event.record, &before.record);
    let ends = matches!(before.what, What::Stopped { .. } | What::Lost { .. } | What::Closed { .. });
    matches!(event.what, What::Failed(_) | What::Killed { .. })
        && ends
        && event.round == before.round
        && event.at_ms <= before.at_ms
}

/// As a line of JSON: the record, with its place in the order, the time and the sentence.
impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Line<'a> {
            time: String,
            text: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            revision: Option<i64>,
            #[serde(flatten)]
            record: &'a EventRecord,
        }
        let revision = (self.revision > 0).then_some(self.revision);
        Line { time: self.time(), text: self.text(), revision, record: &self.record }.serialize(serializer)
    }
}
