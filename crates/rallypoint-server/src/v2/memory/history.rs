//! The events that a watcher may still ask for.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::v2::wire::{Action, Event, Path};

/// How many events are kept.
const WINDOW: usize = 1000;

/// The last events, refreshes included.
#[derive(Debug)]
pub(crate) struct History {
    events: VecDeque<Arc<Event>>,
    weight: usize,
    /// The first index that may be asked for.
    first: u64,
    /// Large values must not fill the memory a thousand times over.
    max_weight: usize,
}

impl History {
    pub(crate) fn new(max_weight: usize) -> Self {
        History { events: VecDeque::new(), weight: 0, first: 0, max_weight }
    }

    /// Nothing is known of what happened up to an index.
    pub(crate) fn after(max_weight: usize, index: u64) -> Self {
        History { first: index + 1, ..History::new(max_weight) }
    }

    /// What happened after an index was taken back.
    pub(crate) fn take_back_to(&mut self, index: u64) {
        while self.events.back().is_some_and(|event| event.index() > index) {
            self.weight -= self.events.pop_back().map_or(0, |event| event.weight());
        }
        if self.events.is_empty() {
            self.first = index + 1;
        }
    }

    pub(crate) fn add(&mut self, event: Arc<Event>) {
        if self.first == 0 {
            self.first = event.index();
        }
        self.weight += event.weight();
        self.events.push_back(event);
        while self.events.len() > WINDOW || (self.weight > self.max_weight && self.events.len() > 1) {
            if let Some(oldest) = self.events.pop_front() {
                self.weight -= oldest.weight();
                self.first = oldest.index() + 1;
            }
        }
    }

    /// The events since an index that a watcher of `path` is told of, oldest first. An index that is no
    /// longer kept is an error: the oldest that is.
    pub(crate) fn since(
        &self,
        index: u64,
        path: &Path,
        recursive: bool,
    ) -> Result<impl Iterator<Item = &Arc<Event>>, u64> {
        if index < self.first {
            return Err(self.first);
        }
        // An index of the future has no event yet, and a cluster's indices have gaps.
        let offset = self.events.partition_point(|event| event.index() < index);
        Ok(self.events.range(offset..).filter(move |event| is_told(event, path, recursive)))
    }
}

/// Whether a watcher of `path` is told of an event of the past. Looser than for one of the present, as in
/// etcd: hidden nodes are seen, and the end of a directory reaches every path that begins with its path.
pub(crate) fn is_told(event: &Event, path: &Path, recursive: bool) -> bool {
    let at = &event.node.path;
    let ended_directory = matches!(event.action, Action::Delete | Action::Expire) && event.node.dir;
    !event.refresh
        && (at == path
            || (recursive && at.is_below(path))
            || (ended_directory && path.as_bytes().starts_with(at.as_bytes())))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::v2::wire::View;

    fn event(index: u64, path: &str, value: usize) -> Event {
        let value = Some(Bytes::from(vec![b'x'; value]));
        let node = View { path: Path::clean(path.as_bytes()), value, modified: index, ..View::default() };
        Event::new(Action::Set, node, None)
    }

    fn indices(history: &History, since: u64, path: &str, recursive: bool) -> Result<Vec<u64>, u64> {
        let path = Path::clean(path.as_bytes());
        history.since(since, &path, recursive).map(|events| events.map(|event| event.index()).collect())
    }

    #[test]
    fn the_window_is_a_thousand_events() {
        let mut history = History::new(usize::MAX);
        assert_eq!(indices(&history, 1, "/a", false), Ok(vec![]));
        for index in 4..1004 {
            history.add(event(index, if index % 2 == 0 { "/a" } else { "/b/c" }, 0).into());
        }
        assert_eq!(indices(&history, 4, "/a", false).unwrap().len(), 500);
        assert_eq!(indices(&history, 1001, "/b", true), Ok(vec![1001, 1003]));
        assert_eq!(indices(&history, 1001, "/b", false), Ok(vec![]));
        assert_eq!(indices(&history, 3, "/a", false), Err(4));
        history.add(event(1004, "/a", 0).into());
        assert_eq!(indices(&history, 4, "/a", false), Err(5));
        assert_eq!(indices(&history, 1005, "/", true), Ok(vec![]));
        assert_eq!(indices(&history, u64::MAX, "/", true), Ok(vec![]));
    }

    #[test]
    fn a_refresh_keeps_its_place_and_is_told_to_nobody() {
        let mut history = History::new(usize::MAX);
        history.add(event(1, "/a", 0).into());
        history.add(event(2, "/a", 0).refreshing(true).into());
        history.add(event(3, "/a", 0).into());
        assert_eq!(indices(&history, 2, "/a", false), Ok(vec![3]));
    }

    #[test]
    fn large_values_shorten_the_window() {
        let mut history = History::new(10_000);
        for index in 1..=100 {
            history.add(event(index, "/a", 3000).into());
        }
        assert!(history.weight <= 10_000);
        let kept = indices(&history, 100, "/a", false).unwrap();
        assert_eq!(kept, [100]);
        assert!(indices(&history, 50, "/a", false).unwrap_err() > 90);
    }
}
