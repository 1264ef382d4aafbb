//! How an operator closes a run.

use std::time::SystemTime;

use rallypoint_core::Backoff;
use rallypoint_core::round::{CloseOutcome, CloseRun, CloseStep, Corrupt, Failure, Keys};
use rallypoint_core::time::millis;
use rallypoint_etcd::Result;
use rallypoint_etcd::v3::Client;

use super::super::settings::run_prefix;
use super::super::translate::{carry_out, failure};
use super::corrupt;

/// Ends a run for all its nodes, for good. Late nodes learn of it for `mark`. False if it was over already.
pub async fn close(client: &Client, run_id: &str, reason: &str, mark: std::time::Duration) -> Result<bool> {
    let keys = Keys::new(&run_prefix(run_id));
    let now = millis(SystemTime::now());
    carry_out_close(client, CloseRun::by_operator(&keys, reason, mark, now)).await
}

/// The same, by the node of this name, without which the run cannot go on.
pub(in super::super) async fn close_by_host(
    client: &Client,
    keys: &Keys,
    node: &str,
    reason: &str,
    mark: std::time::Duration,
) -> Result<bool> {
    carry_out_close(client, CloseRun::by_host(keys, node, reason, mark, millis(SystemTime::now()))).await
}

async fn carry_out_close(client: &Client, mut close: CloseRun) -> Result<bool> {
    let mut backoff = Backoff::default();
    loop {
        let request = match close.poll() {
            CloseStep::Send(request) => request,
            CloseStep::Done(outcome) => {
                if let Some(unused) = close.unused_mark() {
                    client.lease_revoke(unused).await?;
                }
                return match outcome {
                    Ok(outcome) => Ok(outcome == CloseOutcome::Closed),
                    Err(Corrupt { key, problem }) => Err(corrupt(&key, &problem)),
                };
            }
        };
        let reply = match carry_out(client, request).await {
            Ok(reply) => Ok(reply),
            // Whether it was carried out is looked up; what fails for another reason fails the next time, too.
            Err(error) if error.may_have_applied() => Err(Failure::Unknown),
            Err(error) if failure(&error) == Failure::LeaseGone => Err(Failure::LeaseGone),
            Err(error) => return Err(error),
        };
        if !close.handle(reply) {
            tokio::time::sleep(backoff.next(fastrand::f64())).await;
        }
    }
}
