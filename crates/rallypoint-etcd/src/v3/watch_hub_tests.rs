//! Answers that no server sends, or only at the wrong moment.

use etcd_client::proto::{PbResponseHeader, PbWatchResponse};
use rallypoint_core::EtcdSettings;
use tokio::sync::mpsc::{UnboundedReceiver, error::TryRecvError};

use super::*;

/// A task with one watch, of id 1 and from revision 5 on, and a stream that nobody serves.
struct Rig {
    task: Task,
    on: Arc<Connection>,
    requests: Requests,
    sent: UnboundedReceiver<Request>,
    told: Messages,
}

impl Rig {
    async fn new() -> Self {
        let settings = EtcdSettings::new("127.0.0.1:1").expect("an endpoint");
        let connections =
            Arc::new(Connections::new(settings, Default::default()).expect("settings that can work"));
        let on = connections.current().await.expect("it connects with the first request");
        let (messages, told) = mpsc::channel(BACKLOG);
        let range = KeyRange::key("k");
        let watcher =
            Watcher { range, next_revision: Some(5), created: false, highest: 0, before: false, messages };
        let (requests, sent) = mpsc::unbounded_channel();
        let task = Task {
            connections,
            commands: mpsc::unbounded_channel().1,
            pause: Pause(Arc::new(Mutex::new(Instant::now()))),
            watchers: HashMap::from([(1, watcher)]),
            ids: WatchIds::new(),
            heard: false,
            cluster: 0,
            answer_by: None,
        };
        Rig { task, on, requests, sent, told }
    }

    fn answer(&mut self, cluster_id: u64, revision: i64, created: bool) -> Result<()> {
        let header = Some(PbResponseHeader { cluster_id, revision, ..PbResponseHeader::default() });
        let answer = PbWatchResponse { header, watch_id: 1, created, ..PbWatchResponse::default() };
        self.task.handle(&WatchResponse(answer), &self.on, &self.requests)
    }

    /// Its owner is to read afresh, and the server is told that this is over.
    fn ended(&mut self) -> bool {
        self.told.try_recv().is_err_and(|error| error == TryRecvError::Disconnected)
            && matches!(self.sent.try_recv(), Ok(Request::Cancel(1)))
    }
}

#[tokio::test]
async fn a_revision_that_goes_back_on_an_open_stream_ends_the_trust() {
    let mut rig = Rig::new().await;
    rig.answer(7, 20, true).unwrap();
    // Written while the watch was made: told after it, at an earlier revision.
    rig.answer(7, 19, false).unwrap();
    rig.answer(7, 21, false).unwrap();
    assert!(!rig.ended());
    rig.answer(7, 20, false).unwrap();
    assert!(rig.ended());
}

#[tokio::test]
async fn another_cluster_on_an_open_stream_ends_the_stream() {
    let mut rig = Rig::new().await;
    rig.answer(7, 20, true).unwrap();
    rig.answer(7, 21, false).unwrap();
    assert!(rig.answer(8, 22, false).unwrap_err().is_transient());
}

#[tokio::test]
async fn a_server_that_is_behind_what_was_read_ends_the_trust() {
    let mut rig = Rig::new().await;
    rig.answer(7, 3, true).unwrap();
    assert!(rig.ended());
}

#[tokio::test]
async fn a_cut_ends_what_knows_a_revision_and_leaves_what_begins_with_the_next_stream() {
    let mut rig = Rig::new().await;
    let (messages, _told) = mpsc::channel(1);
    let range = KeyRange::key("k");
    let later = Watcher { range, next_revision: None, created: false, highest: 0, before: false, messages };
    rig.task.watchers.insert(2, later);
    rig.task.distrust();
    assert_eq!(rig.task.watchers.keys().collect::<Vec<_>>(), [&2]);
}
