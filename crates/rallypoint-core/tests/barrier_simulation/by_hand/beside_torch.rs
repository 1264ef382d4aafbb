//! The same beside nodes of PyTorch's.

use std::time::Duration;

use rallypoint_core::barrier::{
    Failure, Loss, NodeEvent, Record, Reply, Request, Status, Update, VersionRank, WatchId,
};

use super::{Hand, server, view, writes};
use crate::server::Server;

/// A node with one of PyTorch's at rank 1; and its first look at the members, which is on its way.
fn met_with_torch(server: &mut Server) -> (Hand, u64, Request) {
    let mut one = Hand::joining("one", 2, 2);
    for _ in 0..2 {
        let (id, request) = one.until(server, writes(Status::Joinable));
        one.answer(server, id, &request);
    }
    let change = |server: &mut Server, to: &dyn Fn(&Record) -> Record| {
        let over = view(server).record.expect("a record");
        let swap = Request::SwapRecord { record: to(&over.0), over, ttl: None };
        assert!(matches!(server.serve(Duration::ZERO, None, &swap), Ok(Reply::Done { .. })));
    };
    change(server, &|record| record.with_node(2).0);
    one.sees(server);
    let (id, confirm) = one.until(server, writes(Status::Frozen));
    one.answer(server, id, &confirm);
    let torch = VersionRank { version: 1, rank: 1 };
    assert!(server.serve(one.now, None, &Request::WriteKeepAlive(torch)).is_ok());
    change(server, &|record| record.with_confirmed("/r/rdzv/v_1/rank_1"));
    one.sees(server);
    one.goes_on(server, 1);
    assert!(one.has_met());
    let (id, list) = one.until(server, lists);
    (one, id, list)
}

fn lists(request: &Request) -> bool {
    matches!(request, Request::ListMembers { .. })
}

/// Etcd had lost all, and nobody was taken for dead.
fn assert_torch_is_excused(one: &Hand) {
    assert!(one.told.contains(&NodeEvent::Recovered(Loss::Everything)), "{:?}", one.told);
    assert!(!one.told.iter().any(|event| matches!(event, NodeEvent::Changed(_))), "{:?}", one.told);
}

/// No list of the members had come before the folder ended but the one it had read for its own keep-alive, which had one
/// of PyTorch's nodes on it. That one was taken for dead.
#[test]
fn a_node_of_pytorchs_is_known_from_every_list() {
    let mut server = server();
    let (mut one, late, _) = met_with_torch(&mut server);
    one.node.handle_update(one.now, WatchId::Record, Update::Failed);
    let (id, list) = one.until(&mut server, lists);
    one.answer(&mut server, id, &list);
    one.goes_on(&mut server, 1);
    server.lose(false);
    one.node.handle_reply(one.now, late, Err(Failure::Unknown));
    one.goes_on(&mut server, 40);
    assert_torch_is_excused(&one);
}

/// The only list that came before the folder ended did not have this node's own keep-alive, which had run out.
#[test]
fn a_node_of_pytorchs_is_known_from_a_list_without_this_node() {
    let mut server = server();
    let (mut one, id, list) = met_with_torch(&mut server);
    let own = Request::DeleteKeepAlive(VersionRank { version: 1, rank: 0 });
    assert!(matches!(server.serve(one.now, Some("one"), &own), Ok(Reply::Done { .. })));
    one.answer(&mut server, id, &list);
    server.lose(false);
    one.goes_on(&mut server, 40);
    assert_torch_is_excused(&one);
}

/// The only list from before the folder ended came when the group had been put back.
#[test]
fn a_node_of_pytorchs_is_known_from_a_late_list() {
    let mut server = server();
    let (mut one, id, list) = met_with_torch(&mut server);
    let late = server.serve(one.now, Some("one"), &list);
    server.lose(false);
    one.node.handle_update(one.now, WatchId::Record, Update::FolderGone);
    while !one.told.contains(&NodeEvent::Recovered(Loss::Everything)) {
        one.goes_on(&mut server, 1);
    }
    one.node.handle_reply(one.now, id, late);
    one.goes_on(&mut server, 40);
    assert_torch_is_excused(&one);
}

/// One of PyTorch's nodes published its version a second time, late. That version had been ended, and this node was about
/// to set up the next: PyTorch's nodes compare texts, so there was a version of the same number again, and two of them
/// had one rank in it.
#[test]
fn what_a_node_sets_up_does_not_read_as_what_one_of_pytorchs_does() {
    let (mut server, mut one) = (server(), Hand::joining("one", 1, 1));
    let (id, setup) = one.until(&mut server, |request| matches!(request, Request::CreateRecord { .. }));
    one.answer(&mut server, id, &setup);
    assert_eq!(server.record().map(|record| record.status), Some(Status::Setup));
    assert_ne!(server.record().map(Record::to_text).as_deref(), Some(r#"{"status": "setup"}"#));
    one.goes_on(&mut server, 20);
    assert!(one.has_met(), "{:?}", one.told);
}
