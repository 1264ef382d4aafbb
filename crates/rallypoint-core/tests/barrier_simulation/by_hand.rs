//! What the seeds found in one node alone, as stories that go step by step: each request is carried out, or not.

mod beside_torch;

use std::time::Duration;

use rallypoint_core::barrier::{
    Change, Failure, Node, NodeEvent, Output, Record, Reply, Request, Settings, Status, Update, View, WatchId,
};

use crate::server::Server;

struct Hand {
    name: &'static str,
    node: Node,
    now: Duration,
    asked: Vec<(u64, Request)>,
    told: Vec<NodeEvent>,
}

impl Hand {
    fn new(name: &'static str, min: usize, max: usize) -> Self {
        let (root, last_call) = ("/r".to_owned(), Duration::from_secs(3));
        let node = Node::new(Settings { node: name.to_owned(), min, max, last_call, root }, 1);
        Hand { name, node, now: Duration::ZERO, asked: Vec::new(), told: Vec::new() }
    }

    fn joining(name: &'static str, min: usize, max: usize) -> Self {
        let mut hand = Hand::new(name, min, max);
        hand.node.join(hand.now, Duration::MAX);
        hand
    }

    /// It is the only member of its version.
    fn met_alone(name: &'static str, server: &mut Server) -> Self {
        let mut hand = Hand::joining(name, 1, 1);
        hand.goes_on(server, 20);
        assert!(hand.has_met());
        hand
    }

    fn drain(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Request { id, request } => self.asked.push((id, *request)),
                Output::Event(event) => self.told.push(event),
                Output::Watch { .. } | Output::Unwatch(_) => {}
            }
        }
        // The run's folder is another matter, and so is whether etcd is there.
        self.asked.retain(|(_, request)| !matches!(request, Request::RenewRun | Request::Greet));
    }

    /// What the node asks for next, after its timers where it waits for them.
    fn next(&mut self) -> Option<(u64, Request)> {
        for _ in 0..10 {
            self.drain();
            if !self.asked.is_empty() {
                return Some(self.asked.remove(0));
            }
            // Its patience has no end.
            let at = self.node.poll_timeout().filter(|at| *at < Duration::MAX)?;
            self.now = self.now.max(at);
            self.node.handle_timeout(self.now);
        }
        None
    }

    /// Has its requests carried out up to the first that `last` holds for, which it gives back.
    fn until(&mut self, server: &mut Server, last: impl Fn(&Request) -> bool) -> (u64, Request) {
        for _ in 0..100 {
            let (id, request) = self.next().expect("a request");
            if last(&request) {
                return (id, request);
            }
            self.answer(server, id, &request);
        }
        panic!("{} has never asked for it; it was told {:?}", self.name, self.told);
    }

    fn answer(&mut self, server: &mut Server, id: u64, request: &Request) {
        let reply = server.serve(self.now, Some(self.name), request);
        self.node.handle_reply(self.now, id, reply);
        self.drain();
    }

    /// So many requests are carried out.
    fn goes_on(&mut self, server: &mut Server, requests: usize) {
        for _ in 0..requests {
            let Some((id, request)) = self.next() else { return };
            self.answer(server, id, &request);
        }
    }

    /// Its watch tells it how the record is.
    fn sees(&mut self, server: &mut Server) {
        let update = Update::Record(view(server));
        self.node.handle_update(self.now, WatchId::Record, update);
    }

    fn has_met(&self) -> bool {
        self.told.iter().any(|event| matches!(event, NodeEvent::Joined { .. }))
    }
}

fn server() -> Server {
    let mut server = Server::new(1_000, Duration::from_secs(7200));
    let made = server.serve(Duration::ZERO, None, &Request::MakeRun { counter: 0 });
    assert!(made.is_ok());
    server
}

fn view(server: &mut Server) -> View {
    match server.serve(Duration::ZERO, None, &Request::ReadRecord) {
        Ok(Reply::Record(view)) => view,
        other => panic!("a record: {other:?}"),
    }
}

fn writes(status: Status) -> impl Fn(&Request) -> bool {
    move |request| matches!(request, Request::SwapRecord { record, .. } if record.status == status)
}

/// The record of the other one had the same index, was created at the same index and read the same.
#[test]
fn a_rank_that_another_node_has_after_a_restore_is_not_ones_own() {
    let (mut server, mut one) = (server(), Hand::joining("one", 1, 1));
    let (id, join) = one.until(&mut server, writes(Status::Frozen));
    server.take_snapshot();
    one.answer(&mut server, id, &join);
    let (lost, _) = one.until(&mut server, writes(Status::Final));
    server.lose(true);
    Hand::met_alone("other", &mut server);
    one.node.handle_reply(one.now, lost, Err(Failure::Unknown));
    one.goes_on(&mut server, 20);
    assert!(!one.has_met(), "{:?}", one.told);
}

/// It waited out the last call of a version, which was closed with the index that its own write had had.
#[test]
fn a_late_write_does_not_open_what_was_closed_after_a_restore() {
    let (mut server, mut one) = (server(), Hand::joining("one", 1, 2));
    let (id, join) = one.until(&mut server, writes(Status::Joinable));
    one.answer(&mut server, id, &join);
    let (id, join) = one.until(&mut server, writes(Status::Joinable));
    server.take_snapshot();
    one.answer(&mut server, id, &join);
    server.lose(true);
    let mut other = Hand::new("other", 1, 2);
    other.node.close(other.now, "enough");
    other.goes_on(&mut server, 10);
    assert_eq!(server.record().map(|record| record.status), Some(Status::Closed));
    one.until(&mut server, |request| *request == Request::ReadRecord);
    assert_eq!(server.record().map(|record| record.status), Some(Status::Closed));
}

/// A node of PyTorch's waited out the last call of a version that etcd lost, and fixed the next of that number.
#[test]
fn a_version_that_was_fixed_with_too_few_nodes_is_not_confirmed() {
    let (mut server, mut one) = (server(), Hand::joining("one", 2, 2));
    for _ in 0..2 {
        let (id, request) = one.until(&mut server, writes(Status::Joinable));
        one.answer(&mut server, id, &request);
    }
    assert_eq!(one.next(), None, "it waits for the second node");
    let over = view(&mut server).record.expect("a record");
    let record: Record = over.0.to_frozen();
    let done = server.serve(one.now, None, &Request::SwapRecord { record, over, ttl: None });
    assert!(matches!(done, Ok(Reply::Done { .. })), "{done:?}");
    one.sees(&mut server);
    while let Some((id, request)) = one.next() {
        assert!(!matches!(request, Request::WriteKeepAlive(_)), "it confirms");
        one.answer(&mut server, id, &request);
    }
}

/// The record was missing for long when it was read, so it seemed; but that was before the answer took its time, and it
/// had been put back meanwhile.
#[test]
fn a_record_that_was_put_back_in_time_is_not_missing() {
    let mut server = server();
    let mut one = Hand::met_alone("one", &mut server);
    server.lose(false);
    let made = server.serve(one.now, None, &Request::MakeRun { counter: 1 });
    assert!(made.is_ok());
    let (id, request) = one.until(&mut server, |request| *request == Request::FindRun);
    let reply = server.serve(one.now, Some("one"), &request);
    one.now += Duration::from_secs(6);
    one.node.handle_reply(one.now, id, reply);
    one.until(&mut server, |request| *request == Request::ReadRecord);
    assert!(!one.told.iter().any(|event| matches!(event, NodeEvent::Changed(_))), "{:?}", one.told);
}

/// A node that slept through the end of the folder took the next version of that number for its own, and was rank 1 of
/// one node.
#[test]
fn a_version_of_the_same_number_and_other_nodes_is_another() {
    let mut server = server();
    let mut one = Hand::met_alone("one", &mut server);
    let mut other = Record::joinable(1);
    for _ in 0..2 {
        other = other.with_node(2).0;
    }
    let other = other.with_confirmed("/r/rdzv/v_1/rank_1").with_confirmed("/r/rdzv/v_1/rank_0");
    let over = view(&mut server).record.expect("a record");
    let done = server.serve(one.now, None, &Request::SwapRecord { record: other, over, ttl: None });
    assert!(matches!(done, Ok(Reply::Done { .. })), "{done:?}");
    one.sees(&mut server);
    one.goes_on(&mut server, 4);
    assert!(one.told.contains(&NodeEvent::Changed(Change::Excluded)), "{:?}", one.told);
}

/// It slept through a restore. Another node got its rank, met and went on to the next version, so that the keep-alive was
/// free; what its watch had seen meanwhile showed it the version that was over.
#[test]
fn a_rank_that_another_node_has_confirmed_is_not_ones_own() {
    let (mut server, mut one) = (server(), Hand::joining("one", 2, 2));
    let (id, publish) = one.until(&mut server, writes(Status::Joinable));
    one.answer(&mut server, id, &publish);
    let (id, join) = one.until(&mut server, writes(Status::Joinable));
    server.take_snapshot();
    one.answer(&mut server, id, &join);
    assert_eq!(one.next(), None, "it waits for the second node");
    server.lose(true);

    let (mut other, mut mate) = (Hand::joining("other", 2, 2), Hand::joining("mate", 2, 2));
    let (id, join) = other.until(&mut server, writes(Status::Joinable));
    other.answer(&mut server, id, &join);
    let (id, join) = mate.until(&mut server, writes(Status::Frozen));
    mate.answer(&mut server, id, &join);
    other.sees(&mut server);
    let (id, confirm) = other.until(&mut server, writes(Status::Frozen));
    other.answer(&mut server, id, &confirm);
    let confirmed = view(&mut server);
    mate.goes_on(&mut server, 20);
    let complete = view(&mut server);
    other.sees(&mut server);
    other.goes_on(&mut server, 2);
    assert!(other.has_met() && mate.has_met());
    other.node.join(other.now, Duration::MAX);
    let (id, gone) = other.until(&mut server, |request| matches!(request, Request::DeleteKeepAlive(_)));
    other.answer(&mut server, id, &gone);

    for late in [confirmed, complete] {
        one.node.handle_update(one.now, WatchId::Record, Update::Record(late));
        one.goes_on(&mut server, 1);
    }
    assert!(!one.has_met(), "{:?}", one.told);
}

/// Its keep-alive was in doubt while the version was not final yet. When the doubt was over it had met, and took the
/// record that it had read before for the one of its group.
#[test]
fn what_was_read_before_a_group_had_met_is_not_its_record() {
    let (mut server, mut one) = (server(), Hand::joining("one", 1, 1));
    let (id, _) = one.until(&mut server, writes(Status::Final));
    one.now += Duration::from_secs(4);
    one.node.handle_reply(one.now, id, Err(Failure::Unknown));
    one.node.handle_timeout(one.now);
    let renews = |request: &Request| matches!(request, Request::RenewKeepAlive(_));
    let (on_its_way, look) = one.until(&mut server, |request| *request == Request::ReadRecord);
    let (id, _) = one.until(&mut server, renews);
    one.node.handle_reply(one.now, id, Ok(Reply::Done { index: 1 }));
    let (late, renew) = one.until(&mut server, renews);
    one.answer(&mut server, on_its_way, &look);
    one.goes_on(&mut server, 2);
    assert!(one.has_met());
    one.answer(&mut server, late, &renew);
    one.sees(&mut server);
    one.goes_on(&mut server, 10);
    assert!(!one.told.iter().any(|event| matches!(event, NodeEvent::Changed(_))), "{:?}", one.told);
}

/// Nobody had told it whether the folder was there, for longer than putting it back may take. When it was told, another
/// member had just begun.
#[test]
fn a_record_is_missing_from_when_the_folder_was_seen_without_it() {
    let mut server = server();
    let mut one = Hand::met_alone("one", &mut server);
    server.lose(false);
    let (id, _) = one.until(&mut server, |request| *request == Request::FindRun);
    one.now += Duration::from_secs(6);
    one.node.handle_reply(one.now, id, Err(Failure::Unknown));
    let made = server.serve(one.now, None, &Request::MakeRun { counter: 1 });
    assert!(made.is_ok());
    let (id, request) = one.until(&mut server, |request| *request == Request::FindRun);
    one.answer(&mut server, id, &request);
    one.until(&mut server, |request| *request == Request::ReadRecord);
    assert!(!one.told.iter().any(|event| matches!(event, NodeEvent::Changed(_))), "{:?}", one.told);
}

/// Its keep-alive ended before the version was final. Then a late write of it came, so that it was there when it was asked
/// for; but nobody kept it any more.
#[test]
fn a_place_whose_keep_alive_was_lost_is_gone() {
    let (mut server, mut one) = (server(), Hand::joining("one", 1, 1));
    let (id, late) = one.until(&mut server, |request| matches!(request, Request::WriteKeepAlive(_)));
    one.node.handle_reply(one.now, id, Err(Failure::Unknown));
    let (id, confirm) = one.until(&mut server, writes(Status::Final));
    one.answer(&mut server, id, &confirm);
    let renews = |request: &Request| matches!(request, Request::RenewKeepAlive(_));
    let (unknown, _) = one.until(&mut server, renews);
    let (id, renew) = one.until(&mut server, renews);
    one.now += Duration::from_secs(20);
    server.advance(one.now);
    one.answer(&mut server, id, &renew);
    one.goes_on(&mut server, 2);
    let _ = server.serve(one.now, Some("one"), &late);
    one.node.handle_reply(one.now, unknown, Err(Failure::Unknown));
    one.goes_on(&mut server, 2);
    assert!(!one.has_met(), "{:?}", one.told);
}

/// It slept through a loss of data, and left a version in which another node had its rank: that one was told that
/// somebody waits.
#[test]
fn who_leaves_tells_nobody_in_a_version_of_other_nodes() {
    let mut server = server();
    let mut one = Hand::met_alone("one", &mut server);
    server.lose(false);
    Hand::met_alone("other", &mut server);
    one.node.leave(one.now);
    one.goes_on(&mut server, 10);
    assert!(one.told.contains(&NodeEvent::Left));
    assert_eq!(server.record().and_then(|record| record.waiting), Some(0));
}

/// The watch of the record was from an index that the server came to again only after the run was closed.
#[test]
fn a_group_looks_by_itself_whether_it_is_closed() {
    let mut server = server();
    let mut one = Hand::met_alone("one", &mut server);
    let over = view(&mut server).record.expect("a record");
    let record = over.0.to_closed("enough");
    let done = server.serve(one.now, None, &Request::SwapRecord { record, over, ttl: None });
    assert!(matches!(done, Ok(Reply::Done { .. })), "{done:?}");
    one.goes_on(&mut server, 20);
    assert!(
        one.told.contains(&NodeEvent::Changed(Change::Closed { reason: "enough".into() })),
        "{:?}",
        one.told
    );
}

/// It slept through a loss of data, and came back to a version of the same number: it took itself for a member of it, and
/// ended it.
#[test]
fn who_comes_back_to_a_version_of_other_nodes_is_a_newcomer() {
    let mut server = server();
    let mut one = Hand::met_alone("one", &mut server);
    server.lose(false);
    Hand::met_alone("other", &mut server);
    one.node.join(one.now, Duration::MAX);
    one.goes_on(&mut server, 5);
    assert_eq!(server.record().map(|record| (record.status, record.waiting)), Some((Status::Final, Some(0))));
}

/// It saw that another node had its rank, and forgot it when the folder ended: it took itself for a member of the version
/// that those had put back, and ended it before the other one was there again.
#[test]
fn who_has_become_a_newcomer_stays_one_when_the_version_is_put_back() {
    let mut server = server();
    let mut one = Hand::met_alone("one", &mut server);
    server.lose(false);
    let mut other = Hand::met_alone("other", &mut server);
    one.node.join(one.now, Duration::MAX);
    one.goes_on(&mut server, 5);
    (one.now, other.now) = (Duration::from_secs(8000), Duration::from_secs(8000));
    server.advance(one.now);
    other.node.handle_timeout(other.now);
    other.until(&mut server, |request| matches!(request, Request::WriteKeepAlive(_)));
    one.node.handle_update(one.now, WatchId::Record, Update::FolderGone);
    let lists = |request: &Request| matches!(request, Request::ListMembers { .. });
    let (id, list) = one.until(&mut server, lists);
    one.answer(&mut server, id, &list);
    assert_eq!(one.asked, [], "the version is its members'");
}

/// The record was missing for long, and it asked whether the folder was there. The answer took its time, and the record
/// had been put back meanwhile.
#[test]
fn a_record_is_looked_for_once_more_before_it_is_given_up() {
    let mut server = server();
    let mut one = Hand::met_alone("one", &mut server);
    let (record, _) = view(&mut server).record.expect("a record");
    server.lose(false);
    let made = server.serve(one.now, None, &Request::MakeRun { counter: 1 });
    assert!(made.is_ok());
    let finds = |request: &Request| *request == Request::FindRun;
    let (id, first) = one.until(&mut server, finds);
    one.answer(&mut server, id, &first);
    let missing_since = one.now;
    let (mut id, mut request) = one.until(&mut server, finds);
    while one.now < missing_since + Duration::from_secs(5) {
        one.answer(&mut server, id, &request);
        (id, request) = one.until(&mut server, finds);
    }
    let done = server.serve(one.now, None, &Request::CreateRecord { record, ttl: None });
    assert!(matches!(done, Ok(Reply::Done { .. })), "{done:?}");
    one.answer(&mut server, id, &request);
    one.goes_on(&mut server, 3);
    assert!(!one.told.iter().any(|event| matches!(event, NodeEvent::Changed(_))), "{:?}", one.told);
}

/// It saw the record missing, then nothing for long, while it was put back, and lost again.
#[test]
fn a_record_is_not_missing_for_the_time_in_which_nobody_looked() {
    let mut server = server();
    let mut one = Hand::met_alone("one", &mut server);
    server.lose(false);
    let made = server.serve(one.now, None, &Request::MakeRun { counter: 1 });
    assert!(made.is_ok());
    let (id, request) = one.until(&mut server, |request| *request == Request::FindRun);
    one.answer(&mut server, id, &request);
    for _ in 0..3 {
        let (id, _) = one.until(&mut server, |request| *request == Request::ReadRecord);
        one.now += Duration::from_secs(3);
        one.node.handle_reply(one.now, id, Err(Failure::Unknown));
    }
    let (id, request) = one.until(&mut server, |request| *request == Request::FindRun);
    one.answer(&mut server, id, &request);
    one.goes_on(&mut server, 2);
    assert!(!one.told.iter().any(|event| matches!(event, NodeEvent::Changed(_))), "{:?}", one.told);
}
