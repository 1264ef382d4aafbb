//! Counters: a compare-and-swap on what is likely to be there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::once::{Base, Mark, Swap, Write};
use super::{EtcdV2Store, Losses};
use crate::error::Result;
use crate::store::parse_number;

/// What this store last saw of its counters, so that an add nobody interferes with is one request.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<HashMap<Vec<u8>, Arc<Counter>>>);

/// Adds of one store to one counter take turns: against each other they would only lose races.
type Counter = tokio::sync::Mutex<Option<Base>>;

impl Counters {
    /// More than a job has; the rest is looked up again.
    const MOST: usize = 4096;

    fn get(&self, key: &[u8]) -> Arc<Counter> {
        let mut counters = self.0.lock().expect("no code panics while it holds this lock");
        if counters.len() >= Self::MOST && !counters.contains_key(key) {
            counters.retain(|_, counter| Arc::strong_count(counter) > 1);
        }
        Arc::clone(counters.entry(key.to_vec()).or_default())
    }
}

impl EtcdV2Store {
    pub(super) async fn add_number(&self, key: &[u8], delta: i64) -> Result<i64> {
        let deadline = self.timeout.deadline(None);
        let slot = self.slot(key);
        let counter = self.shared.counters.get(key);
        let mut seen = deadline.wait(counter.lock()).await.ok_or_else(|| deadline.missed("add", &[key]))?;
        let mut losses = Losses::default();
        loop {
            // Taken, so that a future that is dropped leaves nothing stale behind.
            let guess = seen.take();
            let looked = guess.is_none();
            let base = match guess {
                Some(base) => base,
                None => self.once().base(&slot.path, deadline).await?,
            };
            let number = match &base.text {
                None => Ok(0),
                Some(text) => slot.decode(key, text).and_then(|value| parse_number(key, &value)),
            };
            // A guess may be out of date: only what is there can be wrong.
            let Ok(number) = number else {
                if looked {
                    return number;
                }
                continue;
            };
            let sum = number.wrapping_add(delta);
            let text = slot.encode(key, sum.to_string().as_bytes());
            let write =
                Write { what: "add", key, path: &slot.path, text: &text, mark: Some(Mark::new()), ttl: None };
            match self.once().swap(&write, &base, deadline).await? {
                Swap::Done(now) => {
                    *seen = Some(now);
                    return Ok(sum);
                }
                Swap::Lost(now) => {
                    *seen = now;
                    losses.pause("add", key, deadline).await?;
                }
            }
        }
    }
}
