//! `add`: one request, and no second one because others add at the same time.

use std::collections::HashMap;
use std::sync::Mutex;

use rallypoint_etcd::v3::api::{Compare, CompareOp, GetOptions, TxnOp, TxnOpResponse};
use rallypoint_etcd::{Error, ErrorKind};

use super::once::{Outcome, Write};
use super::value::{Counter, Stored};
use super::{EtcdStore, Losses, entry, is_missing, is_still};
use crate::deadline::Deadline;
use crate::error::{Result, StoreError};

/// The counters as this store last saw them: a guess that saves a read.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<HashMap<Vec<u8>, Counter>>);

impl Counters {
    /// So many that a job's own are among them, so few that a job of weeks does not fill the memory.
    const MOST: usize = 4096;

    fn guess(&self, key: &[u8], step: i64) -> Counter {
        let seen = self.0.lock().expect("no code panics while it holds this lock");
        let seen = seen.get(key).filter(|counter| counter.step == step);
        // Most counters were made by the first add of the step they are still counting in.
        seen.copied().unwrap_or_else(|| Counter::fresh(step))
    }

    fn remember(&self, key: &[u8], counter: Counter) {
        let mut seen = self.0.lock().expect("no code panics while it holds this lock");
        if seen.get(key) == Some(&counter) {
            return;
        }
        if seen.len() >= Self::MOST && !seen.contains_key(key) {
            seen.clear();
        }
        seen.insert(key.to_vec(), counter);
    }
}

impl EtcdStore {
    pub(super) async fn add_number(&self, key: &[u8], delta: i64) -> Result<i64> {
        let deadline = self.timeout.deadline(None);
        let stored_key = self.layout().value(key);
        let mut losses = Losses::default();

        let mut counter = self.shared.counters.guess(key, delta);
        let mut stored = counter.stored();
        // The value, not its revision, is compared: other adds of this step may come in between.
        let mut when = Compare::value(stored_key.clone(), CompareOp::Equal, stored.as_slice());
        loop {
            let write = Write {
                what: "add",
                key,
                when: vec![when],
                then: vec![TxnOp::put(stored_key.clone(), stored, Some(self.put_options().with_prev_key()))],
                otherwise: vec![TxnOp::get(stored_key.clone(), None)],
                lean: true,
            };
            let found = match self.write(write, key.len(), deadline).await? {
                Outcome::Done(answers) => {
                    self.shared.counters.remember(key, counter);
                    return Ok(counter.number(version_after(answers.first())));
                }
                Outcome::DoneEarlier(revision) => {
                    self.shared.counters.remember(key, counter);
                    return self.number_at(key, counter, revision, deadline).await;
                }
                Outcome::Refused(answers, _) => entry(answers.first()),
            };
            (when, counter) = match &found {
                None => (is_missing(&stored_key), Counter::fresh(delta)),
                Some(found) => match Stored::parse(key, &found.value, found.version)? {
                    Stored::Counter { counter, .. } if counter.step == delta => {
                        (Compare::value(stored_key.clone(), CompareOp::Equal, found.value.clone()), counter)
                    }
                    other => {
                        let sum = other.number(key)?.wrapping_add(delta);
                        (is_still(found, &stored_key), Counter::starting(sum, delta, found.version + 1))
                    }
                },
            };
            stored = counter.stored();
            losses.pause(deadline, "add", key).await?;
        }
    }

    /// The number that an add whose answer was lost had brought the counter to.
    async fn number_at(
        &self,
        key: &[u8],
        counter: Counter,
        revision: i64,
        deadline: Deadline,
    ) -> Result<i64> {
        let options = GetOptions::new().with_revision(revision);
        let answer = self.client(deadline).get(self.layout().value(key), Some(options)).await;
        let unknown = |source| StoreError::OutcomeUnknown { what: "add", key: key.to_vec(), source };
        match answer {
            Ok(answer) => match answer.kvs().first() {
                Some(kv) => Ok(counter.number(kv.version())),
                None => {
                    Err(unknown(Error::new(ErrorKind::Protocol, "get").because("the counter is not there")))
                }
            },
            Err(error) => Err(unknown(error)),
        }
    }
}

/// The version of a key after the put that `answer` is to.
fn version_after(answer: Option<&TxnOpResponse>) -> i64 {
    match answer {
        Some(TxnOpResponse::Put(put)) => put.prev_key().map_or(1, |before| before.version() + 1),
        _ => 1,
    }
}
