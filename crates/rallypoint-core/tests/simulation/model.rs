//! The model of etcd is what the simulation rests on: what etcd does, it does.

use std::time::Duration;

use rallypoint_core::round::{
    Condition, Event, Failure, Op, OpReply, Reply, Request, Txn, TxnReply, Update, Watched,
};

use crate::etcd::{Etcd, MIN_TTL};

fn put(key: &str, value: &str, lease: i64) -> Op {
    Op::Put { key: key.into(), value: value.into(), lease }
}

fn grant(etcd: &mut Etcd, seconds: u64) -> i64 {
    match etcd.apply(Duration::ZERO, &Request::Grant(Duration::from_secs(seconds))) {
        Ok(Reply::Granted(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

fn txn(etcd: &mut Etcd, when: Vec<Condition>, then: Vec<Op>) -> Result<TxnReply, Failure> {
    let txn = Txn { when, then, otherwise: vec![] };
    match etcd.apply(Duration::ZERO, &Request::Txn(txn))? {
        Reply::Txn(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_transaction_is_one_revision_and_its_inner_conditions_look_at_what_was_before() {
    let mut etcd = Etcd::new();
    let lease = grant(&mut etcd, 10);
    let inner = Txn {
        when: vec![Condition::Missing("a".into())],
        then: vec![put("b", "2", lease), Op::Get("a".into())],
        otherwise: vec![],
    };
    let reply = txn(&mut etcd, vec![], vec![put("a", "1", lease), Op::Txn(inner)]).unwrap();
    assert_eq!((reply.held, reply.revision), (true, 2));
    let OpReply::Txn(inner) = &reply.results[1] else { panic!("{reply:?}") };
    assert_eq!((inner.held, inner.revision), (true, 2));
    // A read within sees what was written before it.
    assert!(matches!(&inner.results[1], OpReply::Got(Some(entry)) if entry.mod_revision == 2));

    txn(&mut etcd, vec![], vec![put("a", "3", lease)]).unwrap();
    let a = etcd.get("a").unwrap();
    assert_eq!((a.create_revision, a.mod_revision, a.value.as_str()), (2, 3, "3"));
    let read =
        txn(&mut etcd, vec![Condition::ModifiedAt("a".into(), 2)], vec![put("a", "4", lease)]).unwrap();
    assert_eq!((read.held, read.revision), (false, 3), "nothing was written");
}

#[test]
fn conditions_on_a_range_hold_for_all_of_it() {
    let mut etcd = Etcd::new();
    let lease = grant(&mut etcd, 10);
    let only = |revision| vec![Condition::OnlyCreatedAt("n/".into(), revision)];
    assert!(txn(&mut etcd, only(0), vec![]).unwrap().held, "no key is as one that was made at revision 0");
    txn(&mut etcd, vec![], vec![put("n/a", "", lease), put("o", "", lease)]).unwrap();
    assert!(txn(&mut etcd, only(2), vec![]).unwrap().held);
    assert!(!txn(&mut etcd, only(0), vec![]).unwrap().held);
    txn(&mut etcd, vec![], vec![put("n/b", "", lease)]).unwrap();
    assert!(!txn(&mut etcd, only(2), vec![]).unwrap().held);
}

#[test]
fn a_lease_takes_its_keys_with_it_in_one_revision() {
    let mut etcd = Etcd::new();
    let (short, long) = (grant(&mut etcd, 1), grant(&mut etcd, 60));
    txn(&mut etcd, vec![], vec![put("a", "", short), put("b", "", short), put("c", "", short)]).unwrap();
    txn(&mut etcd, vec![], vec![put("b", "", long)]).unwrap();
    let early = MIN_TTL - Duration::from_millis(1);
    assert!(etcd.overdue(early).is_empty(), "etcd grants two seconds at least");
    assert_eq!(etcd.overdue(MIN_TTL), [short]);
    etcd.renew(MIN_TTL, short).unwrap();
    assert!(etcd.overdue(MIN_TTL).is_empty());
    etcd.extend_leases(MIN_TTL * 2);
    assert!(etcd.overdue(MIN_TTL * 2).is_empty());

    etcd.revoke(short);
    let (update, next) = etcd.watch(&Watched::Prefix(String::new()), 4, 100);
    let deleted = |key: &str| Event::Delete { key: key.into(), revision: 4 };
    assert_eq!((update, next), (Some(Update::Events(vec![deleted("a"), deleted("c")])), 5));
    assert_eq!(etcd.renew(Duration::ZERO, short), Err(Failure::LeaseGone));
    let refused = txn(&mut etcd, vec![], vec![put("d", "", long), put("e", "", short)]);
    assert_eq!((refused, etcd.get("d")), (Err(Failure::LeaseGone), None), "all of it or nothing");
}

#[test]
fn a_watch_tells_each_event_once_and_after_a_compaction_how_things_are() {
    let mut etcd = Etcd::new();
    let lease = grant(&mut etcd, 10);
    for value in ["1", "2", "3"] {
        txn(&mut etcd, vec![], vec![put("k", value, lease), put("l", value, lease)]).unwrap();
    }
    let key = Watched::Key("k".into());
    let values = |update: Option<Update>| -> Vec<String> {
        let Some(Update::Events(events)) = update else { panic!("{update:?}") };
        let put = |event| if let Event::Put(entry) = event { entry.value } else { panic!("{event:?}") };
        events.into_iter().map(put).collect()
    };
    let (first, next) = etcd.watch(&key, 2, 3);
    assert_eq!((values(first), next), (vec!["1".to_owned(), "2".to_owned()], 4));
    let (rest, next) = etcd.watch(&key, next, 100);
    assert_eq!((values(rest), next), (vec!["3".to_owned()], 5));
    assert_eq!(etcd.watch(&key, next, 100), (None, 5));

    etcd.compact(3);
    assert_eq!(values(etcd.watch(&key, 4, 100).0), ["3"]);
    let (update, next) = etcd.watch(&key, 3, 100);
    assert!(matches!(update, Some(Update::Snapshot { revision: 4, entries }) if entries[0].value == "3"));
    assert_eq!(next, 5);
}

#[test]
fn what_etcd_refuses_is_no_request_of_ours() {
    let many: Vec<Op> = (0..=128).map(|key| Op::Get(key.to_string())).collect();
    let inner = |ops: &[Op]| Op::Txn(Txn { then: ops.to_vec(), ..Txn::default() });
    for ops in [
        many.clone(),
        vec![inner(&many[..128])],
        vec![put("a", "", 0), put("a", "", 0)],
        vec![put("a", "", 0), Op::DeletePrefix("a".into())],
        vec![put("a", "", 0), inner(&[put("a", "", 0)])],
    ] {
        let refused = std::panic::catch_unwind(|| txn(&mut Etcd::new(), vec![], ops.clone()));
        assert!(refused.is_err(), "{ops:?}");
    }
    let either = Txn { then: vec![put("a", "", 0)], otherwise: vec![put("a", "", 0)], ..Txn::default() };
    assert!(txn(&mut Etcd::new(), vec![], vec![Op::Txn(either)]).is_ok(), "only one of them is carried out");
}
