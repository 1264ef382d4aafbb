//! The store on a server of PyTorch's `TCPStore`.
//!
//! `connection`: bytes. `call`: one operation, its deadline and its errors, and the connections there are.

mod call;
mod connection;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rallypoint_core::Backoff;
use rallypoint_tcpstore::wire::Request;

use crate::deadline::Timeout;
use crate::error::{Result, StoreError};
use crate::store::{Store, barrier_of_keys, parse_number};
use call::{Call, Pool, failed, within};
use connection::{Connection, is_end};

/// What servers take as a value, unless they are told otherwise.
const VALUE_LIMIT: usize = 8 << 20;

/// A store on a server that speaks the protocol of PyTorch's `TCPStore`: PyTorch's own, from torch 2.4 on, libuv or not, or
/// [`rallypoint_tcpstore::TcpStoreServer`]. It shares its keys with PyTorch's clients, which put a `/` before each, as this
/// one does. Clones share connections.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use rallypoint_store::{Store, TcpStore};
/// use rallypoint_tcpstore::TcpStoreServer;
///
/// let server = TcpStoreServer::bind("127.0.0.1:0".parse()?)?;
/// let store = TcpStore::connect(&server.local_addr().to_string(), Duration::from_secs(60)).await?;
/// store.set(b"greeting", b"hello").await?;
/// assert_eq!(store.get(b"greeting").await?, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// # Where this is not PyTorch's client
///
/// The protocol has no names for requests, and some of them have no reply. What the [`Store`] promises comes first:
///
/// - A write that has returned is there for all. PyTorch's `set`, `append`, `multi_set` and `queue_push` return when the
///   request is on its way; here each takes a round trip.
/// - Who waits holds nobody up, since operations that run side by side have connections of their own. A store has one
///   connection more than that, by which it knows that its server is still there.
/// - `get` and `multi_get` wait again if a key is deleted before it is read, and a queue of that name is no value. PyTorch's
///   then give an empty value.
/// - `queue_pop` waits again if another was faster. PyTorch's fails.
/// - Something that is no number is [`StoreError::NotANumber`]. PyTorch's servers only end the connection.
/// - Keys that come when a wait is at its end count as come.
///
/// # Where it is not as other stores
///
/// - The data is in the server's memory. When the server ends, operations fail at once, with an error that names it, and
///   do so for good: whatever listens there afterwards is another store. Only [`connect`](TcpStore::connect) waits for a
///   server.
/// - The server takes keys of 8 KiB, values of 8 MiB and 128 Ki keys at a time, unless it is told otherwise, and ends the
///   connection beyond. For a value that is an error of its own; `multi_set` is one request, whatever its size.
/// - Queues need a libuv server of torch 2.8, `list_keys` needs torch 2.10. Older servers end the connection.
/// - [`num_keys`](Store::num_keys) counts also what others have stored without the `/`.
#[derive(Debug, Clone)]
pub struct TcpStore {
    pool: Arc<Pool>,
    timeout: Timeout,
}

impl TcpStore {
    /// The store that a server at `address`, as `host:port`, serves. It waits up to `timeout` for the server, and that is
    /// the store's timeout from then on.
    ///
    /// # Errors
    ///
    /// If nobody answers in time, or what answers is no `TCPStore`.
    pub async fn connect(address: &str, timeout: Duration) -> Result<Self> {
        let timeout = Timeout::new(timeout);
        let deadline = timeout.deadline(None);
        let mut backoff = Backoff::default();
        loop {
            let error = match within(deadline.left(), Connection::open(address)).await {
                Ok(first) => {
                    return Ok(TcpStore { pool: Arc::new(Pool::new(address.to_owned(), first)), timeout });
                }
                Err(error) => error,
            };
            if deadline.is_over() || !may_pass(&error) {
                return Err(failed(address, "connect", error));
            }
            if deadline.wait(tokio::time::sleep(backoff.next(fastrand::f64()))).await.is_none() {
                return Err(failed(address, "connect", error));
            }
        }
    }

    /// Where the server is.
    #[must_use]
    pub fn address(&self) -> &str {
        self.pool.address()
    }

    async fn call(&self, what: &'static str, timeout: Option<Duration>) -> Result<Call<'_>> {
        Call::begin(&self.pool, what, self.timeout.deadline(timeout)).await
    }

    /// A write without a reply of its own.
    async fn carry_out(&self, what: &'static str, request: Request<'_>) -> Result<()> {
        let mut call = self.call(what, None).await?;
        call.carry_out(request).await?;
        call.end();
        Ok(())
    }

    async fn read(&self, what: &'static str, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        let names: Vec<_> = keys.iter().map(|key| name(key)).collect();
        let mut backoff = Backoff::default();
        let mut call = self.call(what, None).await?;
        loop {
            call = call.wait(keys, &names).await?;
            call.send(&[Request::MultiGet(borrowed(&names))]).await?;
            let mut values = Vec::new();
            for _ in keys {
                values.push(Some(call.string().await?));
            }
            for (name, value) in names.iter().zip(&mut values) {
                if value.as_ref().is_some_and(Vec::is_empty) {
                    *value = call.read(name).await?;
                }
            }
            if let Some(values) = values.into_iter().collect() {
                call.end();
                return Ok(values);
            }
            // Deleted since, or there is only a queue of that name, which ends every wait at once.
            if call.deadline.wait(tokio::time::sleep(backoff.next(fastrand::f64()))).await.is_none() {
                return Err(call.missed(keys));
            }
        }
    }

    async fn try_add(&self, key: &[u8], delta: i64) -> Result<i64> {
        let mut call = self.call("add", None).await?;
        call.send(&[Request::Add(key, delta)]).await?;
        let sum = call.number().await?;
        call.end();
        Ok(sum)
    }

    async fn try_compare_set(&self, key: &[u8], expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let mut call = self.call("compare_set", None).await?;
        call.send(&[Request::CompareSet { key, expected, desired }]).await?;
        let value = call.string().await?;
        call.end();
        Ok(value)
    }

    async fn try_barrier(&self, key: &[u8], world_size: i64, timeout: Option<Duration>) -> Result<()> {
        let mut call = self.call("barrier", timeout).await?;
        let name = name(key);
        call.send(&[Request::Barrier { key: &name, world_size }]).await?;
        if call.is_told_to_go_on(call.deadline).await? {
            call.end();
            return Ok(());
        }
        Err(call.missed(&[key]))
    }
}

/// A key on the wire.
fn name(key: &[u8]) -> Vec<u8> {
    [b"/", key].concat()
}

fn borrowed(names: &[Vec<u8>]) -> Vec<&[u8]> {
    names.iter().map(Vec::as_slice).collect()
}

/// Whether a server may be there later.
fn may_pass(error: &io::Error) -> bool {
    !matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData)
}

/// Whether the server has ended the connection, for its own end or because it refuses the request.
fn was_ended(error: &StoreError) -> bool {
    matches!(error, StoreError::Server { source, .. } if is_end(source))
}

/// An end of the connection is the answer to a value that is too large.
fn too_large(key: &[u8], value: &[u8], error: StoreError) -> StoreError {
    if !was_ended(&error) || value.len() <= VALUE_LIMIT {
        return error;
    }
    let size = key.len() + value.len();
    StoreError::TooLarge { key: key.to_vec(), size, limit: VALUE_LIMIT, source: Box::new(error) }
}

#[async_trait]
impl Store for TcpStore {
    async fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let done = self.carry_out("set", Request::Set(&name(key), value)).await;
        done.map_err(|error| too_large(key, value, error))
    }

    async fn get(&self, key: &[u8]) -> Result<Vec<u8>> {
        self.read("get", &[key]).await.map(|mut values| values.swap_remove(0))
    }

    async fn add(&self, key: &[u8], delta: i64) -> Result<i64> {
        let name = name(key);
        match self.try_add(&name, delta).await {
            Err(error) if was_ended(&error) => {
                // The server says no more, so whether the value was the reason is looked up.
                let Ok(mut call) = self.call("add", None).await else { return Err(error) };
                let Ok(Some(value)) = call.read(&name).await else { return Err(error) };
                call.end();
                parse_number(key, &value).and(Err(error))
            }
            done => done,
        }
    }

    async fn wait(&self, keys: &[&[u8]], timeout: Option<Duration>) -> Result<()> {
        let names: Vec<_> = keys.iter().map(|key| name(key)).collect();
        let call = self.call("wait", timeout).await?;
        call.wait(keys, &names).await.map(Call::end)
    }

    async fn check(&self, keys: &[&[u8]]) -> Result<bool> {
        let names: Vec<_> = keys.iter().map(|key| name(key)).collect();
        let mut call = self.call("check", None).await?;
        call.send(&[Request::Check(borrowed(&names))]).await?;
        let ready = call.is_ready().await?;
        call.end();
        Ok(ready)
    }

    async fn compare_set(&self, key: &[u8], expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let done = self.try_compare_set(&name(key), expected, desired).await;
        done.map_err(|error| {
            too_large(key, if expected.len() > desired.len() { expected } else { desired }, error)
        })
    }

    async fn delete_key(&self, key: &[u8]) -> Result<bool> {
        let mut call = self.call("delete_key", None).await?;
        call.send(&[Request::Delete(&name(key))]).await?;
        let deleted = call.number().await?;
        call.end();
        Ok(deleted > 0)
    }

    async fn num_keys(&self) -> Result<u64> {
        let mut call = self.call("num_keys", None).await?;
        call.send(&[Request::CountKeys]).await?;
        let count = call.count().await?;
        call.end();
        Ok(count)
    }

    async fn list_keys(&self) -> Result<Vec<Vec<u8>>> {
        let mut call = self.call("list_keys", None).await?;
        call.send(&[Request::ListKeys]).await?;
        let mut keys = Vec::new();
        for _ in 0..call.count().await? {
            let name = call.string().await?;
            keys.extend(name.strip_prefix(b"/").map(<[u8]>::to_vec));
        }
        call.end();
        keys.sort();
        Ok(keys)
    }

    async fn append(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let done = self.carry_out("append", Request::Append(&name(key), value)).await;
        done.map_err(|error| too_large(key, value, error))
    }

    async fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        self.read("multi_get", keys).await
    }

    async fn multi_set(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        if keys.len() != values.len() {
            return Err(StoreError::LengthMismatch { keys: keys.len(), values: values.len() });
        }
        let names: Vec<_> = keys.iter().map(|key| name(key)).collect();
        let pairs = names.iter().map(Vec::as_slice).zip(values.iter().copied()).collect();
        let done = self.carry_out("multi_set", Request::MultiSet(pairs)).await;
        let largest = keys.iter().zip(values).max_by_key(|(_, value)| value.len());
        done.map_err(|error| match largest {
            Some((key, value)) => too_large(key, value, error),
            None => error,
        })
    }

    async fn queue_push(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let done = self.carry_out("queue_push", Request::QueuePush(&name(key), value)).await;
        done.map_err(|error| too_large(key, value, error))
    }

    async fn queue_pop(&self, key: &[u8], block: bool) -> Result<Vec<u8>> {
        let names = [name(key)];
        let mut backoff = Backoff::default();
        let mut call = self.call("queue_pop", None).await?;
        loop {
            if block {
                call = call.wait(&[key], &names).await?;
            }
            call.send(&[Request::QueuePop(&names[0])]).await?;
            if call.count().await? > 0 {
                let value = call.string().await?;
                call.end();
                return Ok(value);
            }
            if !block {
                call.end();
                return Err(StoreError::QueueEmpty { key: key.to_vec() });
            }
            // Another was faster, or there is a key of that name, which ends every wait at once.
            if call.deadline.wait(tokio::time::sleep(backoff.next(fastrand::f64()))).await.is_none() {
                return Err(call.missed(&[key]));
            }
        }
    }

    async fn queue_len(&self, key: &[u8]) -> Result<u64> {
        let mut call = self.call("queue_len", None).await?;
        call.send(&[Request::QueueLen(&name(key))]).await?;
        let length = call.count().await?;
        call.end();
        Ok(length)
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

    /// The barrier of PyTorch's own client, where the server knows it (torch 2.12), so that they can meet. On older ones, which
    /// end the connection, the one of keys.
    async fn barrier(&self, key: &[u8], world_size: u64, timeout: Option<Duration>) -> Result<()> {
        let many = i64::try_from(world_size).unwrap_or(i64::MAX);
        match self.try_barrier(key, many, timeout).await {
            Err(error) if was_ended(&error) => {
                barrier_of_keys(self.clone_store(), key, world_size, timeout).await
            }
            done => done,
        }
    }
}
