//! What the changes of one revision mean in v2. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use rallypoint_etcd::v3::{Change, Entry, Event as KeyEvent};

use super::layout::{self, Act};
use super::seen::Found;
use crate::v2::{Action, Event, Path, Time, View, is_told};

/// An event that watchers are told of.
#[derive(Debug, Clone)]
pub(super) struct Notification {
    pub(super) event: Arc<Event>,
    /// Nodes that went with its own.
    pub(super) gone: Vec<Path>,
}

/// What happened at one revision.
#[derive(Debug, Default)]
pub(super) struct Happened {
    pub(super) told: Vec<Notification>,
    /// Directories whose time is up.
    pub(super) due: Vec<Path>,
    /// The request that took a directory away, and the leases that hung on what was in it.
    pub(super) loose: Option<(String, Vec<i64>)>,
}

/// Splits changes by their revisions, which come one after the other.
pub(super) fn by_revision(changes: &[Change]) -> impl Iterator<Item = (u64, &[Change])> {
    changes
        .chunk_by(|one, other| one.event.revision() == other.event.revision())
        .map(|changes| (changes[0].event.revision().unsigned_abs(), changes))
}

/// What the changes of one revision mean. A write of a gateway says what it is; what is gone without a word has ended.
pub(super) fn translate(revision: u64, changes: &[Change], now: Time) -> Happened {
    let act = changes.iter().find_map(|change| match &change.event {
        KeyEvent::Put(entry) if entry.key == layout::ACTION => Some(Act::read(&entry.value)),
        _ => None,
    });
    let Some(act) = act else { return ended(revision, changes, now) };
    let mut happened = Happened::default();
    let Some((act, action)) = act.and_then(|act| act.action.map(|action| (act, action))) else {
        return happened;
    };
    let key = layout::node(&act.path);
    let Some(change) = changes.iter().find(|change| key_of(change) == key) else { return happened };
    let prev = change.before.clone().and_then(|before| view(act.path.clone(), before, now));
    let node = match &change.event {
        KeyEvent::Put(entry) => view(act.path.clone(), entry.clone(), now),
        KeyEvent::Delete { .. } => Some(gone(act.path.clone(), prev.as_ref())),
    };
    let Some(node) = node.map(|node| View { modified: revision, ..node }) else { return happened };
    let below = changes.iter().filter(|change| matches!(change.event, KeyEvent::Delete { .. }));
    let below = below.filter_map(|change| layout::node_path(key_of(change)));
    let gone = below.filter(|path| *path != act.path).collect();
    let event = Event::new(action, node, prev).refreshing(act.refresh).into();
    happened.told.push(Notification { event, gone });
    happened.loose = Some((act.id, leases_below(changes, &key)));
    happened
}

/// The leases of all that is gone but the key itself, whose lease its writer knows.
fn leases_below(changes: &[Change], key: &[u8]) -> Vec<i64> {
    let gone = changes.iter().filter(|change| matches!(change.event, KeyEvent::Delete { .. }));
    let below = gone.filter(|change| key_of(change) != key).filter_map(|change| change.before.as_ref());
    let leases: BTreeSet<i64> = below.map(|before| before.lease).filter(|lease| *lease != 0).collect();
    leases.into_iter().collect()
}

/// Leases whose time was up.
fn ended(revision: u64, changes: &[Change], now: Time) -> Happened {
    let mut happened = Happened::default();
    for change in changes.iter().filter(|change| matches!(change.event, KeyEvent::Delete { .. })) {
        if let Some(path) = layout::node_path(key_of(change)) {
            let prev = change.before.clone().and_then(|before| view(path.clone(), before, now));
            let node = View { modified: revision, ..gone(path, prev.as_ref()) };
            let event = Event::new(Action::Expire, node, prev).into();
            happened.told.push(Notification { event, gone: Vec::new() });
        }
        happened.due.extend(layout::alive_path(key_of(change)));
    }
    happened
}

fn key_of(change: &Change) -> &[u8] {
    match &change.event {
        KeyEvent::Put(entry) => &entry.key,
        KeyEvent::Delete { key, .. } => key,
    }
}

fn view(path: Path, entry: Entry, now: Time) -> Option<View> {
    Found::read(path, entry.mod_revision, entry.value).ok().map(|found| found.view(now))
}

/// What is told of a node that is gone.
fn gone(path: Path, prev: Option<&View>) -> View {
    let (dir, created) = prev.map_or((false, 0), |prev| (prev.dir, prev.created));
    View { path, dir, created, ..View::default() }
}

impl Notification {
    /// Whether a watcher of `path` is told. Before `since`, the first index after it had asked, that is as for an event
    /// of the past.
    pub(super) fn concerns(&self, path: &Path, recursive: bool, since: u64) -> bool {
        if self.event.index() < since {
            return is_told(&self.event, path, recursive);
        }
        let at = &self.event.node.path;
        let below = recursive && at.is_below(path) && !at.is_hidden_from(path);
        !self.event.refresh && (at == path || below || self.gone.contains(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::layout::Record;

    fn path(raw: &str) -> Path {
        Path::clean(raw.as_bytes())
    }

    fn entry(key: Vec<u8>, value: Vec<u8>, revision: i64) -> Entry {
        let (create_revision, version, lease) = (1, 1, 0);
        Entry { key, value, create_revision, mod_revision: revision, version, lease }
    }

    fn file(at: &str, value: &'static str, revision: i64) -> Entry {
        let record = Record { value: Some(value.into()), ..Record::default() };
        entry(layout::node(&path(at)), record.write(), revision)
    }

    fn put(entry: Entry, before: Option<Entry>) -> Change {
        Change { event: KeyEvent::Put(entry), before }
    }

    fn delete(before: Entry, revision: i64) -> Change {
        let event = KeyEvent::Delete { key: before.key.clone(), revision };
        Change { event, before: Some(before) }
    }

    fn act(action: Option<Action>, at: &str) -> Change {
        let act = Act { action, refresh: false, id: "x".to_owned(), path: path(at) };
        put(entry(layout::ACTION.to_vec(), act.write(), 9), None)
    }

    fn told(changes: &[Change]) -> Vec<String> {
        let happened = translate(9, changes, Time::from_nanos(1));
        let text = |told: &Notification| {
            format!("{} {:?}", String::from_utf8_lossy(&told.event.to_json()).trim_end(), told.gone.len())
        };
        happened.told.iter().map(text).collect()
    }

    #[test]
    fn a_write_is_told_as_what_it_says_it_is() {
        let dir = entry(layout::node(&path("/d")), Record::default().write(), 9);
        let changes = [
            put(dir, None),
            put(file("/d/a", "2", 9), Some(file("/d/a", "1", 4))),
            act(Some(Action::Set), "/d/a"),
        ];
        let node = |value, index| {
            format!(
                "{{\"key\":\"/d/a\",\"value\":\"{value}\",\"modifiedIndex\":{index},\"createdIndex\":{index}}}"
            )
        };
        let wanted = format!("{{\"action\":\"set\",\"node\":{},\"prevNode\":{}}} 0", node(2, 9), node(1, 4));
        assert_eq!(told(&changes), [wanted]);
    }

    #[test]
    fn what_goes_with_its_directory_is_one_event() {
        let dir = entry(layout::node(&path("/d")), Record::default().write(), 3);
        let changes = [delete(dir, 9), delete(file("/d/a", "1", 4), 9), delete(file("/d/b", "1", 5), 9)];
        let node = "{\"key\":\"/d\",\"dir\":true,\"modifiedIndex\":9,\"createdIndex\":3}";
        let prev = "{\"key\":\"/d\",\"dir\":true,\"modifiedIndex\":3,\"createdIndex\":3}";
        let wanted = format!("{{\"action\":\"delete\",\"node\":{node},\"prevNode\":{prev}}} 2");
        assert_eq!(told(&[&changes[..], &[act(Some(Action::Delete), "/d")]].concat()), [wanted]);
    }

    #[test]
    fn what_is_gone_without_a_word_has_ended_and_the_rest_is_nobodys_business() {
        let happened = translate(9, &[delete(file("/a", "1", 4), 9)], Time::from_nanos(1));
        assert_eq!(happened.told[0].event.action, Action::Expire);
        let alive = entry(layout::alive(&path("/d")), Vec::new(), 3);
        let happened = translate(9, &[delete(alive, 9)], Time::from_nanos(1));
        assert_eq!((happened.told.len(), happened.due), (0, vec![path("/d")]));
        assert!(told(&[act(None, "/")]).is_empty());
        assert!(told(&[put(entry(b"keys//a".to_vec(), b"junk".to_vec(), 9), None)]).is_empty());
    }
}
