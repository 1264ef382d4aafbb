//! Who is the cause where a node dies beside a failure, on a real etcd.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::SystemTime;

use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
use rallypoint_testkit::{Etcd, Version};
use tokio::runtime::Runtime;

use super::*;
use crate::failure::Exit;

const NAMES: [&str; 3] = ["fails", "dies", "late"];

/// A node of three, on a runtime of its own, with which it dies.
struct Node {
    runtime: Runtime,
    handler: Arc<dyn RendezvousHandler>,
    board: Arc<RoundBoard>,
}

impl Node {
    fn kill(self) {
        self.runtime.shutdown_background();
    }
}

/// The nodes in the order of their names.
fn group(etcd: &Etcd) -> [Node; 3] {
    let meets = NAMES.map(|name| {
        let mut settings = NativeSettings::new(&etcd.endpoint(), "job", 3, 3).unwrap();
        settings.node_id = Some(name.into());
        settings.lease = Duration::from_secs(2);
        let runtime = Runtime::new().unwrap();
        let met = runtime.spawn(async move {
            let handler = Arc::new(NativeHandler::connect(settings).await.unwrap());
            let met = handler.next_rendezvous().await.unwrap();
            (handler, met)
        });
        (runtime, met)
    });
    meets.map(|(runtime, met)| {
        let (handler, met) = runtime.block_on(met).unwrap();
        let handler: Arc<dyn RendezvousHandler> = handler;
        let board = Arc::new(RoundBoard::new(Arc::clone(&handler), &met));
        Node { runtime, handler, board }
    })
}

fn failure(rank: usize) -> Failure {
    Failure::new((rank, 0), "host", 7, Exit::ExitCode(9), SystemTime::now(), None)
}

/// What the first one takes for the cause of its failure, where the second one dies, after it has answered or before, and the
/// third one answers when the death is known.
fn first_where_one_dies(answers: bool) -> (String, Failure) {
    let etcd = Etcd::start(Version::V35);
    let [fails, dies, late] = group(&etcd);
    let own = failure(fails.board.rank);
    let (board, told) = (Arc::clone(&fails.board), own.clone());
    let first = fails.runtime.spawn(async move { board.first(told).await });
    dies.runtime.block_on(dies.board.told());
    if answers {
        dies.runtime.block_on(dies.board.answer());
    }
    dies.kill();
    for node in [&fails, &late] {
        let change = node.runtime.block_on(node.handler.changed());
        assert!(matches!(change, GroupChange::Died { .. }), "{change:?}");
    }
    if answers {
        // Both ways in which a death is heard of, several times.
        let loss = async { tokio::time::timeout(LOOK_AGAIN * 3, fails.board.loss()).await };
        let loss = fails.runtime.block_on(loss);
        assert!(loss.is_err(), "the death of a node that has answered: {loss:?}");
        late.runtime.block_on(late.board.answer());
    }
    (fails.runtime.block_on(first).unwrap(), own)
}

#[test]
fn a_failure_that_a_node_has_answered_is_the_cause_though_that_node_dies() {
    let (first, own) = first_where_one_dies(true);
    assert_eq!(first, own.in_short());
}

#[test]
fn the_death_of_a_node_that_has_not_answered_is_the_cause() {
    let (first, _) = first_where_one_dies(false);
    assert!(first.contains("(dies) died"), "{first}");
}
