//! The machine's words of etcd, carried out by the client.

use rallypoint_core::round::{
    Condition, Entry, Event, Failure, Op, OpReply, Reply, Request, Txn, TxnReply, Update, Watched,
};
use rallypoint_etcd::v3::api::{
    self, CompareOp, DeleteOptions, GetOptions, PutOptions, TxnOp, TxnOpResponse,
};
use rallypoint_etcd::v3::{self, Client, KeyRange, WatchUpdate, revision_of};
use rallypoint_etcd::{Error, ErrorKind, Repeat, Result};

/// Keys in one answer: a thousand nodes' records are well within what a client reads.
const PAGE: i64 = 1000;

/// Carries out a request. A transaction that may have been carried out is not sent again: the machine knows best what
/// to ask then, and a second try would hide what became of the first.
pub(super) async fn carry_out(client: &Client, request: Request) -> Result<Reply> {
    match request {
        Request::Grant(ttl) => client.lease_grant(ttl).await.map(|(id, _)| Reply::Granted(id)),
        Request::Renew(lease) => client.lease_renew(lease).await.map(|()| Reply::Renewed),
        Request::Revoke(lease) => client.lease_revoke(lease).await.map(|()| Reply::Revoked),
        Request::Txn(txn) => {
            let key = first_key(&txn).as_bytes();
            let answer = client.txn(key, Repeat::Unsafe, || transaction(&txn)).await?;
            txn_reply(&txn, &answer).map(Reply::Txn)
        }
        Request::Range(prefix) => {
            let (revision, entries) = read_all(client, &prefix).await?;
            Ok(Reply::Range { revision, entries })
        }
    }
}

/// Whether etcd is to take something: one that is full refuses that, and answers all else.
pub(super) fn writes(request: &Request) -> bool {
    match request {
        Request::Grant(_) => true,
        Request::Txn(txn) => puts(txn),
        Request::Renew(_) | Request::Revoke(_) | Request::Range(_) => false,
    }
}

fn puts(txn: &Txn) -> bool {
    txn.then.iter().chain(&txn.otherwise).any(|op| match op {
        Op::Put { .. } => true,
        Op::Txn(txn) => puts(txn),
        Op::Get(_) | Op::Range(_) | Op::Delete(_) | Op::DeletePrefix(_) => false,
    })
}

/// What an error means to the machine.
pub(super) fn failure(error: &Error) -> Failure {
    match error.kind() {
        ErrorKind::LeaseNotFound => Failure::LeaseGone,
        _ if error.is_transient() || error.may_have_applied() => Failure::Unknown,
        ErrorKind::Auth | ErrorKind::PermissionDenied => Failure::Denied,
        _ => Failure::Refused,
    }
}

/// All keys that begin with `prefix` as of one revision, a page at a time.
pub(super) async fn read_all(client: &Client, prefix: &str) -> Result<(i64, Vec<Entry>)> {
    let range = KeyRange::prefix(prefix);
    let mut start = range.start().to_vec();
    let mut entries = Vec::new();
    let mut revision = 0;
    loop {
        let options = range.get_options().with_limit(PAGE).with_revision(revision);
        let mut answer = match client.get(start.clone(), Some(options)).await {
            // Compacted away between two pages: begin again.
            Err(error) if error.kind() == ErrorKind::Compacted => {
                (revision, start) = (0, range.start().to_vec());
                entries.clear();
                continue;
            }
            answer => answer?,
        };
        if revision == 0 {
            revision = revision_of(answer.header())?;
        }
        let more = answer.more();
        entries.extend(answer.take_kvs().into_iter().map(|kv| entry(v3::Entry::from(kv))));
        match entries.last() {
            Some(last) if more => start = [last.key.as_bytes(), b"\0"].concat(),
            _ => return Ok((revision, entries)),
        }
    }
}

pub(super) fn range(keys: Watched) -> KeyRange {
    match keys {
        Watched::Key(key) => KeyRange::key(key),
        Watched::Prefix(prefix) => KeyRange::prefix(prefix),
    }
}

pub(super) fn update(update: WatchUpdate) -> Update {
    match update {
        WatchUpdate::Events(events) => Update::Events(events.into_iter().map(event).collect()),
        WatchUpdate::Snapshot { revision, entries } => {
            Update::Snapshot { revision, entries: entries.into_iter().map(entry).collect() }
        }
    }
}

fn event(event: v3::Event) -> Event {
    match event {
        v3::Event::Put(found) => Event::Put(entry(found)),
        v3::Event::Delete { key, revision } => Event::Delete { key: text(key), revision },
    }
}

fn entry(entry: v3::Entry) -> Entry {
    Entry {
        key: text(entry.key),
        value: text(entry.value),
        create_revision: entry.create_revision,
        mod_revision: entry.mod_revision,
        lease: entry.lease,
    }
}

/// What is not text is nothing that a node has written; the machine finds that out by itself.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn first_key(txn: &Txn) -> &str {
    txn.then
        .iter()
        .find_map(|op| match op {
            Op::Put { key, .. } | Op::Get(key) | Op::Range(key) | Op::Delete(key) | Op::DeletePrefix(key) => {
                Some(key.as_str())
            }
            Op::Txn(_) => None,
        })
        .unwrap_or_default()
}

pub(super) fn transaction(txn: &Txn) -> api::Txn {
    let mut made = api::Txn::new();
    if !txn.when.is_empty() {
        made = made.when(txn.when.iter().map(condition).collect::<Vec<_>>());
    }
    if !txn.then.is_empty() {
        made = made.and_then(txn.then.iter().map(operation).collect::<Vec<_>>());
    }
    if !txn.otherwise.is_empty() {
        made = made.or_else(txn.otherwise.iter().map(operation).collect::<Vec<_>>());
    }
    made
}

fn condition(condition: &Condition) -> api::Compare {
    let equal = CompareOp::Equal;
    match condition {
        Condition::Missing(key) => api::Compare::create_revision(key.as_str(), equal, 0),
        Condition::Holds(key, value) => api::Compare::value(key.as_str(), equal, value.as_str()),
        Condition::CreatedAt(key, revision) => api::Compare::create_revision(key.as_str(), equal, *revision),
        Condition::ModifiedAt(key, revision) => api::Compare::mod_revision(key.as_str(), equal, *revision),
        Condition::OnlyCreatedAt(prefix, revision) => {
            api::Compare::create_revision(prefix.as_str(), equal, *revision).with_prefix()
        }
    }
}

fn operation(op: &Op) -> TxnOp {
    match op {
        Op::Put { key, value, lease } => {
            TxnOp::put(key.as_str(), value.as_str(), Some(PutOptions::new().with_lease(*lease)))
        }
        Op::Get(key) => TxnOp::get(key.as_str(), None),
        Op::Range(prefix) => TxnOp::get(prefix.as_str(), Some(GetOptions::new().with_prefix())),
        Op::Delete(key) => TxnOp::delete(key.as_str(), None),
        Op::DeletePrefix(prefix) => TxnOp::delete(prefix.as_str(), Some(DeleteOptions::new().with_prefix())),
        Op::Txn(txn) => TxnOp::txn(transaction(txn)),
    }
}

/// What came of a transaction.
pub(super) fn txn_reply(txn: &Txn, answer: &api::TxnResponse) -> Result<TxnReply> {
    let revision = revision_of(answer.header())?;
    within(txn, answer, revision)
}

/// A transaction within another has no header of its own on every server.
fn within(txn: &Txn, answer: &api::TxnResponse, revision: i64) -> Result<TxnReply> {
    let ops = if answer.succeeded() { &txn.then } else { &txn.otherwise };
    let results = ops.iter().zip(answer.op_responses()).map(|(op, result)| {
        Ok(match (op, result) {
            (Op::Range(_), TxnOpResponse::Get(mut read)) => {
                OpReply::Found(read.take_kvs().into_iter().map(|kv| entry(v3::Entry::from(kv))).collect())
            }
            (_, TxnOpResponse::Get(mut read)) => {
                OpReply::Got(read.take_kvs().pop().map(|kv| entry(v3::Entry::from(kv))))
            }
            (Op::Txn(txn), TxnOpResponse::Txn(inner)) => OpReply::Txn(within(txn, &inner, revision)?),
            (_, TxnOpResponse::Put(_) | TxnOpResponse::Delete(_)) => OpReply::Done,
            _ => return Err(Error::new(ErrorKind::Protocol, "txn").because("an answer of an unknown kind")),
        })
    });
    Ok(TxnReply { held: answer.succeeded(), revision, results: results.collect::<Result<_>>()? })
}
