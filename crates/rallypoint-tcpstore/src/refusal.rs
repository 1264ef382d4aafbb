//! Why a connection is ended by the server.

/// Why a connection is ended by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It did not begin as a client of a `TCPStore` does.
    #[error("this is no client of a TCPStore")]
    NotTcpStore,
    /// It did not say in time that it is a client.
    #[error("it has connected and not said what it is")]
    Silent,
    /// Others have connected and want its place, and it has not said that it is a client.
    #[error("it has connected and not said what it is, and there is no room for more of these")]
    TooManyNewcomers,
    /// A message of this number is not known.
    #[error("there is no message of the number {0}")]
    UnknownMessage(u8),
    /// A key is too long.
    #[error("a key of {size} bytes, where {limit} is the most")]
    KeyTooLong {
        /// The bytes it would have.
        size: u64,
        /// The most it may have.
        limit: usize,
    },
    /// A value is too long.
    #[error("a value of {size} bytes, where {limit} is the most")]
    ValueTooLong {
        /// The bytes it would have.
        size: u64,
        /// The most it may have.
        limit: usize,
    },
    /// A message names too many keys.
    #[error("a message with {count} keys, where {limit} is the most")]
    TooManyKeys {
        /// How many it says it has.
        count: u64,
        /// The most it may have.
        limit: usize,
    },
    /// A message is too long.
    #[error("a message of more than {limit} bytes")]
    MessageTooLong {
        /// The most it may have.
        limit: usize,
    },
    /// Something was to be added to a value that is not a number of 64 bits.
    #[error("something was to be added to a value that is not a number")]
    NotANumber,
    /// The store has no room for what is written.
    #[error("the store is full: it holds no more than {limit} bytes")]
    StoreFull {
        /// The most it holds.
        limit: usize,
    },
    /// Clients together have sent too much that waits, and this one the most.
    #[error(
        "too much is waiting: half messages and waits of more than {limit} bytes, and this connection has the most"
    )]
    TooMuchPending {
        /// The most that all may have together.
        limit: usize,
    },
    /// Clients together do not read replies with values that are stored no longer, and this one has the most unread.
    #[error(
        "replies are not read: they hold more than {limit} bytes, and this connection has the most unread"
    )]
    TooMuchUnread {
        /// The most that all may have together.
        limit: usize,
    },
}
