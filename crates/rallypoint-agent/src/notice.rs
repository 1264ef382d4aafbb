//! How the nodes of a round tell each other of failures, through the round's store.
//!
//! One key holds the notice of what happened first. Whoever has a failure writes it there, unless an earlier one stands
//! there already. All nodes watch that key, and count themselves in another one when they have seen it: when all have,
//! nobody is dead, and the notice is the first of all. While etcd is away, nodes ask each other for it (`fence`).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rallypoint_core::time::millis;
use rallypoint_store::{Store, StoreError};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::failure::{ErrorRecord, Exit, Failure};
use crate::patience;
use crate::stop::Stuck;

/// For a store to answer that may have gone with its round.
const TO_READ: Duration = Duration::from_secs(2);
const NOTICE: &[u8] = b"rallypoint/notice";
const ANSWERS: &[u8] = b"rallypoint/notice/answers";
/// That this node is among them; its place follows. Earlier versions do not write it.
const ANSWERED: &str = "rallypoint/notice/answered/";
const ALL_ANSWERED: &[u8] = b"rallypoint/notice/all_answered";
/// Between tries where the store fails.
const AGAIN: Duration = Duration::from_secs(1);
/// Of a traceback and of the last lines, what others need to see.
const MAX_TEXT: usize = 8 << 10;

/// What a node tells the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Record", into = "Record")]
pub(crate) struct Notice {
    /// The node's place in the round.
    pub(crate) node: usize,
    /// When it happened, by the clock of that node.
    pub(crate) at: SystemTime,
    pub(crate) what: What,
    /// The node's restarts, where one of its workers failed, and they are known.
    pub(crate) restarts: Option<Restarts>,
}

/// The restarts of a node at the moment of a failure, which is not counted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Restarts {
    pub(crate) left: u32,
    pub(crate) max: u32,
    /// Without restarts the node leaves, if it can be spared, rather than close the run.
    pub(crate) leaves: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What {
    /// A worker failed.
    Failed(Box<Failure>),
    /// The node ends.
    Leaves { host: String, why: Leaving },
    /// The node stops its workers because the group changed, for this reason.
    Regroups { host: String, why: String },
}

/// Why a node leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It was told to end.
    Asked,
    /// It is taken away, and its workers had time to save.
    Preempted,
    /// Its command was killed, and it ends before it is killed, too.
    Killed,
    /// A worker of it is stuck in the kernel.
    Stuck(Stuck),
}

/// The same, as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    node: usize,
    at_ms: u64,
    host: String,
    /// None: the node leaves, or meets again.
    worker: Option<WorkerRecord>,
    #[serde(default)]
    restarts: Option<Restarts>,
    /// The node leaves because it was killed.
    #[serde(default)]
    killed: bool,
    /// The node leaves because it is taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    preempted: bool,
    /// The node leaves because of this worker. Earlier versions know only that it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stuck: Option<Stuck>,
    /// Why the node meets again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    regroups: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WorkerRecord {
    rank: usize,
    local_rank: usize,
    pid: u32,
    #[serde(flatten)]
    exit: Exit,
    error: Option<String>,
    traceback: Option<String>,
    #[serde(default)]
    stderr: Vec<String>,
    #[serde(default)]
    hint: Option<String>,
    /// It hung for so many seconds. Earlier versions know only the signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hung: Option<u64>,
}

impl Notice {
    pub(crate) fn failed(node: usize, failure: Failure, restarts: Option<Restarts>) -> Self {
        let at = failure.moment().unwrap_or_else(SystemTime::now);
        Notice { node, at, what: What::Failed(Box::new(failure)), restarts }
    }

    /// This node ends.
    pub(crate) fn leaves(node: usize, host: &str, why: Leaving) -> Self {
        let what = What::Leaves { host: host.to_owned(), why };
        Notice { node, at: SystemTime::now(), what, restarts: None }
    }

    /// This node stops its workers because the group changed, in these words.
    pub(crate) fn regroups(node: usize, host: &str, why: String) -> Self {
        let what = What::Regroups { host: host.to_owned(), why };
        Notice { node, at: SystemTime::now(), what, restarts: None }
    }

    pub(crate) fn is_leave(&self) -> bool {
        matches!(self.what, What::Leaves { .. })
    }

    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.what, What::Failed(_))
    }

    /// How the worker ended that failed, if one did.
    pub(crate) fn exit(&self) -> Option<Exit> {
        match &self.what {
            What::Failed(failure) => Some(failure.exit),
            What::Leaves { .. } | What::Regroups { .. } => None,
        }
    }

    /// How many restarts the node had, if none is left.
    pub(crate) fn used_up(&self) -> Option<u32> {
        self.restarts.filter(|restarts| restarts.left == 0).map(|restarts| restarts.max)
    }

    /// Whether the run is over with that, once it is known to have come first: the node has no restart left, and is not to leave.
    pub(crate) fn ends_the_run(&self) -> bool {
        self.restarts.is_some_and(|restarts| restarts.left == 0 && !restarts.leaves)
    }

    /// The failure that it tells of.
    pub(crate) fn failure(self) -> Option<Failure> {
        if let What::Failed(failure) = self.what { Some(*failure) } else { None }
    }

    /// Which of two came first; all nodes that know both say the same.
    pub(crate) fn earlier(self, other: Notice) -> Notice {
        let order = |notice: &Notice| (notice.at_ms(), notice.node);
        if order(&other) < order(&self) { other } else { self }
    }

    fn at_ms(&self) -> u64 {
        millis(self.at)
    }

    fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// In a few words.
    pub(crate) fn in_short(&self) -> String {
        match &self.what {
            What::Failed(failure) => failure.in_short(),
            What::Leaves { host, why: Leaving::Asked } => format!("node {} ({host}) leaves", self.node),
            What::Leaves { host, why: Leaving::Preempted } => {
                format!("node {} ({host}) leaves: it is preempted", self.node)
            }
            What::Leaves { host, why: Leaving::Killed } => format!("node {} ({host}) was killed", self.node),
            What::Leaves { host, why: Leaving::Stuck(stuck) } => {
                format!("node {} ({host}) leaves: {stuck}", self.node)
            }
            What::Regroups { host, why } => format!("node {} ({host}) says: {why}", self.node),
        }
    }
}

impl From<Notice> for Record {
    fn from(notice: Notice) -> Self {
        let at_ms = notice.at_ms();
        let (node, restarts) = (notice.node, notice.restarts);
        let of = |host| Record {
            node,
            at_ms,
            host,
            worker: None,
            restarts,
            killed: false,
            preempted: false,
            stuck: None,
            regroups: None,
        };
        match notice.what {
            What::Leaves { host, why } => match why {
                Leaving::Asked => of(host),
                Leaving::Preempted => Record { preempted: true, ..of(host) },
                Leaving::Killed => Record { killed: true, ..of(host) },
                Leaving::Stuck(stuck) => Record { stuck: Some(stuck), ..of(host) },
            },
            What::Regroups { host, why } => Record { regroups: Some(why), ..of(host) },
            What::Failed(failure) => {
                let worker = Some(WorkerRecord::of(&failure));
                Record { worker, ..of(failure.host) }
            }
        }
    }
}

impl From<Record> for Notice {
    fn from(record: Record) -> Self {
        let Record { node, at_ms, host, worker, restarts, killed, preempted, stuck, regroups } = record;
        let at = UNIX_EPOCH + Duration::from_millis(at_ms);
        let what = match (worker, regroups) {
            (Some(worker), _) => What::Failed(Box::new(worker.failure(host, at))),
            (None, Some(why)) => What::Regroups { host, why },
            (None, None) => {
                let why = match stuck {
                    _ if killed => Leaving::Killed,
                    _ if preempted => Leaving::Preempted,
                    Some(stuck) => Leaving::Stuck(stuck),
                    None => Leaving::Asked,
                };
                What::Leaves { host, why }
            }
        };
        Notice { node, at, what, restarts }
    }
}

impl WorkerRecord {
    fn of(failure: &Failure) -> Self {
        let cut = |text: &str| text.chars().take(MAX_TEXT).collect::<String>();
        let error = failure.error.as_ref();
        let (exit, hung) = match failure.exit {
            Exit::Hung(seconds) => (Exit::Signal(Signal::KILL.as_raw()), Some(seconds)),
            exit => (exit, None),
        };
        WorkerRecord {
            rank: failure.rank,
            local_rank: failure.local_rank,
            pid: failure.pid,
            exit,
            hung,
            error: error.map(|error| cut(&error.message)),
            traceback: error.and_then(|error| error.traceback.as_deref()).map(cut),
            stderr: failure.stderr.clone(),
            hint: failure.hint.clone(),
        }
    }

    fn failure(self, host: String, at: SystemTime) -> Failure {
        let traceback = self.traceback;
        let error = self.error.map(|message| ErrorRecord { file: None, message, traceback, time: Some(at) });
        Failure {
            rank: self.rank,
            local_rank: self.local_rank,
            host,
            pid: self.pid,
            exit: self.hung.map_or(self.exit, Exit::Hung),
            time: Some(at),
            error,
            stderr: self.stderr,
            log: None,
            hint: self.hint,
        }
    }
}

/// Where the nodes of one round tell each other.
#[derive(Debug, Clone)]
pub(crate) struct Board {
    store: Arc<dyn Store>,
    /// This node's place among so many.
    node: usize,
    nodes: usize,
}

impl Board {
    pub(crate) fn new(store: Arc<dyn Store>, (node, nodes): (usize, usize)) -> Self {
        Board { store, node, nodes }
    }

    /// Tells of this, unless something earlier was told; what stands there then. A failure that comes after somebody left
    /// or stopped its workers may follow from that.
    pub(crate) async fn tell(&self, notice: &Notice) -> Result<Notice, StoreError> {
        let (mut expected, ours) = (Vec::new(), notice.write());
        let mut is_waited_for = false;
        let stands = loop {
            let stands = self.store.compare_set(NOTICE, &expected, &ours).await?;
            if stands == ours {
                break notice.clone();
            }
            let theirs = Notice::read(&stands);
            is_waited_for |= theirs.as_ref().is_some_and(Notice::is_failure);
            match theirs {
                Some(theirs) if theirs.at <= notice.at => break theirs,
                _ => expected = stands,
            }
        };
        // Who has failed waits for the answers of all, and a node that goes gives no other.
        if is_waited_for && !notice.is_failure() {
            self.answer().await?;
        }
        Ok(stands)
    }

    /// Waits until a node tells of something.
    pub(crate) async fn told(&self) -> Notice {
        self.after(NOTICE).await
    }

    /// What was told first, if something was.
    pub(crate) async fn said(&self) -> Option<Notice> {
        self.said_if(&[]).await
    }

    /// The first failure, if this node has answered it.
    pub(crate) async fn answered_by(&self, node: usize) -> Option<Notice> {
        self.said_if(&[&answered(node)]).await.filter(Notice::is_failure)
    }

    /// Whether this is in the round's store.
    pub(crate) async fn has(&self, key: &[u8]) -> bool {
        let there = tokio::time::timeout(TO_READ, self.store.check(&[key])).await;
        there.is_ok_and(|there| there.unwrap_or(false))
    }

    /// What was told first, if these keys are there too.
    async fn said_if(&self, keys: &[&[u8]]) -> Option<Notice> {
        let read = async {
            let there = self.store.check(&[&[NOTICE], keys].concat()).await.ok()?;
            // To get what is not there is to wait for it.
            let text = if there { self.store.get(NOTICE).await.ok() } else { None };
            Notice::read(&text?)
        };
        tokio::time::timeout(TO_READ, read).await.ok()?
    }

    /// Says that this node is there and has said all it has to say.
    pub(crate) async fn answer(&self) -> Result<(), StoreError> {
        self.answer_for(self.node).await
    }

    /// The same of another node, which has told this one so.
    pub(crate) async fn answer_for(&self, node: usize) -> Result<(), StoreError> {
        // Whoever counts all answers knows whose they are. Several may pass on one, and one of them counts it.
        let by = self.node.to_string().into_bytes();
        if self.store.compare_set(&answered(node), &[], &by).await? != by {
            return Ok(());
        }
        let answers = self.store.add(ANSWERS, 1).await?;
        if usize::try_from(answers).is_ok_and(|answers| answers >= self.nodes) {
            self.store.set(ALL_ANSWERED, b"1").await?;
        }
        Ok(())
    }

    /// Answers, and waits until all have heard of the notice.
    pub(crate) async fn heard(&self) -> Result<(), StoreError> {
        self.answer().await?;
        patience::wait(&*self.store, ALL_ANSWERED).await
    }

    /// Waits until all have; what was told first.
    pub(crate) async fn all_answered(&self) -> Notice {
        self.after(ALL_ANSWERED).await
    }

    /// The notice, once there is this key. It waits out whatever the store has; other news end the wait.
    async fn after(&self, key: &[u8]) -> Notice {
        loop {
            match patience::wait(&*self.store, key).await {
                Ok(()) => match self.store.get(NOTICE).await.map(|text| Notice::read(&text)) {
                    Ok(Some(notice)) => return notice,
                    Ok(None) => debug!("a notice of another version is passed over"),
                    Err(error) => debug!(%error, "the notice cannot be read"),
                },
                Err(error) => debug!(%error, "notices cannot be waited for"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

fn answered(node: usize) -> Vec<u8> {
    format!("{ANSWERED}{node}").into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use rallypoint_store::MemoryStore;

    use super::*;

    fn board(nodes: usize) -> Board {
        Board::new(Arc::new(MemoryStore::new()), (1, nodes))
    }

    fn failed(node: usize, millis: u64) -> Notice {
        let time = UNIX_EPOCH + Duration::from_millis(millis);
        let error = ErrorRecord {
            file: None,
            message: "ValueError: no data".into(),
            traceback: Some("Traceback\n  line 1".into()),
            time: Some(time),
        };
        let failure = Failure {
            rank: node,
            local_rank: 0,
            host: format!("host{node}"),
            pid: 7,
            exit: Exit::Signal(9),
            time: Some(time),
            error: Some(error),
            stderr: vec!["last words".into()],
            log: None,
            hint: None,
        };
        Notice::failed(node, failure, Some(Restarts { left: 0, max: 3, leaves: false }))
    }

    #[tokio::test]
    async fn all_nodes_hear_of_the_earliest_failure_whoever_told_first() {
        let board = board(3);
        assert_eq!(board.tell(&failed(0, 500)).await.unwrap(), failed(0, 500));
        assert_eq!(board.told().await, failed(0, 500));
        assert_eq!(board.tell(&failed(1, 700)).await.unwrap(), failed(0, 500), "it followed");
        assert_eq!(board.tell(&failed(2, 300)).await.unwrap(), failed(2, 300), "it came first");
        for _ in 0..3 {
            board.answer().await.unwrap();
        }
        assert_eq!(board.all_answered().await, failed(2, 300));
    }

    #[test]
    fn a_hang_is_told_and_an_earlier_version_takes_it_for_a_signal() {
        let mut notice = failed(0, 500);
        if let What::Failed(failure) = &mut notice.what {
            failure.exit = Exit::Hung(62);
        }
        assert_eq!(Notice::read(&notice.write()), Some(notice.clone()));
        assert_eq!(notice.in_short(), "rank 0 on host0 hung: no progress for 62 s");
        let record: serde_json::Value = serde_json::from_slice(&notice.write()).unwrap();
        assert_eq!(record["worker"]["signal"], 9);
    }

    #[test]
    fn why_a_node_leaves_is_read_also_by_versions_that_know_less() {
        let stuck = Leaving::Stuck(Stuck { rank: 3, pid: 7, seconds: 60 });
        for why in [Leaving::Asked, Leaving::Preempted, Leaving::Killed, stuck] {
            let notice = Notice { at: UNIX_EPOCH, ..Notice::leaves(1, "host1", why) };
            assert_eq!(Notice::read(&notice.write()), Some(notice));
        }
        let written: serde_json::Value =
            serde_json::from_slice(&Notice::leaves(1, "host1", stuck).write()).unwrap();
        assert_eq!((&written["killed"], &written["worker"]), (&false.into(), &serde_json::Value::Null));
        let earlier = br#"{"node":1,"at_ms":0,"host":"host1","worker":null}"#;
        assert_eq!(
            Notice::read(earlier).map(|notice| notice.in_short()),
            Some("node 1 (host1) leaves".into())
        );
    }

    #[tokio::test]
    async fn a_node_that_does_not_answer_is_waited_for() {
        let board = board(2);
        board.tell(&failed(0, 1)).await.unwrap();
        board.answer().await.unwrap();
        let wait = tokio::time::timeout(Duration::from_millis(50), board.all_answered());
        assert!(wait.await.is_err());
        board.answer().await.unwrap();
        board.all_answered().await;
    }

    #[tokio::test]
    async fn an_answer_that_others_pass_on_counts_once() {
        let store = Arc::new(MemoryStore::new());
        let [first, second, third] = [0, 1, 2].map(|node| Board::new(Arc::clone(&store) as _, (node, 3)));
        first.tell(&failed(0, 1)).await.unwrap();
        first.answer().await.unwrap();
        first.answer_for(2).await.unwrap();
        // It is there again itself.
        third.answer().await.unwrap();
        assert_eq!(first.answered_by(2).await, Some(failed(0, 1)));
        let wait = tokio::time::timeout(Duration::from_millis(50), first.all_answered());
        assert!(wait.await.is_err(), "one has not answered");
        second.answer_for(2).await.unwrap();
        second.answer().await.unwrap();
        assert_eq!(first.all_answered().await, failed(0, 1));
    }

    #[tokio::test]
    async fn who_has_answered_a_failure_is_known() {
        let board = board(3);
        board.answer().await.unwrap();
        assert_eq!(board.answered_by(1).await, None, "there was nothing to answer");
        board.tell(&failed(0, 1)).await.unwrap();
        assert_eq!((board.answered_by(1).await, board.answered_by(2).await), (Some(failed(0, 1)), None));
    }

    #[tokio::test]
    async fn what_fails_after_somebody_left_or_met_again_may_follow_from_that() {
        for what in
            [Notice::leaves(1, "host1", Leaving::Asked), Notice::regroups(1, "host1", "1 more".into())]
        {
            let at = |millis| Notice { at: UNIX_EPOCH + Duration::from_millis(millis), ..what.clone() };
            for (first, second) in [(at(400), failed(0, 500)), (failed(0, 500), at(600))] {
                let board = board(2);
                assert_eq!(board.tell(&first).await.unwrap(), first);
                assert_eq!(board.tell(&second).await.unwrap(), first, "the earlier one stands");
            }
            // Whoever has failed, and waits, gets an answer, whichever came first.
            for millis in [400, 600] {
                let board = board(2);
                board.tell(&failed(0, 500)).await.unwrap();
                board.answer().await.unwrap();
                let stands = board.tell(&at(millis)).await.unwrap();
                assert_eq!(board.all_answered().await, stands);
                assert_eq!(stands.is_failure(), millis == 600);
            }
        }
    }
}
