//! How somebody is excluded from a run, or let in again, and who is.

use std::time::{Duration, SystemTime};

use rallypoint_core::Backoff;
use rallypoint_core::round::{
    ChangeExclusions, Corrupt, Exclusion, ExclusionAuthor, ExclusionChange, ExclusionOutcome, ExclusionStep,
    Failure, Keys, Whom,
};
use rallypoint_core::time::millis;
use rallypoint_etcd::Result;
use rallypoint_etcd::v3::Client;

use super::super::settings::run_prefix;
use super::super::translate::{carry_out, failure, read_all};
use super::{corrupt, readable};

/// Keeps a node or a machine out of a run, for so long or for as long as the run lives.
pub async fn exclude(
    client: &Client,
    run_id: &str,
    whom: Whom,
    reason: &str,
    time: Option<Duration>,
) -> Result<ExclusionOutcome> {
    let keys = Keys::new(&run_prefix(run_id));
    let exclude = ExclusionChange::Exclude(whom, reason.to_owned(), time);
    change(client, &keys, exclude, ExclusionAuthor::Operator).await
}

/// Lets a node or a machine in again; none for all who are excluded.
pub async fn include(client: &Client, run_id: &str, whom: Option<Whom>) -> Result<ExclusionOutcome> {
    let keys = Keys::new(&run_prefix(run_id));
    let include = whom.map_or(ExclusionChange::IncludeAll, ExclusionChange::Include);
    change(client, &keys, include, ExclusionAuthor::Operator).await
}

/// Who is excluded from a run; none if there is no such run.
pub async fn excluded(client: &Client, run_id: &str) -> Result<Option<Vec<Exclusion>>> {
    let keys = Keys::new(&run_prefix(run_id));
    let (_, group) = read_all(client, &keys.group()).await?;
    let is_there = group.iter().any(|entry| entry.key == keys.round());
    Ok(is_there.then(|| of_group(&keys, &group)))
}

/// Those among the keys of the group.
pub(super) fn of_group(keys: &Keys, group: &[rallypoint_core::round::Entry]) -> Vec<Exclusion> {
    let prefix = keys.exclusions();
    let exclusions = group.iter().filter(|entry| entry.key.starts_with(&prefix) && entry.lease != 0);
    // What was not written by us keeps nobody out.
    exclusions.filter_map(|entry| readable(entry, &mut Vec::new())).collect()
}

/// Changes who is excluded, and says what became of that.
pub(in super::super) async fn change(
    client: &Client,
    keys: &Keys,
    change: ExclusionChange,
    author: ExclusionAuthor,
) -> Result<ExclusionOutcome> {
    let mut change = ChangeExclusions::new(keys, change, author, millis(SystemTime::now()));
    let mut backoff = Backoff::default();
    loop {
        let request = match change.poll() {
            ExclusionStep::Send(request) => request,
            ExclusionStep::Done(outcome) => {
                for lease in change.unused_leases() {
                    // It ends by itself, too.
                    let _ = client.lease_revoke(lease).await;
                }
                return outcome.map_err(|Corrupt { key, problem }| corrupt(&key, &problem));
            }
        };
        let reply = match carry_out(client, request).await {
            Ok(reply) => Ok(reply),
            // Whether it was carried out is looked up; what fails for another reason fails the next time, too.
            Err(error) if error.may_have_applied() => Err(Failure::Unknown),
            Err(error) if failure(&error) == Failure::LeaseGone => Err(Failure::LeaseGone),
            Err(error) => return Err(error),
        };
        if !change.handle(reply) {
            tokio::time::sleep(backoff.next(fastrand::f64())).await;
        }
    }
}
