//! The store on etcd v3: one key, one request; a wait is a watch on the keys asked for; every write is carried
//! out once, even when its reply is lost.

mod layout;
mod multi;
mod number;
mod once;
mod queue;
mod value;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rallypoint_core::EtcdSettings;
use rallypoint_etcd::v3::api::{Compare, CompareOp, PutOptions, TxnOp, TxnOpResponse};
use rallypoint_etcd::v3::{Client, Entry, KeyRange, revision_of};
use rallypoint_etcd::{Error, ErrorKind};

use self::layout::Layout;
use self::number::Counters;
use self::once::{Once, Outcome, Write};
use self::value::{Stored, plain};
use crate::deadline::{Deadline, Timeout};
use crate::error::{Result, StoreError};
use crate::store::Store;

/// What etcd takes in one request, unless it was told otherwise.
const REQUEST_LIMIT: usize = 1_572_864;

/// A store on etcd v3. Clones share the data and the connection.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rallypoint_core::EtcdSettings;
/// use rallypoint_store::{EtcdStore, Store};
///
/// let store = EtcdStore::connect(EtcdSettings::new("etcd1,etcd2,etcd3")?, "/jobs/42").await?;
/// let arrived = store.add(b"arrived", 1).await?;
/// store.set(format!("address/{arrived}").as_bytes(), b"10.0.0.7:29500").await?;
/// store.wait(&[b"address/1", b"address/2"], None).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct EtcdStore {
    shared: Arc<Shared>,
    timeout: Timeout,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    layout: Layout,
    once: Once,
    counters: Counters,
    /// What all keys hang on, where they are not there for good.
    lease: Option<i64>,
}

impl EtcdStore {
    /// Connects, and opens the store under `prefix`.
    pub async fn connect(settings: EtcdSettings, prefix: &str) -> Result<Self> {
        Ok(EtcdStore::new(Client::connect(settings).await?, prefix))
    }

    /// The store under `prefix`. All stores with the same prefix share their data; none may be within another's.
    #[must_use]
    pub fn new(client: Client, prefix: &str) -> Self {
        EtcdStore::open(client, prefix, None)
    }

    /// The store under `prefix`, whose keys are gone when `lease` ends. Keeping it alive is the caller's affair;
    /// once it has ended, writes fail.
    #[must_use]
    pub fn on_lease(client: Client, prefix: &str, lease: i64) -> Self {
        EtcdStore::open(client, prefix, Some(lease))
    }

    fn open(client: Client, prefix: &str, lease: Option<i64>) -> Self {
        let once = Once::new(client.clone(), lease);
        let layout = Layout::new(prefix);
        let shared = Shared { client, layout, once, counters: Counters::default(), lease };
        EtcdStore { shared: Arc::new(shared), timeout: Timeout::default() }
    }

    fn put(&self, key: Vec<u8>, value: impl Into<Vec<u8>>) -> TxnOp {
        TxnOp::put(key, value, Some(self.put_options()))
    }

    fn put_options(&self) -> PutOptions {
        self.shared.lease.map_or_else(PutOptions::new, |lease| PutOptions::new().with_lease(lease))
    }

    /// The same store, with another timeout.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        self.timeout.set(timeout);
        self
    }

    fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// A client whose requests end with the operation they belong to.
    fn client(&self, deadline: Deadline) -> Client {
        self.shared.client.retrying_for(deadline.left())
    }

    async fn write(&self, write: Write<'_>, size: usize, deadline: Deadline) -> Result<Outcome> {
        let result = self.shared.once.run(&self.shared.layout, &write, deadline).await;
        result.map_err(|error| match error {
            StoreError::Etcd(source) if source.kind() == ErrorKind::TooLarge => StoreError::TooLarge {
                key: write.key.to_vec(),
                size,
                limit: REQUEST_LIMIT,
                source: source.into(),
            },
            error => error,
        })
    }

    /// A write without a condition.
    async fn write_always(&self, write: Write<'_>, size: usize, deadline: Deadline) -> Result<()> {
        let what = write.what;
        match self.write(write, size, deadline).await? {
            Outcome::Done(_) | Outcome::DoneEarlier(_) => Ok(()),
            Outcome::Refused(..) => {
                Err(Error::new(ErrorKind::Protocol, what).because("refused without a reason").into())
            }
        }
    }

    /// What is under `key` now, and the revision of the look.
    async fn read(&self, key: &[u8], deadline: Deadline) -> Result<(Option<Entry>, i64)> {
        let mut answer = self.client(deadline).get(self.layout().value(key), None).await?;
        let revision = revision_of(answer.header())?;
        Ok((answer.take_kvs().pop().map(Entry::from), revision))
    }

    /// Writes `new(what is there)` for as long as others write in between; `None` leaves it as it is.
    ///
    /// `guess` is what may be there, to save the look where it is.
    async fn replace(
        &self,
        what: &'static str,
        key: &[u8],
        guess: Guess,
        new: impl Fn(Option<&Stored>) -> Result<Option<Vec<u8>>>,
    ) -> Result<Replaced> {
        let deadline = self.timeout.deadline(None);
        let stored_key = self.layout().value(key);
        let mut losses = Losses::default();
        let (mut when, mut value) = match guess {
            Guess::Missing => (is_missing(&stored_key), new(None)?),
            Guess::Value(bytes) => {
                let found = Stored::parse(key, &bytes, 0)?;
                (Compare::value(stored_key.clone(), CompareOp::Equal, bytes), new(Some(&found))?)
            }
        };
        let mut found = None;
        loop {
            let Some(put) = value else { return Ok(Replaced::Left(found)) };
            let size = key.len() + put.len();
            let write = Write {
                what,
                key,
                when: vec![when],
                then: vec![self.put(stored_key.clone(), put)],
                otherwise: vec![TxnOp::get(stored_key.clone(), None)],
                lean: false,
            };
            let Outcome::Refused(answers, _) = self.write(write, size, deadline).await? else {
                return Ok(Replaced::Written);
            };
            found = entry(answers.first());
            losses.pause(deadline, what, key).await?;
            let stored =
                found.as_ref().map(|found| Stored::parse(key, &found.value, found.version)).transpose()?;
            value = new(stored.as_ref())?;
            when =
                found.as_ref().map_or_else(|| is_missing(&stored_key), |found| is_still(found, &stored_key));
        }
    }
}

/// What [`EtcdStore::replace`] assumes before it looks.
enum Guess {
    Missing,
    Value(Vec<u8>),
}

/// What [`EtcdStore::replace`] did.
enum Replaced {
    Written,
    /// Nothing; this is what is there.
    Left(Option<Entry>),
}

fn is_missing(stored_key: &[u8]) -> Compare {
    Compare::create_revision(stored_key, CompareOp::Equal, 0)
}

fn is_still(entry: &Entry, stored_key: &[u8]) -> Compare {
    Compare::mod_revision(stored_key, CompareOp::Equal, entry.mod_revision)
}

/// The entry that a read within a transaction found.
fn entry(answer: Option<&TxnOpResponse>) -> Option<Entry> {
    match answer {
        Some(TxnOpResponse::Get(read)) => read.kvs().first().cloned().map(Entry::from),
        _ => None,
    }
}

/// Races lost to other writers of the same key.
#[derive(Default)]
struct Losses(u32);

impl Losses {
    /// No pause at first: the loser knows what the winner wrote and is likely to win the next race.
    async fn pause(&mut self, deadline: Deadline, what: &'static str, key: &[u8]) -> Result<()> {
        self.0 += 1;
        if deadline.is_over() {
            return Err(deadline.missed(what, &[key]));
        }
        if self.0 > 2 {
            let most = Duration::from_millis(u64::from(self.0.min(20)));
            tokio::time::sleep(most.mul_f64(fastrand::f64())).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let deadline = self.timeout.deadline(None);
        let put = self.put(self.layout().value(key), plain(value));
        let write = Write { what: "set", key, when: vec![], then: vec![put], otherwise: vec![], lean: true };
        self.write_always(write, key.len() + value.len(), deadline).await
    }

    async fn get(&self, key: &[u8]) -> Result<Vec<u8>> {
        let deadline = self.timeout.deadline(None);
        self.wait_value("get", key, deadline).await
    }

    async fn add(&self, key: &[u8], delta: i64) -> Result<i64> {
        self.add_number(key, delta).await
    }

    async fn wait(&self, keys: &[&[u8]], timeout: Option<Duration>) -> Result<()> {
        self.wait_all(keys, self.timeout.deadline(timeout)).await
    }

    async fn check(&self, keys: &[&[u8]]) -> Result<bool> {
        let (missing, _) = self.missing(keys, self.timeout.deadline(None)).await?;
        Ok(missing.is_empty())
    }

    async fn compare_set(&self, key: &[u8], expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let guess = if expected.is_empty() { Guess::Missing } else { Guess::Value(plain(expected)) };
        let replaced = self
            .replace("compare_set", key, guess, |found| {
                let equal = match found {
                    None => expected.is_empty(),
                    Some(found) => found.clone().into_value() == expected,
                };
                Ok(equal.then(|| plain(desired)))
            })
            .await?;
        match replaced {
            Replaced::Written => Ok(desired.to_vec()),
            Replaced::Left(None) => Ok(expected.to_vec()),
            Replaced::Left(Some(entry)) => Ok(Stored::parse(key, &entry.value, entry.version)?.into_value()),
        }
    }

    async fn delete_key(&self, key: &[u8]) -> Result<bool> {
        let deadline = self.timeout.deadline(None);
        let stored_key = self.layout().value(key);
        let there = Compare::create_revision(stored_key.clone(), CompareOp::Greater, 0);
        let write = Write {
            what: "delete_key",
            key,
            when: vec![there],
            then: vec![TxnOp::delete(stored_key, None)],
            otherwise: vec![],
            lean: false,
        };
        Ok(!matches!(self.write(write, key.len(), deadline).await?, Outcome::Refused(..)))
    }

    async fn num_keys(&self) -> Result<u64> {
        self.count(&self.layout().values()).await
    }

    async fn list_keys(&self) -> Result<Vec<Vec<u8>>> {
        let range = self.layout().values();
        let options = Some(range.get_options().with_keys_only());
        let deadline = self.timeout.deadline(None);
        let answer = self.client(deadline).get(range.start(), options).await?;
        Ok(answer.kvs().iter().map(|kv| self.layout().key_of(kv.key())).collect())
    }

    async fn append(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.replace("append", key, Guess::Missing, |found| {
            let mut whole = found.map(|found| found.clone().into_value()).unwrap_or_default();
            whole.extend_from_slice(value);
            Ok(Some(plain(&whole)))
        })
        .await
        .map(|_| ())
    }

    async fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        self.get_many(keys).await
    }

    async fn multi_set(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        self.set_many(keys, values).await
    }

    async fn queue_push(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.push(key, value).await
    }

    async fn queue_pop(&self, key: &[u8], block: bool) -> Result<Vec<u8>> {
        self.pop(key, block).await
    }

    async fn queue_len(&self, key: &[u8]) -> Result<u64> {
        self.count(&self.layout().items(key)).await
    }

    fn timeout(&self) -> Duration {
        self.timeout.get()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    fn clone_store(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }
}

impl EtcdStore {
    async fn count(&self, range: &KeyRange) -> Result<u64> {
        let options = Some(range.get_options().with_count_only());
        let answer = self.client(self.timeout.deadline(None)).get(range.start(), options).await?;
        u64::try_from(answer.count())
            .map_err(|_| Error::new(ErrorKind::Protocol, "count").because("a negative count").into())
    }
}
