//! What happens on this node, for those who want to know later: in etcd with the run, and in a log of the node's own.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rallypoint_core::round::{EventRecord, Failed, What};
use rallypoint_core::time::millis;
use rallypoint_rendezvous::RendezvousHandler;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::events::Events;
use crate::failure::Failure;

/// At the end, for etcd to take what was said last.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// So many events wait for etcd.
const UNDER_WAY: usize = 32;
/// So much of a traceback is kept in etcd, from its end.
const LONGEST_TRACEBACK: usize = 4096;
/// And so much of a message.
const LONGEST_MESSAGE: usize = 1024;

/// Who is to keep an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// This node's own log.
    Log,
    /// That, and the run: one node of the round is enough.
    Run,
}

/// Where events of this node go.
#[derive(Debug)]
pub(crate) struct Timeline {
    by: String,
    logs: Vec<Arc<dyn Events>>,
    handler: Arc<dyn RendezvousHandler>,
    /// To etcd, one after the other, from the first event on.
    keeper: Mutex<Option<(mpsc::Sender<EventRecord>, JoinHandle<()>)>>,
}

impl Timeline {
    pub(crate) fn new(handler: Arc<dyn RendezvousHandler>, host: &str) -> Self {
        let by = handler.node_name().unwrap_or(host).to_owned();
        Timeline { by, logs: Vec::new(), handler, keeper: Mutex::default() }
    }

    pub(crate) fn also_to(&mut self, log: Arc<dyn Events>) {
        self.logs.push(log);
    }

    pub(crate) fn logs(&self) -> impl Iterator<Item = &Arc<dyn Events>> {
        self.logs.iter()
    }

    /// Writes down what happened now. Nobody waits for it.
    pub(crate) fn note(&self, keep: Keep, round: u64, what: What) {
        self.note_at(SystemTime::now(), keep, round, what);
    }

    pub(crate) fn note_at(&self, at: SystemTime, keep: Keep, round: u64, what: What) {
        let event = EventRecord::new(millis(at), &self.by, round, what);
        self.logs.iter().for_each(|log| log.event(&event));
        if keep == Keep::Run {
            let mut keeper = self.keeper.lock().expect("no code panics while it holds this lock");
            let (events, _) = keeper.get_or_insert_with(|| keep_with_the_run(Arc::clone(&self.handler)));
            // An etcd that takes nothing for so long is told of elsewhere.
            let _ = events.try_send(event);
        }
    }

    /// Nothing more comes. Waits a moment for what is on its way to etcd.
    pub(crate) async fn flush(&self) {
        let keeper = self.keeper.lock().expect("no code panics while it holds this lock").take();
        if let Some((events, keeping)) = keeper {
            drop(events);
            let _ = tokio::time::timeout(LAST_WORDS, keeping).await;
        }
    }
}

fn keep_with_the_run(handler: Arc<dyn RendezvousHandler>) -> (mpsc::Sender<EventRecord>, JoinHandle<()>) {
    let (sender, mut events) = mpsc::channel::<EventRecord>(UNDER_WAY);
    let keeping = tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            handler.record(&event).await;
        }
    });
    (sender, keeping)
}

/// Writes down with the run that a worker failed here, as the first in the group.
pub(crate) async fn record_failure(handler: &dyn RendezvousHandler, round: u64, failure: &Failure) {
    let by = handler.node_name().unwrap_or(&failure.host);
    let at = millis(failure.moment().unwrap_or_else(SystemTime::now));
    handler.record(&EventRecord::new(at, by, round, failed(failure))).await;
}

/// What the run keeps of a failure.
pub(crate) fn failed(failure: &Failure) -> What {
    let error = failure.error.as_ref();
    let message = error.map(|error| error.message.clone()).or_else(|| last_of_traceback(&failure.stderr));
    let message = message.unwrap_or_default();
    let traceback = error.and_then(|error| error.traceback.clone());
    let traceback = traceback.unwrap_or_else(|| failure.stderr.join("\n"));
    What::Failed(Box::new(Failed {
        rank: failure.rank,
        local_rank: failure.local_rank,
        host: failure.host.clone(),
        exit: failure.exit.to_string(),
        message: beginning(&message, LONGEST_MESSAGE).to_owned(),
        traceback: end(traceback.trim_end(), LONGEST_TRACEBACK).to_owned(),
    }))
}

/// The last line of a Python traceback, which says what it was.
fn last_of_traceback(stderr: &[String]) -> Option<String> {
    let begin = stderr.iter().rposition(|line| line.starts_with("Traceback (most recent call last)"))?;
    let is_error = |line: &&String| !line.trim().is_empty() && !line.starts_with([' ', '\t']);
    stderr[begin + 1..].iter().find(is_error).cloned()
}

fn beginning(text: &str, most: usize) -> &str {
    let whole = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..whole.unwrap_or(0)]
}

/// The last lines of it, whole where there is more than one.
fn end(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let whole = (text.len() - most..text.len()).find(|at| text.is_char_boundary(*at));
    let last = &text[whole.unwrap_or(text.len())..];
    last.split_once('\n').map_or(last, |(_, lines)| lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceback_says_in_its_last_line_what_it_was() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let stderr = "loading\nTraceback (most recent call last):\n  File \"t.py\", line 3\n    f()\nValueError: no data\nbye";
        assert_eq!(last_of_traceback(&lines(stderr)).as_deref(), Some("ValueError: no data"));
        assert_eq!(last_of_traceback(&lines("segmentation fault")), None);
    }

    #[test]
    fn of_a_long_text_the_last_lines_are_kept() {
        assert_eq!(end("one\ntwo\nthree", 100), "one\ntwo\nthree");
        assert_eq!(end("one\ntwo\nthree", 8), "three");
        assert_eq!(end("ääää", 3), "ä");
        assert_eq!(beginning("ääää", 3), "ä");
    }
}
