//! The Snapshot method: all v3 data as a file of etcd's, which its tools read and restore.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::proto::{PbSnapshotRequest, PbSnapshotResponse};
use futures::{Stream, stream};
use prost::Message as _;
use ring::digest::{Context, SHA256};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Status, Streaming};

use super::admin::check_admin;
use super::call::OwnedCall;
use super::hash::gather;
use super::streaming::Outgoing;
use crate::admission::Share;
use crate::bolt::{Entries, File};
use crate::mvcc::{Error, Record, Survey, Surveyed, stored_revision};
use crate::state::State;

/// About the size of a message, as etcd's.
const MESSAGE_BYTES: usize = 32 << 10;
/// A client that takes nothing for so long gets no more: all that it might still ask for is held for it.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends all data as it is now.
pub(super) fn send(
    call: OwnedCall,
    inbound: Streaming<PbSnapshotRequest>,
) -> impl Stream<Item = Result<Outgoing, Status>> {
    stream::unfold(Sending::Asked(Box::new((call, inbound))), |sending| async {
        match sending.next().await {
            Ok(Some((message, next))) => Some((Ok(Outgoing::small(&message)), next)),
            Ok(None) => None,
            Err(status) => Some((Err(status), Sending::Ended)),
        }
    })
}

enum Sending {
    Asked(Box<(OwnedCall, Streaming<PbSnapshotRequest>)>),
    /// Gone when the client has taken nothing for too long.
    File(Arc<Mutex<Option<Begun>>>),
    Ended,
}

/// A file of which something was sent.
struct Begun {
    file: File,
    left: u64,
    digest: Context,
    /// Whether something was taken since somebody looked.
    is_moving: bool,
    _share: Share,
    _one: OwnedSemaphorePermit,
}

impl Sending {
    async fn next(self) -> Result<Option<(PbSnapshotResponse, Sending)>, Status> {
        let begun = match self {
            Sending::Ended => return Ok(None),
            Sending::File(begun) => begun,
            Sending::Asked(asked) => {
                let (call, mut inbound) = *asked;
                inbound.message().await?;
                begin(&call).await?
            }
        };
        let message = {
            let mut slot = begun.lock().unwrap_or_else(PoisonError::into_inner);
            let stalled = || Status::deadline_exceeded("the snapshot was not read for too long");
            slot.as_mut().ok_or_else(stalled)?.next()
        };
        match message {
            Some(message) => Ok(Some((message, Sending::File(begun)))),
            None => {
                let mut slot = begun.lock().unwrap_or_else(PoisonError::into_inner);
                let digest = slot.take().map(|begun| begun.digest.finish());
                let blob = digest.map(|digest| digest.as_ref().to_vec()).unwrap_or_default();
                let message = PbSnapshotResponse { blob, ..Default::default() };
                Ok(Some((message, Sending::Ended)))
            }
        }
    }
}

impl Begun {
    /// The next pages; none after the last.
    fn next(&mut self) -> Option<PbSnapshotResponse> {
        self.is_moving = true;
        let mut blob = Vec::new();
        while blob.len() < MESSAGE_BYTES {
            let Some(pages) = self.file.next() else { break };
            blob.extend_from_slice(&pages);
        }
        if blob.is_empty() {
            return None;
        }
        self.digest.update(&blob);
        self.left = self.left.saturating_sub(blob.len() as u64);
        Some(PbSnapshotResponse { remaining_bytes: self.left, blob, ..Default::default() })
    }
}

async fn begin(call: &OwnedCall) -> Result<Arc<Mutex<Option<Begun>>>, Status> {
    let shared = &call.shared;
    check_admin(call)?;
    let one = Arc::clone(&shared.snapshots).try_acquire_owned().map_err(|_| Error::TooManyRequests)?;
    // Of one moment: what hangs on a lease is found with it.
    let (survey, rest) = shared.read(|state| (Survey::new(&state.store, 0), Rest::of(state)));
    let (survey, compacted, mut share) = gather(call, survey?).await?;
    let planning = move || rest.file(survey.finish(compacted));
    let file =
        tokio::task::spawn_blocking(planning).await.map_err(|error| Status::internal(error.to_string()))?;
    share.grow(file.weight()).map_err(Error::from)?;
    let begun = Begun {
        left: file.length(),
        file,
        digest: Context::new(&SHA256),
        is_moving: true,
        _share: share,
        _one: one,
    };
    let begun = Arc::new(Mutex::new(Some(begun)));
    tokio::spawn(look_after(Arc::downgrade(&begun)));
    Ok(begun)
}

/// Gives up what nobody takes.
async fn look_after(begun: std::sync::Weak<Mutex<Option<Begun>>>) {
    loop {
        tokio::time::sleep(STALL_TIMEOUT).await;
        let Some(begun) = begun.upgrade() else { return };
        let mut slot = begun.lock().unwrap_or_else(PoisonError::into_inner);
        if !slot.as_mut().is_some_and(|begun| std::mem::take(&mut begun.is_moving)) {
            return *slot = None;
        }
    }
}

type Row = (Vec<u8>, Vec<u8>);

/// What is not keys.
struct Rest {
    /// Each with its TTL.
    leases: Vec<(i64, i64)>,
    is_enabled: bool,
    auth_revision: u64,
    users: Vec<Row>,
    roles: Vec<Row>,
}

/// `leasepb.Lease`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Lease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
}

impl Rest {
    fn of(state: &State) -> Self {
        let auth = &state.auth;
        Rest {
            leases: state.leases.all().collect(),
            is_enabled: auth.is_enabled(),
            auth_revision: auth.revision(),
            users: auth.users().map(|user| (user.name.clone(), user.encode_to_vec())).collect(),
            roles: auth.roles().map(|role| (role.name.clone(), role.encode_to_vec())).collect(),
        }
    }

    /// The buckets of an etcd.
    fn file(self, surveyed: Surveyed) -> File {
        let Surveyed { compacted, records } = surveyed;
        let number = |number: u64| number.to_be_bytes().to_vec();
        let mut meta = vec![(b"consistent_index".to_vec(), number(1)), (b"term".to_vec(), number(1))];
        if compacted > 0 {
            let revision = stored_revision(compacted, 0);
            meta.push((b"finishedCompactRev".to_vec(), revision.clone()));
            meta.push((b"scheduledCompactRev".to_vec(), revision));
        }
        meta.sort();
        let auth = vec![
            (b"authEnabled".to_vec(), vec![u8::from(self.is_enabled)]),
            (b"authRevision".to_vec(), number(self.auth_revision)),
        ];
        let lease = |(id, ttl): (i64, i64)| (id.to_be_bytes().to_vec(), Lease { id, ttl }.encode_to_vec());
        let mut leases: Vec<Row> = self.leases.into_iter().map(lease).collect();
        leases.sort();
        let none = || Box::new(Vec::<Row>::new());
        File::new(vec![
            ("alarm", none()),
            ("auth", Box::new(auth)),
            ("authRoles", Box::new(self.roles)),
            ("authUsers", Box::new(self.users)),
            ("cluster", none()),
            ("key", Box::new(records)),
            ("lease", Box::new(leases)),
            ("members", none()),
            ("members_removed", none()),
            ("meta", Box::new(meta)),
        ])
    }
}

/// Versions of keys, as etcd keeps them.
impl Entries for Vec<Arc<Record>> {
    fn len(&self) -> usize {
        self.len()
    }

    fn key(&self, at: usize) -> Vec<u8> {
        self[at].stored_key()
    }

    fn key_length(&self, at: usize) -> usize {
        self[at].stored_key_length()
    }

    fn value_length(&self, at: usize) -> usize {
        self[at].stored_length()
    }

    fn write_value(&self, at: usize, out: &mut Vec<u8>) {
        self[at].write_stored(out);
    }
}
