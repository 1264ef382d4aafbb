//! How the nodes of a round are asked what their workers do, through the round's store.
//!
//! Inquiries have numbers, from 1. Who wants to know writes the next one; each node watches that key, and answers under a key
//! of its own. The last of them says that all have. Where it was asked who hangs, one verdict is written, once.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_stacks::Folded;
use rallypoint_store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::patience;
use crate::progress::Sign;

/// For a store to take or give something; it is asked again.
const TO_TAKE: Duration = Duration::from_secs(5);
/// Between tries where the store fails.
const AGAIN: Duration = Duration::from_secs(1);
/// So many answers are read at once: each is a few kilobytes.
const READ_AT_ONCE: usize = 64;
/// So much of an answer is stacks.
const MOST: usize = 16 << 10;
/// The last inquiry that somebody has opened, or one before.
const LAST: &[u8] = b"rallypoint/inquiry/last";

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    /// The node that asks who hangs; an operator is none.
    pub(crate) node: Option<usize>,
    /// Whether the workers' stacks are wanted too.
    pub(crate) stacks: bool,
    /// Whether a node that has seen none of its workers may look longer: no other node keeps everybody waiting.
    pub(crate) patient: bool,
    /// What tells it from another of the same.
    pub(crate) id: u64,
}

impl Asked {
    pub(crate) fn new(node: Option<usize>, stacks: bool) -> Self {
        Asked { node, stacks, patient: false, id: fastrand::u64(..) }
    }
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Answer {
    /// The node's place in the round.
    pub node: usize,
    /// Its name.
    pub host: String,
    /// Its workers.
    pub workers: Vec<Worker>,
    /// What they do, those that do the same as one.
    pub stacks: Vec<Folded>,
}

/// A worker, as its node knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Worker {
    /// Its rank.
    pub rank: usize,
    /// How often it has called `rallypoint.heartbeat()`, if it has.
    pub beats: Option<u64>,
    /// What it is judged by. None before its first sign, or where nobody looks.
    pub sign: Option<Sign>,
    /// How long it has shown no sign of progress, in milliseconds. None before the first, or where nobody looks.
    pub silent_ms: Option<u64>,
    /// How long it has run without its first sign.
    pub starts_ms: Option<u64>,
    /// What is not in these two, as it was paused meanwhile, or its machine or launcher stood still.
    pub stood_ms: u64,
    /// What became of it.
    pub state: WorkerState,
}

/// What became of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WorkerState {
    /// It runs.
    #[default]
    Running,
    /// It was stopped by whoever runs the job, or is in a debugger on the terminal.
    Paused,
    /// It has begun to end: its program is over, and its process is not.
    Ending,
    /// It has ended.
    Ended,
    /// Its node does not look for its progress.
    Unwatched,
    /// What a later version says of it.
    #[serde(other)]
    Unknown,
}

/// What was found out about who hangs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Verdict {
    /// None: nobody does.
    pub(crate) hung: Option<Hung>,
    /// Why.
    pub(crate) why: String,
    /// Whoever waits is told that nobody does: it will not be different by itself.
    pub(crate) told: bool,
    /// It can be different after so long; none where an earlier version says it.
    pub(crate) again_ms: Option<u64>,
    /// What the workers of all nodes do, the odd ones first.
    pub(crate) stacks: Vec<Folded>,
    /// Nodes that have not answered.
    pub(crate) unheard: Vec<usize>,
}

/// Who stopped first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hung {
    pub(crate) rank: usize,
    pub(crate) node: usize,
    pub(crate) host: String,
    pub(crate) silent_ms: u64,
    /// The same as it is told; none where an earlier version says it.
    pub(crate) seconds: Option<u64>,
}

/// Where the nodes of one round are asked.
#[derive(Debug, Clone)]
pub(crate) struct Inquiries {
    store: Arc<dyn Store>,
    nodes: usize,
}

impl Inquiries {
    pub(crate) fn new(store: &dyn Store, nodes: usize) -> Self {
        let store: Arc<dyn Store> = store.clone_store().into();
        store.set_timeout(TO_TAKE);
        Inquiries { store, nodes }
    }

    /// Waits until inquiry `number` is opened. It waits out whatever the store has.
    pub(crate) async fn asked(&self, number: u64) -> Asked {
        let key = key(number, "");
        loop {
            match patience::wait(&*self.store, &key).await {
                Ok(()) => match self.store.get(&key).await {
                    // What a later version asks for is answered as well as can be.
                    Ok(text) => return serde_json::from_slice(&text).unwrap_or_default(),
                    Err(error) => debug!(%error, "an inquiry cannot be read"),
                },
                Err(error) => debug!(%error, "inquiries cannot be waited for"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Opens inquiry `number`. Whether it is this one, and not somebody else's.
    pub(crate) async fn open(&self, number: u64, asked: &Asked) -> Result<bool, StoreError> {
        let ours = json(asked);
        let stands = self.store.compare_set(&key(number, ""), b"", &ours).await?;
        self.store.set(LAST, number.to_string().as_bytes()).await?;
        Ok(stands == ours)
    }

    /// Opens the next inquiry; its number.
    pub(crate) async fn open_next(&self, asked: &Asked) -> Result<u64, StoreError> {
        let last = match self.store.check(&[LAST]).await? {
            true => String::from_utf8_lossy(&self.store.get(LAST).await?).parse().unwrap_or(0),
            false => 0,
        };
        let mut number: u64 = last + 1;
        while !self.open(number, asked).await? {
            number += 1;
        }
        Ok(number)
    }

    /// Answers for a node.
    pub(crate) async fn answer(&self, number: u64, mut answer: Answer) -> Result<(), StoreError> {
        let size = |stacks: &[Folded]| json(&stacks).len();
        while size(&answer.stacks) > MOST && !answer.stacks.is_empty() {
            // Of many the odd ones come first.
            answer.stacks.pop();
        }
        let own = |number| key(number, &format!("/node/{}", answer.node));
        self.store.set(&own(number), &json(&answer)).await?;
        let answered = self.store.add(&key(number, "/answers"), 1).await?;
        if usize::try_from(answered).is_ok_and(|answered| answered >= self.nodes) {
            self.store.set(&key(number, "/all"), b"1").await?;
        }
        if number > 2 {
            // Nobody reads it any more.
            self.store.delete_key(&own(number - 2)).await?;
        }
        Ok(())
    }

    /// The answers of all nodes, or after so long of those that have answered, by their places.
    pub(crate) async fn answers(
        &self,
        number: u64,
        time: Duration,
    ) -> Result<Vec<Option<Answer>>, StoreError> {
        let all = key(number, "/all");
        let is_late = match self.store.wait(&[&all], Some(time)).await {
            Ok(()) => false,
            Err(StoreError::Timeout { .. }) => true,
            Err(error) => return Err(error),
        };
        let keys: Vec<Vec<u8>> = (0..self.nodes).map(|node| key(number, &format!("/node/{node}"))).collect();
        let there: Vec<usize> = if is_late {
            let known: std::collections::HashSet<Vec<u8>> =
                self.store.list_keys().await?.into_iter().collect();
            (0..self.nodes).filter(|node| known.contains(&keys[*node])).collect()
        } else {
            (0..self.nodes).collect()
        };
        let mut answers: Vec<Option<Answer>> = (0..self.nodes).map(|_| None).collect();
        for nodes in there.chunks(READ_AT_ONCE) {
            let wanted: Vec<&[u8]> = nodes.iter().map(|node| &keys[*node][..]).collect();
            for (node, text) in nodes.iter().zip(self.store.multi_get(&wanted).await?) {
                answers[*node] = serde_json::from_slice(&text).ok();
            }
        }
        Ok(answers)
    }

    /// Writes the verdict, unless there is one; what stands then, for all.
    pub(crate) async fn conclude(&self, number: u64, verdict: &Verdict) -> Result<Verdict, StoreError> {
        let stands = self.store.compare_set(&key(number, "/verdict"), b"", &json(verdict)).await?;
        Ok(serde_json::from_slice(&stands).unwrap_or_default())
    }

    /// Waits for the verdict for so long.
    pub(crate) async fn verdict(&self, number: u64, time: Duration) -> Result<Verdict, StoreError> {
        let key = key(number, "/verdict");
        self.store.wait(&[&key], Some(time)).await?;
        Ok(serde_json::from_slice(&self.store.get(&key).await?).unwrap_or_default())
    }
}

fn key(number: u64, part: &str) -> Vec<u8> {
    format!("rallypoint/inquiry/{number}{part}").into_bytes()
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Asks all nodes of a round what their workers do, and waits for so long; by their places, with none for a node that has not
/// answered. For operators: `store` is the round's.
pub async fn ask_stacks(
    store: &dyn Store,
    nodes: usize,
    time: Duration,
) -> Result<Vec<Option<Answer>>, StoreError> {
    let inquiries = Inquiries::new(store, nodes);
    let number = inquiries.open_next(&Asked::new(None, true)).await?;
    inquiries.answers(number, time).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use rallypoint_store::MemoryStore;

    use super::*;

    fn answer(node: usize) -> Answer {
        Answer { node, host: format!("h{node}"), ..Answer::default() }
    }

    #[tokio::test]
    async fn one_inquiry_has_one_opener_and_one_verdict() {
        let inquiries = Inquiries::new(&MemoryStore::new(), 2);
        let asked = |node| Asked { node: Some(node), stacks: false, patient: false, id: 7 };
        assert!(inquiries.open(1, &asked(0)).await.unwrap());
        assert!(!inquiries.open(1, &asked(1)).await.unwrap(), "it is the other's");
        assert_eq!(inquiries.asked(1).await, asked(0));
        assert_eq!(inquiries.open_next(&asked(1)).await.unwrap(), 2);
        let verdict = |why: &str| Verdict { why: why.to_owned(), ..Verdict::default() };
        assert_eq!(inquiries.conclude(2, &verdict("a")).await.unwrap(), verdict("a"));
        assert_eq!(inquiries.conclude(2, &verdict("b")).await.unwrap(), verdict("a"));
        assert_eq!(inquiries.verdict(2, AGAIN).await.unwrap(), verdict("a"));
    }

    #[tokio::test]
    async fn all_are_heard_and_who_is_not_is_named() {
        let inquiries = Inquiries::new(&MemoryStore::new(), 3);
        let number = inquiries.open_next(&Asked::default()).await.unwrap();
        for node in [0, 2] {
            inquiries.answer(number, answer(node)).await.unwrap();
        }
        let heard = inquiries.answers(number, Duration::from_millis(50)).await.unwrap();
        assert_eq!(heard, [Some(answer(0)), None, Some(answer(2))]);
        inquiries.answer(number, answer(1)).await.unwrap();
        let heard = inquiries.answers(number, AGAIN).await.unwrap();
        assert!(heard.iter().all(Option::is_some));
    }

    #[tokio::test]
    async fn an_answer_has_a_bound_and_the_odd_ones_stay() {
        let inquiries = Inquiries::new(&MemoryStore::new(), 1);
        let stack = |rank| Folded { ranks: vec![rank], stack: vec!["x".repeat(1000)], ..Folded::default() };
        let stacks = (0..100).map(stack).collect();
        inquiries.answer(1, Answer { stacks, ..answer(0) }).await.unwrap();
        let heard = inquiries.answers(1, AGAIN).await.unwrap().remove(0).unwrap();
        assert_eq!(heard.stacks[0].ranks, [0]);
        assert!((10..20).contains(&heard.stacks.len()), "{}", heard.stacks.len());
    }
}
