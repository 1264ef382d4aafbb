//! One task for each thing that somebody looks at. All viewers share its views, and it ends when the last one goes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use rallypoint_etcd::v3::{Client, KeyRange, Watch};
use rallypoint_etcd::{Error, Result};
use rallypoint_rendezvous::native::{DEFAULT_ROOT, run_prefix};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::change::{Message, Reachable, View};
use crate::gone::Gone;
use crate::source;
use crate::view::{RunView, Runs};

/// What changes all the time is not read more often...
const PACE: Duration = Duration::from_millis(200);
/// ...and the list of all runs not more often than this.
const LIST_PACE: Duration = Duration::from_secs(1);
/// Nor is more of the time spent on reading than one part in so many: a read of 10,000 nodes costs etcd something.
const SHARE: u32 = 4;
/// A read that is not answered fails, and is tried again.
const PATIENCE: Duration = Duration::from_secs(4);
const AFTER_A_FAILURE: Duration = Duration::from_secs(1);
/// How often etcd is asked whether it is there.
const HEALTH_PACE: Duration = Duration::from_secs(2);
/// Runs that are looked at, at a time.
const MOST_RUNS: usize = 64;

/// What can be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Runs,
    Run(String),
    Etcd,
}

/// A view, and how it differs from the one before, made once for all viewers.
#[derive(Debug)]
pub(crate) struct Moment {
    number: u64,
    view: View,
    whole: OnceLock<Bytes>,
    step: Bytes,
}

impl Moment {
    /// What a viewer is sent that has seen `seen` last: a slow one misses what was in between.
    pub(crate) fn after(&self, seen: Option<&Moment>) -> Bytes {
        match seen {
            None => self.whole.get_or_init(|| frame(&self.view.whole())).clone(),
            Some(seen) if seen.number + 1 == self.number => self.step.clone(),
            Some(seen) => self.view.since(&seen.view).map(|change| frame(&change)).unwrap_or_default(),
        }
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }
}

/// As a stream of events has it. JSON has no line breaks.
pub(crate) fn frame((name, data): &Message) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// The views of one thing.
#[derive(Debug)]
pub(crate) struct Feed {
    moments: watch::Receiver<Option<Arc<Moment>>>,
    task: AbortHandle,
}

impl Feed {
    /// The first is there once etcd has answered.
    pub(crate) fn moments(&self) -> watch::Receiver<Option<Arc<Moment>>> {
        self.moments.clone()
    }

    /// Whether there is no such run, as far as is known. If the task ends, so do the streams of its viewers, and they come
    /// again.
    fn is_empty(&self) -> bool {
        let last = self.moments.borrow();
        matches!(last.as_deref().map(Moment::view), Some(View::Run(run)) if !run.head.there)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All feeds there are.
#[derive(Debug)]
pub(crate) struct Feeds {
    client: Client,
    feeds: Mutex<HashMap<Topic, Weak<Feed>>>,
}

impl Feeds {
    pub(crate) fn new(client: &Client) -> Self {
        Feeds { client: client.retrying_for(PATIENCE), feeds: Mutex::default() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The one of this topic, which begins now if nobody else looks at it. None if there are too many.
    pub(crate) fn of(&self, topic: &Topic) -> Option<Arc<Feed>> {
        let mut feeds = self.feeds();
        if let Some(feed) = feeds.get(topic).and_then(Weak::upgrade) {
            return Some(feed);
        }
        feeds.retain(|_, feed| feed.strong_count() > 0);
        if feeds.len() >= MOST_RUNS && matches!(topic, Topic::Run(_)) {
            // Runs that are not there make room: else whoever looks at some could keep all others from looking at theirs.
            let is_empty = |feed: &Weak<Feed>| feed.upgrade().is_some_and(|feed| feed.is_empty());
            let empty = feeds.iter().find(|(_, feed)| is_empty(feed)).map(|(topic, _)| topic.clone())?;
            if let Some(feed) = feeds.remove(&empty).and_then(|feed| feed.upgrade()) {
                feed.task.abort();
            }
        }
        let (sender, moments) = watch::channel(None);
        let out = Publisher { sender, number: 0 };
        let (client, topic) = (self.client.clone(), topic.clone());
        let of_task = topic.clone();
        let task = tokio::spawn(async move {
            match of_task {
                Topic::Etcd => ask_for_health(&client, out).await,
                topic => follow(&client, &topic, out).await,
            }
        });
        let feed = Arc::new(Feed { moments, task: task.abort_handle() });
        feeds.insert(topic, Arc::downgrade(&feed));
        Some(feed)
    }

    /// Nothing that holds the lock can leave the map half done.
    fn feeds(&self) -> MutexGuard<'_, HashMap<Topic, Weak<Feed>>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Publisher {
    sender: watch::Sender<Option<Arc<Moment>>>,
    number: u64,
}

impl Publisher {
    /// Unless it is what was seen last.
    fn publish(&mut self, view: View) {
        let before = self.sender.borrow().clone();
        let step = match &before {
            None => Bytes::new(),
            Some(before) => match view.since(&before.view) {
                None => return,
                Some(change) => frame(&change),
            },
        };
        self.number += 1;
        let moment = Moment { number: self.number, view, whole: OnceLock::new(), step };
        self.sender.send_replace(Some(Arc::new(moment)));
    }
}

/// Reads at once, and again after each change, at its pace.
async fn follow(client: &Client, topic: &Topic, mut out: Publisher) {
    let (range, pace) = match topic {
        Topic::Run(id) => (run_prefix(id), PACE),
        _ => (DEFAULT_ROOT.to_owned(), LIST_PACE),
    };
    let mut changes = client.watch_from_now(KeyRange::prefix(range));
    let mut gone = Gone::default();
    loop {
        let begin = Instant::now();
        let looked = look(client, topic, &mut gone).await;
        let end = Instant::now();
        match looked {
            Ok(view) => {
                out.publish(view);
                changed(&mut changes).await;
                let next = end + pace.max((end - begin) * SHARE);
                // What comes until then is one change; nobody else reads it, and it would pile up.
                while timeout_at(next, changed(&mut changes)).await.is_ok() {}
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read for the dashboard");
                sleep_until(end + AFTER_A_FAILURE).await;
            }
        }
    }
}

/// A watch heals by itself; what it cannot mend is told by whoever asks for health.
async fn changed(changes: &mut Watch) {
    if changes.next().await.is_err() {
        sleep(AFTER_A_FAILURE).await;
    }
}

async fn look(client: &Client, topic: &Topic, gone: &mut Gone) -> Result<View> {
    Ok(match topic {
        Topic::Run(id) => {
            let mut seen = source::run(client, id).await?;
            if let Some(seen) = &mut seen {
                gone.recall(client, seen).await?;
            }
            View::Run(Box::new(seen.map_or_else(|| RunView::nothing(id), RunView::of)))
        }
        _ => View::Runs(Runs::of(source::runs(client).await?)),
    })
}

/// Asks whether etcd is there, again and again: a watch on which nothing happens does not tell.
async fn ask_for_health(client: &Client, mut out: Publisher) {
    let probe = client.retrying_for(HEALTH_PACE);
    let endpoints = client.settings().endpoints.to_string();
    let mut answered = Instant::now();
    loop {
        let begin = Instant::now();
        let range = KeyRange::prefix(DEFAULT_ROOT);
        let asked = probe.get(DEFAULT_ROOT, Some(range.get_options().with_limit(1).with_keys_only()));
        let state = match asked.await {
            Ok(_) => {
                answered = Instant::now();
                Reachable { answers: true, text: format!("etcd at {endpoints}") }
            }
            Err(error) => Reachable { answers: false, text: away(&endpoints, &error, answered.elapsed()) },
        };
        out.publish(View::Etcd(state));
        sleep_until(begin + HEALTH_PACE).await;
    }
}

fn away(endpoints: &str, error: &Error, since: Duration) -> String {
    if error.is_transient() {
        return format!("etcd at {endpoints} has not answered for {} s", since.as_secs());
    }
    format!("etcd at {endpoints} does not let the dashboard in: {error}")
}

#[cfg(test)]
mod tests {
    use rallypoint_core::EtcdSettings;

    use super::*;
    use crate::source::{Node, Seen};

    /// Nobody answers there, which these tests need not know.
    fn feeds() -> Feeds {
        Feeds::new(&Client::connect_lazily(EtcdSettings::new("127.0.0.1:1").unwrap()).unwrap())
    }

    fn run(name: &str) -> Topic {
        Topic::Run(name.to_owned())
    }

    #[tokio::test]
    async fn all_who_look_at_a_run_share_one_task_and_it_ends_with_the_last() {
        let feeds = feeds();
        let (one, other) = (feeds.of(&run("a")).unwrap(), feeds.of(&run("a")).unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        assert!(!Arc::ptr_eq(&one, &feeds.of(&run("b")).unwrap()));
        let task = one.task.clone();
        drop(one);
        tokio::task::yield_now().await;
        assert!(!task.is_finished(), "somebody still looks");
        drop(other);
        while !task.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn only_so_many_runs_are_looked_at_and_there_is_always_room_for_the_list() {
        let feeds = feeds();
        let held: Vec<_> = (0..MOST_RUNS).map(|n| feeds.of(&run(&n.to_string())).unwrap()).collect();
        assert!(feeds.of(&run("one more")).is_none());
        assert!(feeds.of(&run("7")).is_some(), "who joins others is no burden");
        assert!(feeds.of(&Topic::Runs).is_some() && feeds.of(&Topic::Etcd).is_some());
        drop(held);
        assert!(feeds.of(&run("one more")).is_some());
    }

    #[tokio::test]
    async fn runs_that_are_not_there_make_room_for_others() {
        let feeds = feeds();
        let held: Vec<_> = (0..MOST_RUNS).map(|n| feeds.of(&run(&n.to_string())).unwrap()).collect();
        assert!(feeds.of(&run("one more")).is_none());
        // As if etcd had said that there is no run 7.
        let (sender, moments) = watch::channel(None);
        Publisher { sender, number: 0 }.publish(View::Run(Box::new(RunView::nothing("7"))));
        let task = tokio::spawn(std::future::pending::<()>());
        let nothing = Arc::new(Feed { moments, task: task.abort_handle() });
        feeds.feeds().insert(run("7"), Arc::downgrade(&nothing));
        assert!(feeds.of(&run("one more")).is_some());
        assert!(task.await.unwrap_err().is_cancelled(), "its viewers are told to come again");
        drop(held);
    }

    #[test]
    fn a_slow_viewer_gets_one_change_for_all_it_has_missed() {
        let (sender, moments) = watch::channel(None);
        let mut out = Publisher { sender, number: 0 };
        let nodes = |count: usize| -> Vec<Node> {
            let node = |n| Node { node: format!("n{n}"), ..Node::default() };
            (0..count).map(node).collect()
        };
        let publish = |out: &mut Publisher, count| {
            let seen = Seen { state: "running".to_owned(), nodes: nodes(count), ..Seen::default() };
            out.publish(View::Run(Box::new(RunView::of(seen))));
            moments.borrow().clone().unwrap()
        };
        let first = publish(&mut out, 1);
        let second = publish(&mut out, 2);
        assert_eq!(publish(&mut out, 2).number, second.number, "nothing has changed");
        let third = publish(&mut out, 3);
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text(third.after(None)).starts_with("event: run\n"));
        let quick = text(third.after(Some(&second)));
        assert!(
            quick.starts_with("event: change\n") && quick.contains("n2") && !quick.contains("\"n1\""),
            "{quick}"
        );
        let slow = text(third.after(Some(&first)));
        assert!(slow.contains("\"n1\"") && slow.contains("\"n2\"") && !slow.contains("\"n0\""), "{slow}");
    }
}
