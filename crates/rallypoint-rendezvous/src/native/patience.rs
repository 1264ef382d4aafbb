//! How long a node waits for a round.

use std::time::Duration;

use rallypoint_core::time::bounded;
use tokio::sync::{oneshot, watch};

use crate::progress::Progress;

/// Waits for an outcome, up to `time`. A spare waits for as long as the run lives: its time begins when it is no
/// spare any more.
pub(super) async fn patiently<T>(
    mut outcome: oneshot::Receiver<T>,
    time: Duration,
    mut progress: watch::Receiver<Progress>,
) -> Option<Result<T, oneshot::error::RecvError>> {
    loop {
        let spare = progress.borrow_and_update().spare;
        let limit = async {
            match spare {
                true => std::future::pending().await,
                false => tokio::time::sleep(bounded(time)).await,
            }
        };
        tokio::pin!(limit);
        loop {
            tokio::select! {
                biased;
                outcome = &mut outcome => return Some(outcome),
                () = &mut limit => return None,
                Ok(()) = progress.changed() => {
                    if progress.borrow_and_update().spare != spare {
                        break;
                    }
                }
            }
        }
    }
}
