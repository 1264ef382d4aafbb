//! The contract: what every store promises, whatever it is kept in.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::error::{Result, StoreError};

/// How long `get`, `wait` and the like wait, unless told otherwise; the same as c10d's.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A key-value store that the nodes of a job share, with the meaning of PyTorch's c10d `Store`.
///
/// Keys and values are any bytes, empty ones too. Every operation is atomic; `multi_set` as far as one request
/// reaches. Operations that wait do so until the store's [`timeout`](Store::timeout), and so do retries while
/// the server is away.
///
/// Queues are apart from keys: they are not counted or listed, and deleting a key of the same name leaves them
/// alone; only `check` and `wait` see a queue that is not empty as a key that is there.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Stores `value` under `key`, over whatever was there.
    async fn set(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// The value of `key`; waits for it to be there.
    async fn get(&self, key: &[u8]) -> Result<Vec<u8>>;

    /// Adds `delta` to the number under `key` (0 if there is none) and returns the sum. Each sum of a
    /// counter is returned once. Sums wrap around at the ends of 64 bits.
    ///
    /// A value is a number as C's `strtoll` reads it: leading white space and what follows the digits do not
    /// matter. Anything else is [`StoreError::NotANumber`].
    async fn add(&self, key: &[u8], delta: i64) -> Result<i64>;

    /// Waits until all of `keys` are there, for `timeout` if given.
    async fn wait(&self, keys: &[&[u8]], timeout: Option<Duration>) -> Result<()>;

    /// Whether all of `keys` are there now.
    async fn check(&self, keys: &[&[u8]]) -> Result<bool>;

    /// Stores `desired` if the value of `key` is `expected`, or if there is none and `expected` is empty.
    ///
    /// Returns the value after the call; where there is none, `expected`.
    async fn compare_set(&self, key: &[u8], expected: &[u8], desired: &[u8]) -> Result<Vec<u8>>;

    /// Removes `key`; says whether it was there.
    async fn delete_key(&self, key: &[u8]) -> Result<bool>;

    /// The number of keys.
    async fn num_keys(&self) -> Result<u64>;

    /// All keys, sorted.
    async fn list_keys(&self) -> Result<Vec<Vec<u8>>>;

    /// Puts `value` at the end of the value of `key`.
    async fn append(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// The values of `keys`, in their order; waits for all of them to be there.
    async fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Vec<u8>>>;

    /// Stores each value under its key. Of a key given twice, the last value stays.
    async fn multi_set(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()>;

    /// Puts `value` at the end of the queue `key`.
    async fn queue_push(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Takes the value at the head of the queue `key`, to which no other pop then gets. With `block` it waits
    /// for one; without, an empty queue is [`StoreError::QueueEmpty`].
    async fn queue_pop(&self, key: &[u8], block: bool) -> Result<Vec<u8>>;

    /// The length of the queue `key`.
    async fn queue_len(&self, key: &[u8]) -> Result<u64>;

    /// How long operations wait.
    fn timeout(&self) -> Duration;

    /// Sets how long operations of this store wait; clones made before keep theirs.
    fn set_timeout(&self, timeout: Duration);

    /// Another handle on the same data, with a timeout of its own.
    fn clone_store(&self) -> Box<dyn Store>;

    /// Waits until `world_size` callers have come to the barrier `key`, for `timeout` if given. A barrier
    /// that has opened stays open.
    async fn barrier(&self, key: &[u8], world_size: u64, timeout: Option<Duration>) -> Result<()> {
        barrier_of_keys(self.clone_store(), key, world_size, timeout).await
    }
}

/// A barrier that any store can have: who comes is counted in one key, and the last one sets another.
pub(crate) async fn barrier_of_keys(
    store: Box<dyn Store>,
    key: &[u8],
    world_size: u64,
    timeout: Option<Duration>,
) -> Result<()> {
    let after = timeout.unwrap_or_else(|| store.timeout());
    store.set_timeout(after);
    let began = Instant::now();
    let members = [key, b"/num_members"].concat();
    let last = [key, b"/last_member"].concat();
    let arrived = store.add(&members, 1).await?;
    // Not "equal": whoever comes after the last one must not wait for what has happened.
    if u64::try_from(arrived).is_ok_and(|arrived| arrived >= world_size) {
        store.set(&last, b"1").await?;
    }
    let left = after.saturating_sub(began.elapsed());
    store.wait(&[&last], Some(left)).await.map_err(|error| match error {
        StoreError::Timeout { .. } => {
            StoreError::Timeout { what: "barrier", keys: vec![key.to_vec()], after }
        }
        error => error,
    })
}

/// The number at the beginning of `value`, as C's `strtoll` finds it.
pub(crate) fn parse_number(key: &[u8], value: &[u8]) -> Result<i64> {
    let error = || StoreError::NotANumber { key: key.to_vec(), value: value.to_vec() };
    // C's white space has one more than ASCII's here: the vertical tab.
    let space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let text = &value[value.iter().take_while(|byte| space(byte)).count()..];
    let digits = text.iter().skip(usize::from(matches!(text.first(), Some(b'+' | b'-'))));
    let sign = text.len() - digits.len();
    let end = sign + digits.take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..end]).ok().and_then(|text| text.parse().ok()).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_strtoll_reads_them() {
        for (value, number) in [
            ("0", 0),
            ("-7", -7),
            ("+5", 5),
            (" \t\n\x0b41abc", 41),
            ("12 13", 12),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_number(b"k", value.as_bytes()).unwrap(), number, "{value:?}");
        }
        for value in ["", "abc", "-", "+-1", " ", "9223372036854775808"] {
            assert!(
                matches!(parse_number(b"k", value.as_bytes()), Err(StoreError::NotANumber { .. })),
                "{value:?}"
            );
        }
    }
}
