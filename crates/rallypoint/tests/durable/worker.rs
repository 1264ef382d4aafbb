//! Clients at work: they write until the server is gone, and then look at what is left.

use std::collections::BTreeMap;
use std::sync::Mutex;

use etcd_client::{
    Client, Error, GetOptions, LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions, ResponseHeader, Txn,
    TxnOp, WatchOptions,
};
use serde_json::Value;

use crate::model::{Holdings, Model, Op, TTL};
use crate::serving::{Serving, v2};

/// What anybody was told, which must hold ever after.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The revision and the index that somebody has seen.
    pub(crate) revision: i64,
    pub(crate) index: u64,
    /// The revision of a compaction that was promised.
    pub(crate) compacted: i64,
    /// Keys and values (none of a deletion) by their revisions, since the last check: from answers and watches.
    pub(crate) history: BTreeMap<(i64, String), Option<String>>,
    /// The cluster and the member.
    pub(crate) ids: Option<(u64, u64)>,
}

impl Told {
    pub(crate) fn header(&mut self, header: Option<&ResponseHeader>) -> i64 {
        let header = header.unwrap();
        let ids = (header.cluster_id(), header.member_id());
        assert_eq!(*self.ids.get_or_insert(ids), ids, "it is another cluster");
        self.revision = self.revision.max(header.revision());
        header.revision()
    }

    fn change(&mut self, revision: i64, key: &str, value: Option<&str>) {
        let value = value.map(str::to_owned);
        let known = self.history.insert((revision, key.to_owned()), value.clone());
        assert!(
            known.is_none() || known.as_ref() == Some(&value),
            "{key} at {revision}: {known:?}, {value:?}"
        );
        self.revision = self.revision.max(revision);
    }
}

/// Asks for one thing after the other, until the server is gone.
pub(crate) async fn work(endpoint: &str, client: &Client, model: &mut Model, told: &Mutex<Told>) {
    loop {
        let op = model.next();
        match carry_out(endpoint, client, &op, told).await {
            Ok(()) => model.promised(),
            Err(problem) => return assert!(problem.is_none(), "{op:?}: {problem:?}"),
        }
        if model.number == 0 && fastrand::u32(..40) == 0 {
            let revision = told.lock().unwrap().revision;
            if client.clone().compact(revision, None).await.is_ok() {
                told.lock().unwrap().compacted = revision;
            }
        }
    }
}

/// An error without a problem is the end of the server.
async fn carry_out(
    endpoint: &str,
    client: &Client,
    op: &Op,
    told: &Mutex<Told>,
) -> Result<(), Option<Error>> {
    let mut client = client.clone();
    let lost = |error: Error| match &error {
        Error::GRpcStatus(status)
            if !matches!(status.code() as i32, 14 | 1 | 2) && !status.message().contains("transport") =>
        {
            Some(error)
        }
        _ => None,
    };
    let note = |header: Option<&ResponseHeader>, changes: &[(&str, Option<&str>)]| {
        let mut told = told.lock().unwrap();
        let revision = told.header(header);
        for (key, value) in changes {
            told.change(revision, key, *value);
        }
    };
    match op {
        Op::Put(pairs) => {
            let puts = pairs.iter().map(|(key, value)| TxnOp::put(key.as_str(), value.as_str(), None));
            let done = client.txn(Txn::new().and_then(puts.collect::<Vec<_>>())).await.map_err(lost)?;
            let changes: Vec<_> = pairs.iter().map(|(key, value)| (&**key, Some(&**value))).collect();
            note(done.header(), &changes);
        }
        Op::Delete(key) => {
            let done = client.delete(key.as_str(), None).await.map_err(lost)?;
            let changes = [(&**key, None)];
            note(done.header(), if done.deleted() > 0 { &changes } else { &[] });
        }
        Op::Grant(id) => {
            let options = LeaseGrantOptions::new().with_id(*id);
            note(client.lease_grant(TTL, Some(options)).await.map_err(lost)?.header(), &[]);
        }
        Op::PutLeased(key, value, lease) => {
            let options = PutOptions::new().with_lease(*lease);
            let done = client.put(key.as_str(), value.as_str(), Some(options)).await.map_err(lost)?;
            note(done.header(), &[(key, Some(value))]);
        }
        Op::Revoke(lease) => note(client.lease_revoke(*lease).await.map_err(lost)?.header(), &[]),
        Op::SetFile(path, value) => {
            let (status, index, _) = ask_v2(endpoint, "PUT", path, &format!("value={value}")).await?;
            assert!(matches!(status, 200 | 201), "{op:?}: {status}");
            let mut told = told.lock().unwrap();
            told.index = told.index.max(index);
        }
        Op::RemoveFiles(directory) => {
            let path = format!("{directory}?recursive=true");
            let (status, index, _) = ask_v2(endpoint, "DELETE", &path, "").await?;
            assert!(matches!(status, 200 | 404), "{op:?}: {status}");
            let mut told = told.lock().unwrap();
            told.index = told.index.max(index);
        }
    }
    Ok(())
}

async fn ask_v2(
    endpoint: &str,
    method: &str,
    path: &str,
    form: &str,
) -> Result<(u16, u64, Value), Option<Error>> {
    let [endpoint, method, path, form] = [endpoint, method, path, form].map(str::to_owned);
    tokio::task::spawn_blocking(move || v2(&endpoint, &method, &path, &form)).await.unwrap().ok_or(None)
}

/// Looks at everything, until the server is gone. What it sees must hold ever after.
pub(crate) async fn look(endpoint: &str, client: &Client, told: &Mutex<Told>) {
    let mut client = client.clone();
    loop {
        let Ok(found) = client.get("w", Some(GetOptions::new().with_prefix())).await else { return };
        {
            let mut seen = told.lock().unwrap();
            seen.header(found.header());
            for pair in found.kvs() {
                seen.change(pair.mod_revision(), pair.key_str().unwrap(), Some(pair.value_str().unwrap()));
            }
        }
        let Ok((_, index, _)) = ask_v2(endpoint, "GET", "/?recursive=true", "").await else { return };
        let mut seen = told.lock().unwrap();
        seen.index = seen.index.max(index);
    }
}

/// Is told of everything, until the server is gone.
pub(crate) async fn watch(client: &Client, told: &Mutex<Told>) {
    let options = WatchOptions::new().with_prefix();
    let Ok(mut events) = client.clone().watch("w", Some(options)).await else { return };
    while let Ok(Some(message)) = events.message().await {
        note_events(&message, &mut told.lock().unwrap());
    }
}

fn note_events(message: &etcd_client::WatchResponse, told: &mut Told) {
    for event in message.events() {
        let pair = event.kv().unwrap();
        let value = (event.event_type() == etcd_client::EventType::Put).then(|| pair.value_str().unwrap());
        told.change(pair.mod_revision(), pair.key_str().unwrap(), value);
    }
}

/// All that a client holds in the server.
pub(crate) async fn holdings(serving: &Serving, model: &Model) -> Holdings {
    let mut client = serving.client().await;
    let mut found = Holdings::default();
    let all = client.get(model.prefix(), Some(GetOptions::new().with_prefix())).await.unwrap();
    for pair in all.kvs() {
        let (key, value) = (pair.key_str().unwrap().to_owned(), pair.value_str().unwrap().to_owned());
        found.keys.insert(key, (value, pair.lease()));
    }
    for lease in client.leases().await.unwrap().leases().iter().filter(|lease| model.has_lease(lease.id())) {
        let options = LeaseTimeToLiveOptions::new().with_keys();
        let known = client.lease_time_to_live(lease.id(), Some(options)).await.unwrap();
        assert!(known.granted_ttl() == TTL && known.ttl() >= TTL - 120, "{known:?}");
        let keys = known.keys().iter().map(|key| String::from_utf8(key.clone()).unwrap());
        let hang_on_it = found.keys.iter().filter(|(_, (_, id))| *id == lease.id());
        assert!(keys.eq(hang_on_it.map(|(key, _)| key.clone())), "{known:?}, {:?}", found.keys);
        found.leases.insert(lease.id());
    }
    let path = format!("/w{}?recursive=true", model.number);
    let (status, _, listing) = v2(&serving.endpoint, "GET", &path, "").unwrap();
    assert!(matches!(status, 200 | 404));
    files(&listing["node"], &mut found.files);
    found
}

fn files(node: &Value, found: &mut BTreeMap<String, String>) {
    if let (Some(path), Some(value)) = (node["key"].as_str(), node["value"].as_str()) {
        found.insert(path.to_owned(), value.to_owned());
    }
    for node in node["nodes"].as_array().into_iter().flatten() {
        files(node, found);
    }
}

/// Whether all that anybody was told holds.
pub(crate) async fn check_told(serving: &Serving, told: &mut Told) {
    let mut client = serving.client().await;
    let seen = told.revision;
    let revision = told.header(client.get("w", None).await.unwrap().header());
    assert!(revision >= seen, "somebody has seen {seen}, and now it is at {revision}");
    let (_, index, _) = v2(&serving.endpoint, "GET", "/", "").unwrap();
    assert!(index >= told.index, "somebody has seen {}, and now it is at {index}", told.index);
    if told.compacted > 0 {
        let past = GetOptions::new().with_revision(told.compacted - 1);
        client.get("w", Some(past)).await.expect_err("it was compacted");
    }

    // The whole past, from the first that anybody was told of.
    let known = std::mem::take(&mut told.history);
    let Some(&(first, _)) = known.keys().next() else { return };
    // What ends the past, whatever happened before it.
    let last = client.put("w-last", "", None).await.unwrap().header().unwrap().revision();
    let mut past = Told { ids: told.ids, ..Told::default() };
    let mut from = first.max(told.compacted);
    let mut events = loop {
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let mut events = client.watch("w", Some(options)).await.unwrap();
        let message = events.message().await.unwrap().unwrap();
        let message = if message.created() { events.message().await.unwrap().unwrap() } else { message };
        if message.compact_revision() == 0 {
            note_events(&message, &mut past);
            break events;
        }
        // It was asked for, and not answered.
        from = message.compact_revision();
    };
    while past.revision < last {
        note_events(&events.message().await.unwrap().unwrap(), &mut past);
    }
    for ((at, key), value) in known.into_iter().filter(|((at, _), _)| *at >= from) {
        let kept = past.history.get(&(at, key.clone()));
        assert_eq!(kept, Some(&value), "{key} at {at}, which somebody has seen");
    }
    told.revision = last;
}
