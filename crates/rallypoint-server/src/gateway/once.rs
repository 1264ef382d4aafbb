//! What became of a write whose answer was lost.
//!
//! etcd may have carried it out, or may still do so. So it is made void first: every write is on the condition that the
//! name it was sent under is not fenced. What `action` was written up to there then tells whether it was carried out.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rallypoint_etcd::v3::api::{PutOptions, Txn, TxnOp};
use rallypoint_etcd::v3::{Client, Event, KeyRange, revision_of};
use rallypoint_etcd::{Error as EtcdError, ErrorKind, Repeat};
use uuid::Uuid;

use super::layout::{self, Act};
use crate::v2::Path;

/// Far longer than any server holds a request back.
const FENCED_FOR: Duration = Duration::from_secs(3600);
/// How often the past is read, where streams are cut.
const TRIES: usize = 5;

/// The name that writes are sent under.
#[derive(Debug)]
pub(super) struct Fence(Mutex<String>);

impl Fence {
    pub(super) fn new() -> Self {
        Fence(Mutex::new(unique()))
    }

    pub(super) fn name(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes void whatever was sent under `name` and was not carried out; then the revision of write `id` that was sent
    /// under it after revision `after`, if it was carried out.
    pub(super) async fn settle(
        &self,
        client: &Client,
        name: &str,
        id: &str,
        after: u64,
    ) -> Result<Option<u64>, EtcdError> {
        {
            let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if *current == name {
                *current = unique();
            }
        }
        let (lease, _) = client.lease_grant(FENCED_FOR).await?;
        let act = Act { action: None, refresh: false, id: unique(), path: Path::default() };
        let raised = client
            .txn(&layout::fenced(name), Repeat::Safe, || {
                let options = PutOptions::new().with_lease(lease);
                Txn::new().and_then([
                    TxnOp::put(layout::fenced(name), "", Some(options)),
                    TxnOp::put(layout::ACTION, act.write(), None),
                ])
            })
            .await?;
        let raised = revision_of(raised.header())?;
        for _ in 0..TRIES {
            let from = i64::try_from(after + 1).unwrap_or(i64::MAX);
            let mut changes = client.changes(&KeyRange::key(layout::ACTION), from);
            while let Some(changes) = changes.next().await? {
                for change in changes {
                    let Event::Put(entry) = change.event else { continue };
                    if Act::read(&entry.value).is_some_and(|act| act.id == id) {
                        return Ok(Some(entry.mod_revision.unsigned_abs()));
                    }
                    if entry.mod_revision >= raised {
                        return Ok(None);
                    }
                }
            }
            tokio::time::sleep(super::past::PAUSE).await;
        }
        Err(EtcdError::new(ErrorKind::Timeout, "find out whether it was carried out"))
    }
}

/// A name that nobody else has.
pub(super) fn unique() -> String {
    Uuid::new_v4().simple().to_string()
}
