//! Follows the cluster: feeds the watchers, and ends directories whose time is up.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rallypoint_core::Backoff;
use rallypoint_etcd::v3::api::{GetOptions, GetResponse, Txn, TxnOp, TxnOpResponse, TxnResponse};
use rallypoint_etcd::v3::{Changes, Client, KeyRange, revision_of};
use rallypoint_etcd::{Error as EtcdError, Repeat};
use tokio::time::sleep;
use tracing::{debug, warn};

use super::Gateway;
use super::layout::{self, Act};
use super::once::unique;
use super::past::{PAUSE, Rest, is_too_large, rest_after};
use super::plan::{Expect, compares, removal};
use super::seen::Found;
use super::translate::{by_revision, translate};
use crate::v2::{Action, Path};

/// Between two looks at an etcd that fails.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How far back a gateway looks when it begins: v2 itself remembers so many events.
const REMEMBERED: u64 = 1000;

/// What was missed comes all at once, in one message or in many, and a stream whose reader falls behind is cut off: so readers get their time.
const AT_ONCE: usize = 32;
const BREATH: Duration = Duration::from_millis(1);

/// Feeds the watchers for as long as the gateway lives.
pub(super) async fn follow(gateway: Weak<Gateway>) {
    let new_backoff = || Backoff::new(PAUSE, LONGEST_PAUSE);
    let mut backoff = new_backoff();
    // After which revision etcd had something that is too large for one message.
    let mut too_large = None;
    loop {
        let Some(alive) = gateway.upgrade() else { return };
        let last = alive.feed.last();
        let passes_over = last.is_some() && too_large == last;
        let begun = begin(&alive, passes_over).await;
        drop(alive);
        match begun {
            Ok(mut changes) => {
                backoff = new_backoff();
                let mut told = 0;
                let error = loop {
                    let next = changes.next().await;
                    let Some(alive) = gateway.upgrade() else { return };
                    match next {
                        Ok(Some(changes)) => {
                            for (revision, changes) in by_revision(&changes) {
                                told += 1;
                                if told % AT_ONCE == 0 {
                                    sleep(BREATH).await;
                                }
                                let happened = translate(revision, changes, alive.clock.now());
                                alive.feed.tell(revision, happened.told);
                                alive.end_all(happened.due);
                                if let Some((id, leases)) = happened.loose {
                                    alive.loose.end(&alive.client, &id, leases);
                                }
                            }
                        }
                        Ok(None) => break None,
                        Err(error) => break Some(error),
                    }
                };
                let Some(alive) = gateway.upgrade() else { return };
                if error.as_ref().is_some_and(is_too_large) {
                    too_large = alive.feed.last();
                }
                debug!(error = error.map(tracing::field::display), "the watch of the keys was cut");
                sleep(PAUSE).await;
            }
            Err(error) => {
                warn!(%error, "cannot watch the keys");
                sleep(backoff.next(fastrand::f64())).await;
            }
        }
    }
}

/// Takes up where it was, or anew where that cannot be. What cannot be read again is passed over.
async fn begin(gateway: &Arc<Gateway>, passes_over: bool) -> Result<Changes, EtcdError> {
    let client = &gateway.client;
    let passes_over = passes_over && !gateway.feed.skip_past();
    let rest = match gateway.feed.last() {
        Some(last) if !passes_over => rest_after(client, last).await?,
        _ => Rest::Gone,
    };
    if rest == Rest::Gone {
        let read = client.get(layout::ACTION, None).await?;
        let now = revision_of(read.header())?.unsigned_abs();
        // Others may have written to the cluster since, and nobody tells of that.
        let written = read.kvs().first().map_or(0, |kv| kv.mod_revision().unsigned_abs());
        if passes_over {
            warn!(revision = now, "what happened meanwhile is too large to be read: watchers are cut off");
            gateway.feed.begin_after(now, now);
        } else {
            if gateway.feed.last().is_some() {
                warn!(
                    revision = now,
                    "what happened meanwhile is compacted away, or lost: watchers are cut off"
                );
            }
            gateway.feed.begin_after(remembered(client, now).await?, written);
        }
        gateway.recent.forget();
        gateway.learn_version(client).await;
    }
    let last = gateway.feed.last().unwrap_or_default();
    let changes = client.changes(&KeyRange::prefix(""), i64::try_from(last + 1).unwrap_or(i64::MAX));
    gateway.end_all(all_due(client).await?);
    Ok(changes)
}

/// From where on the past can be had, up to as much as is worth remembering.
async fn remembered(client: &Client, now: u64) -> Result<u64, EtcdError> {
    let mut back = REMEMBERED;
    while back > 0 {
        let from = now.saturating_sub(back);
        if rest_after(client, from).await? == Rest::Kept {
            return Ok(from);
        }
        back /= 2;
    }
    Ok(now)
}

/// The directories whose time is up, and that are still there.
async fn all_due(client: &Client) -> Result<Vec<Path>, EtcdError> {
    let all = || Some(GetOptions::new().with_prefix().with_keys_only());
    let root = Path::default();
    let answer = client
        .txn(b"due", Repeat::Safe, || {
            Txn::new().and_then([
                TxnOp::get(layout::due_below(&root), all()),
                TxnOp::get(layout::alive_below(&root), all()),
            ])
        })
        .await?;
    let [due, alive] = reads(&answer);
    let paths = |read: &Option<GetResponse>, path: fn(&[u8]) -> Option<Path>| -> HashSet<Path> {
        read.iter().flat_map(|read| read.kvs().iter().filter_map(|kv| path(kv.key()))).collect()
    };
    let alive = paths(&alive, layout::alive_path);
    Ok(paths(&due, layout::due_path).into_iter().filter(|path| !alive.contains(path)).collect())
}

fn reads<const N: usize>(answer: &TxnResponse) -> [Option<GetResponse>; N] {
    let mut reads = answer.op_responses().into_iter().map(|read| match read {
        TxnOpResponse::Get(read) => Some(read),
        _ => None,
    });
    std::array::from_fn(|_| reads.next().flatten())
}

impl Gateway {
    /// Ends directories whose time is up. Every gateway tries, and one succeeds. An etcd that is full lets nobody.
    fn end_all(self: &Arc<Self>, due: Vec<Path>) {
        for path in due {
            let gateway = Arc::downgrade(self);
            tokio::spawn(async move {
                let mut backoff = Backoff::new(LONGEST_PAUSE, LONGEST_PAUSE * 15);
                while let Some(alive) = gateway.upgrade() {
                    let Err(error) = alive.end_directory(&path).await else { break };
                    warn!(%error, "cannot end a directory whose time is up; trying again");
                    drop(alive);
                    sleep(backoff.next(fastrand::f64())).await;
                }
            });
        }
    }

    async fn end_directory(&self, path: &Path) -> Result<(), EtcdError> {
        let keys = [layout::node(path), layout::due(path), layout::alive(path)];
        let look = || Txn::new().and_then(keys.clone().map(|key| TxnOp::get(key, None)));
        let mut answer = self.client.txn(&keys[0], Repeat::Safe, look).await?;
        loop {
            let [node, due, alive] = reads(&answer);
            let kv = |read: &Option<GetResponse>| read.as_ref().and_then(|read| read.kvs().first().cloned());
            let (Some(node), Some(due), None) = (kv(&node), kv(&due), kv(&alive)) else { return Ok(()) };
            let expects = [
                Expect::Key(keys[0].clone(), node.mod_revision()),
                Expect::Key(keys[1].clone(), due.mod_revision()),
                Expect::Key(keys[2].clone(), 0),
            ];
            let otherwise = keys.clone().map(|key| TxnOp::get(key, None)).to_vec();
            answer = self.remove(path, true, &expects, otherwise).await?;
            if answer.succeeded() {
                return Ok(());
            }
        }
    }

    /// Ends a node at its TTL, where that is shorter than a lease can be, if nobody has changed it meanwhile.
    pub(super) fn end_soon(self: &Arc<Self>, path: Path, revision: u64, ttl: u64) {
        let gateway = Arc::clone(self);
        tokio::spawn(async move {
            sleep(Duration::from_secs(ttl)).await;
            let key = layout::node(&path);
            let read = gateway.client.get(key.clone(), None).await;
            let kv = read.ok().and_then(|read| read.kvs().first().cloned());
            let Some(kv) = kv.filter(|kv| kv.mod_revision().unsigned_abs() == revision) else { return };
            let expects = [Expect::Key(key, kv.mod_revision())];
            let found = Found::read(path.clone(), kv.mod_revision(), kv.into_key_value().1);
            let Ok(found) = found else { return };
            // If it fails, the lease ends it a little later.
            let _ = gateway.remove(&path, found.record.value.is_none(), &expects, Vec::new()).await;
        });
    }

    async fn remove(
        &self,
        path: &Path,
        dir: bool,
        expects: &[Expect],
        otherwise: Vec<TxnOp>,
    ) -> Result<TxnResponse, EtcdError> {
        let act = Act { action: Some(Action::Expire), refresh: false, id: unique(), path: path.clone() };
        let fence = self.fence.name();
        if dir {
            self.loose.expect(&act.id);
        }
        // What it compares is gone once it was carried out.
        let removed = self
            .client
            .txn(&layout::node(path), Repeat::Safe, || {
                let mut then = removal(path, dir);
                then.push(TxnOp::put(layout::ACTION, act.write(), None));
                Txn::new().when(compares(expects, &fence)).and_then(then).or_else(otherwise.clone())
            })
            .await;
        if removed.as_ref().is_ok_and(|answer| !answer.succeeded()) {
            self.loose.forget(&act.id);
        }
        removed
    }
}
