//! How much clients may make the server hold.

use std::time::Duration;

/// How much clients may make the server hold. What goes beyond ends a connection, never the server.
///
/// The defaults for a key, a value and a list of keys are those of PyTorch's libuv server. The others are ours, since
/// PyTorch's servers have no bound on what they hold in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a value that is sent. What grows by `append` is bounded by `stored` alone.
    pub value: usize,
    /// Keys in one message.
    pub keys: usize,
    /// Bytes of one message, whatever is in it.
    pub message: usize,
    /// Bytes of all keys and values and queues together, with something for each entry.
    pub stored: usize,
    /// Bytes of all messages that have come in half and of all waits together.
    pub pending: usize,
    /// Connections that have sent nothing whole yet. Clients do so at once, so it takes a flood to have so many; beyond, the
    /// oldest of them makes room.
    pub newcomers: usize,
    /// How long a connection may have sent nothing whole yet; at most twice as long.
    ///
    /// Clients send at once. But PyTorch's looks up a name before that, which can take it many seconds.
    pub silence: Duration,
    /// Bytes of a connection's replies that it has not read, from which on no more of its requests are carried out.
    pub unread: usize,
    /// Bytes of all values together that are in replies that somebody has not read, and stored no longer.
    pub outdated: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            key: 8 << 10,
            value: 8 << 20,
            keys: 128 << 10,
            message: 64 << 20,
            stored: 1 << 30,
            pending: 512 << 20,
            newcomers: 16 << 10,
            silence: Duration::from_secs(30),
            unread: 64 << 10,
            outdated: 512 << 20,
        }
    }
}
