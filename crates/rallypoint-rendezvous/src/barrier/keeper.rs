//! Keeps a node's keep-alive, and the folder of the run, for as long as it is held.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rallypoint_core::Backoff;
use rallypoint_core::barrier::{KEEP_ALIVE_TTL, Place, RUN_TTL, Record, Status};
use rallypoint_etcd::v2::Get;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::group::Told;
use super::wire::Wire;
use crate::error::Result;
use crate::handler::GroupChange;

/// How long a folder without a record may be one that another node is putting back.
const PUTTING_BACK: Duration = Duration::from_secs(5);

/// A task that ends with its owner.
#[derive(Debug)]
pub(super) struct Task(JoinHandle<()>);

impl Task {
    pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Task(tokio::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The keep-alive of one place.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) place: Place,
    /// The record of the version, once it is final.
    pub(super) record: Arc<OnceLock<Record>>,
    _task: Task,
}

impl Keeper {
    /// Begins to keep what was written just now.
    pub(super) fn start(wire: &Wire, place: Place, told: Told) -> Self {
        let record = Arc::new(OnceLock::new());
        let keeping = keep(wire.clone(), place, Arc::clone(&record), told);
        Keeper { place, record, _task: Task::spawn(keeping) }
    }
}

async fn keep(wire: Wire, place: Place, record: Arc<OnceLock<Record>>, told: Told) {
    // No longer than it takes until the next one is due.
    let wire = wire.retrying_for(KEEP_ALIVE_TTL / 2);
    let mut backoff = Backoff::default();
    loop {
        tokio::time::sleep(KEEP_ALIVE_TTL / 2).await;
        // Whatever the error: as long as the key is there, the place is ours.
        while let Err(error) = match wire.renew(place).await {
            Ok(true) => Ok(()),
            Ok(false) => match take_back(&wire, place, record.get()).await {
                Ok(true) => Ok(()),
                Ok(false) => {
                    warn!(run = wire.run_id, ?place, "the keep-alive ended, and the others went on");
                    told.tell(GroupChange::Excluded);
                    return;
                }
                Err(error) => Err(error.to_string()),
            },
            Err(error) => Err(error.to_string()),
        } {
            debug!(run = wire.run_id, ?place, %error, "the keep-alive is renewed again soon");
            tokio::time::sleep(backoff.next(fastrand::f64())).await;
        }
        backoff = Backoff::default();
    }
}

/// Writes a keep-alive again that is gone, if its version still stands: etcd was away for too long, or the whole
/// folder of the run has ended. Says whether that was so.
///
/// etcd 3.5 cannot put off the end of a folder with a TTL, so on it a run's folder goes two hours after it was
/// made, with everything in it, while the group is well. Whoever sees it first puts the record back.
pub(super) async fn take_back(wire: &Wire, place: Place, record: Option<&Record>) -> Result<bool> {
    let stands =
        |record: &Record| record.is(Status::Final, place.version) || record.is(Status::Frozen, place.version);
    let begun = Instant::now();
    loop {
        match (wire.read().await?.record, record) {
            (Some((now, _)), _) if stands(&now) => {
                wire.hold(place).await?;
                return Ok(true);
            }
            (None, Some(record)) => {
                let root = wire.client.find(wire.root(), Get::new()).await;
                if root.map_err(|error| wire.failed(error))?.node.is_none() {
                    wire.put_back(record).await?;
                } else if begun.elapsed() < PUTTING_BACK {
                    // Folders come first: another node is about to write the record.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                } else {
                    return Ok(false);
                }
            }
            _ => return Ok(false),
        }
    }
}

/// Puts the end of the run's folder off for as long as this task runs.
pub(super) async fn keep_run(wire: Wire) {
    // Not in the way of the nodes that are about to meet.
    tokio::time::sleep(Duration::from_secs(5).mul_f64(fastrand::f64())).await;
    let mut said = false;
    loop {
        match wire.renew_run().await {
            Ok(true) => {}
            Ok(false) if said => {}
            Ok(false) => {
                debug!(
                    run = wire.run_id,
                    "this etcd cannot put off the end of a folder; it is put back then"
                );
                said = true;
            }
            Err(error) => {
                debug!(run = wire.run_id, %error, "the folder of the run is renewed again soon");
                tokio::time::sleep(RUN_TTL / 100).await;
                continue;
            }
        }
        tokio::time::sleep(RUN_TTL / 2).await;
    }
}
