//! One operation of a store: its connection, its deadline, and what is said when it fails.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rallypoint_tcpstore::wire::{READY, Request, STOP_WAITING, WAIT_CANCELED};
use uuid::Uuid;

use super::borrowed;
use super::connection::{Connection, ended, other_protocol};
use crate::deadline::Deadline;
use crate::error::{Result, StoreError};

/// A server that is alive has answered after this time, so also who has no time to wait gives it as much.
const TO_ANSWER: Duration = Duration::from_secs(5);

/// How many connections are kept for later.
const KEPT: usize = 16;

/// After what time a wait is asked for again, at first and later.
const FIRST_STEP: Duration = Duration::from_secs(1);
const LAST_STEP: Duration = Duration::from_secs(30);

/// How many keys are looked at in one go.
const AT_ONCE: usize = 512;

/// The connections of a store and its clones.
#[derive(Debug)]
pub(super) struct Pool {
    address: String,
    /// Nothing is asked on it, so nothing on it is refused: if it ends, the server has gone, and the data with it. What
    /// listens at the address afterwards is another store.
    first: Connection,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    pub(super) fn new(address: String, first: Connection) -> Self {
        Pool { address, first, idle: Mutex::default() }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    fn idle(&self) -> Option<Connection> {
        // One that a server has ended is of no use. The others are as good as new.
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(Connection::is_open)
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(connection);
        }
    }
}

/// What failed on the server at this address.
pub(super) fn failed(address: &str, what: &'static str, source: io::Error) -> StoreError {
    StoreError::Server { address: address.to_owned(), what, source }
}

/// What `future` gives, unless that takes too long.
pub(super) async fn within<T>(limit: Duration, future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late =
        || io::Error::new(ErrorKind::TimedOut, format!("no answer within {:.3} s", limit.as_secs_f64()));
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| Err(late()))
}

/// One operation. If it is dropped before its [`end`](Call::end), so is the connection: something may still come on it.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pool: &'a Pool,
    what: &'static str,
    pub(super) deadline: Deadline,
    connection: Connection,
}

impl<'a> Call<'a> {
    pub(super) async fn begin(pool: &'a Pool, what: &'static str, deadline: Deadline) -> Result<Self> {
        let connection = match pool.idle() {
            Some(connection) => Ok(connection),
            None => within(deadline.left().max(TO_ANSWER), Connection::open(&pool.address)).await,
        };
        // Looked at last, so that no connection to the next server gets through.
        let connection = if pool.first.is_open() { connection } else { Err(ended()) };
        let connection = connection.map_err(|source| failed(&pool.address, what, source))?;
        Ok(Call { pool, what, deadline, connection })
    }

    /// The operation is done, and nothing more comes on its connection.
    pub(super) fn end(self) {
        self.pool.put_back(self.connection);
    }

    fn limit(&self) -> Duration {
        self.deadline.left().max(TO_ANSWER)
    }

    fn told<T>(&self, outcome: io::Result<T>) -> Result<T> {
        outcome.map_err(|source| failed(&self.pool.address, self.what, source))
    }

    pub(super) async fn send(&mut self, requests: &[Request<'_>]) -> Result<()> {
        let outcome = within(self.limit(), self.connection.send(requests)).await;
        self.told(outcome)
    }

    async fn byte(&mut self) -> Result<u8> {
        let outcome = within(self.limit(), self.connection.byte()).await;
        self.told(outcome)
    }

    pub(super) async fn number(&mut self) -> Result<i64> {
        let outcome = within(self.limit(), self.connection.number()).await;
        self.told(outcome)
    }

    pub(super) async fn count(&mut self) -> Result<u64> {
        let outcome = within(self.limit(), self.connection.count()).await;
        self.told(outcome)
    }

    pub(super) async fn string(&mut self) -> Result<Vec<u8>> {
        let outcome = within(self.limit(), self.connection.string()).await;
        self.told(outcome)
    }

    /// Sends a request that has no reply, and waits until it was carried out: the reply to the next one tells.
    pub(super) async fn carry_out(&mut self, request: Request<'_>) -> Result<()> {
        self.send(&[request, Request::Check(Vec::new())]).await?;
        self.is_ready().await.map(drop)
    }

    pub(super) async fn is_ready(&mut self) -> Result<bool> {
        Ok(self.byte().await? == READY)
    }

    /// Waits for all of `keys`, which have these `names` on the wire.
    ///
    /// It asks again now and then. PyTorch's older server does not tell of a `compare_set`, and a value that comes into a
    /// queue is told to one, who may just have gone.
    pub(super) async fn wait(mut self, keys: &[&[u8]], names: &[Vec<u8>]) -> Result<Self> {
        let mut step = FIRST_STEP;
        loop {
            self.send(&[Request::Wait(borrowed(names))]).await?;
            if self.is_told_to_go_on(self.deadline.sooner(step)).await? {
                return Ok(self);
            }
            if self.deadline.is_over() {
                break;
            }
            step = LAST_STEP.min(step * 2);
        }
        let missing = self.missing(keys, names).await?;
        if missing.is_empty() { Ok(self) } else { Err(self.missed(&missing)) }
    }

    /// Waits for the reply to a wait, and ends the wait at the deadline; false if it was ended so.
    pub(super) async fn is_told_to_go_on(&mut self, deadline: Deadline) -> Result<bool> {
        if let Some(byte) = deadline.wait(self.connection.byte()).await {
            return match self.told(byte)? {
                STOP_WAITING => Ok(true),
                _ => self.told(Err(other_protocol())),
            };
        }
        self.send(&[Request::CancelWait]).await?;
        match self.byte().await? {
            WAIT_CANCELED => return Ok(false),
            STOP_WAITING => {}
            _ => return self.told(Err(other_protocol())),
        }
        // They have come just now, or were there all the time, and there was no time to be told.
        match self.byte().await? {
            WAIT_CANCELED => Ok(true),
            _ => self.told(Err(other_protocol())),
        }
    }

    /// The value of a key, if there is one. `GET` does not tell a key that is not there from an empty value, and to be
    /// there may mean a queue of that name. A comparison with what nobody has stored tells: it sets nothing, and gives
    /// back what was expected if there is no value.
    pub(super) async fn read(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let nobodys = Uuid::new_v4();
        let nobodys = nobodys.as_bytes();
        self.send(&[Request::CompareSet { key, expected: nobodys, desired: nobodys }]).await?;
        let value = self.string().await?;
        Ok((value != nobodys).then_some(value))
    }

    /// Those of `keys` that are not there.
    async fn missing<'k>(&mut self, keys: &[&'k [u8]], names: &[Vec<u8>]) -> Result<Vec<&'k [u8]>> {
        let mut missing = Vec::new();
        for (keys, names) in keys.chunks(AT_ONCE).zip(names.chunks(AT_ONCE)) {
            let checks: Vec<_> = names.iter().map(|name| Request::Check(vec![name.as_slice()])).collect();
            self.send(&checks).await?;
            for key in keys {
                if !self.is_ready().await? {
                    missing.push(*key);
                }
            }
        }
        Ok(missing)
    }

    /// Ends the operation, which has waited for these keys in vain.
    pub(super) fn missed(self, keys: &[&[u8]]) -> StoreError {
        let error = self.deadline.missed(self.what, keys);
        self.end();
        error
    }
}
