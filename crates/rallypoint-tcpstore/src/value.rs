//! Values that the store and replies share, and the count of what is alive of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Values up to this length are copied into a reply: that is cheaper than to share them.
const COPIED: usize = 1 << 10;

/// The bytes of all values that are alive, stored or only in replies that somebody has not read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alive(Arc<AtomicUsize>);

impl Alive {
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value. It is counted as long as it lives.
#[derive(Debug)]
pub(crate) struct Value {
    data: Vec<u8>,
    alive: Alive,
}

impl Value {
    pub(crate) fn new(data: Vec<u8>, alive: &Alive) -> Self {
        alive.0.fetch_add(data.len(), Ordering::Relaxed);
        Value { data, alive: alive.clone() }
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    pub(crate) fn append(&mut self, more: &[u8]) {
        self.alive.0.fetch_add(more.len(), Ordering::Relaxed);
        self.data.extend_from_slice(more);
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.alive.0.fetch_sub(self.data.len(), Ordering::Relaxed);
    }
}

/// Bytes to send.
#[derive(Clone, Debug)]
pub struct Bytes(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Own(Vec<u8>),
    /// A value of the store: ten thousand clients that read it do not need it ten thousand times.
    Shared(Arc<Value>),
}

impl Bytes {
    /// Appends the bytes of `more`, if neither is shared with the store.
    ///
    /// # Errors
    ///
    /// `more`, if it was not appended.
    pub fn merge(&mut self, more: Bytes) -> Result<(), Bytes> {
        match (&mut self.0, more.0) {
            (Kind::Own(bytes), Kind::Own(more)) => {
                bytes.extend_from_slice(&more);
                Ok(())
            }
            (_, more) => Err(Bytes(more)),
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes(Kind::Own(bytes))
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Kind::Own(bytes) => bytes,
            Kind::Shared(value) => value.data(),
        }
    }
}

/// A reply that is being put together.
#[derive(Debug, Default)]
pub(crate) struct Reply(Vec<Bytes>);

impl Reply {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        match self.0.last_mut() {
            Some(Bytes(Kind::Own(last))) => last.extend_from_slice(bytes),
            _ => self.0.push(Bytes(Kind::Own(bytes.to_vec()))),
        }
    }

    pub(crate) fn i64(&mut self, number: i64) {
        self.bytes(&number.to_le_bytes());
    }

    pub(crate) fn length(&mut self, length: usize) {
        self.bytes(&(length as u64).to_le_bytes());
    }

    /// Bytes with their length before them.
    pub(crate) fn string(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.bytes(bytes);
    }

    pub(crate) fn value(&mut self, value: &Arc<Value>) {
        self.length(value.data().len());
        if value.data().len() <= COPIED {
            self.bytes(value.data());
        } else {
            self.0.push(Bytes(Kind::Shared(Arc::clone(value))));
        }
    }

    /// What is to be sent. A long list is counted like a value that is stored no longer.
    pub(crate) fn into_parts(self, alive: &Alive) -> impl Iterator<Item = Bytes> {
        self.0.into_iter().map(|part| match part.0 {
            Kind::Own(bytes) if bytes.len() > COPIED => {
                Bytes(Kind::Shared(Arc::new(Value::new(bytes, alive))))
            }
            kind => Bytes(kind),
        })
    }
}
