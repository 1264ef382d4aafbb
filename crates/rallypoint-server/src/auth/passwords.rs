//! Hashes of passwords. They are made to take long, so they are made beside all else, and few at a time.

use std::fmt;
use std::sync::Arc;

use rallypoint_core::Token;
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;

use super::AuthError;
use crate::admission::Account;
use crate::mvcc::Error;

/// What one costs, as in etcd: some tens of milliseconds.
const COST: u32 = 10;
/// Those who may wait for theirs, on all connections.
const MAX_WAITING: usize = 1024;
/// What bcrypt looks at.
const MAX_BYTES: usize = 72;

/// The hash of a password, in bcrypt's form.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hash(Vec<u8>);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash")
    }
}

impl Hash {
    /// One that was made before.
    pub(crate) fn known(bytes: &[u8]) -> Self {
        Hash(bytes.to_vec())
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Where hashes are made. Half of the processor at most is busy with them, however many ask.
#[derive(Debug)]
pub(crate) struct Passwords {
    places: Semaphore,
    at_work: Arc<Semaphore>,
    token: Option<Known>,
}

/// The token that this server was given. All nodes of a run show it at once, and there may be thousands: it is known without
/// its hash.
struct Known {
    hash: Hash,
    key: hmac::Key,
    tag: hmac::Tag,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Known")
    }
}

impl Known {
    /// None without randomness.
    fn new(token: &Token, hash: Hash) -> Option<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()?;
        let tag = hmac::sign(&key, token.as_str().as_bytes());
        Some(Known { hash, key, tag })
    }

    /// In a time that does not tell how much of it is right.
    fn is(&self, password: &str, hash: &Hash) -> bool {
        self.hash == *hash && hmac::verify(&self.key, password.as_bytes(), self.tag.as_ref()).is_ok()
    }
}

impl Default for Passwords {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let at_work = Arc::new(Semaphore::new((cores / 2).max(1)));
        Passwords { places: Semaphore::new(MAX_WAITING), at_work, token: None }
    }
}

impl Passwords {
    /// With a token, and its hash; `before`, if it is that.
    pub(crate) fn with_token(token: &Token, before: Option<Hash>) -> std::io::Result<(Self, Hash)> {
        let is_of_token = |hash: &Hash| {
            std::str::from_utf8(&hash.0)
                .is_ok_and(|hash| bcrypt::verify(token.as_str(), hash).unwrap_or(false))
        };
        let hash = match before.filter(is_of_token) {
            Some(hash) => hash,
            None => Hash(bcrypt::hash(token.as_str(), COST).map_err(std::io::Error::other)?.into_bytes()),
        };
        Ok((Passwords { token: Known::new(token, hash.clone()), ..Passwords::default() }, hash))
    }

    /// The hash of a password, with a salt of its own.
    pub(crate) async fn hash(&self, account: &Account, password: String) -> Result<Hash, Error> {
        if password.len() > MAX_BYTES {
            return Err(AuthError::PasswordTooLong.into());
        }
        let made = self.work(Some(account), move || bcrypt::hash(password, COST)).await?;
        made.map(|hash| Hash(hash.into_bytes())).map_err(|_| Error::TooManyRequests)
    }

    /// Whether a password has this hash.
    pub(crate) async fn matches(
        &self,
        account: Option<&Account>,
        password: String,
        hash: Hash,
    ) -> Result<bool, Error> {
        if self.token.as_ref().is_some_and(|token| token.is(&password, &hash)) {
            return Ok(true);
        }
        let Ok(hash) = String::from_utf8(hash.0) else { return Ok(false) };
        // What is not a hash matches nothing.
        self.work(account, move || bcrypt::verify(password, &hash).unwrap_or(false)).await
    }

    /// Each connection has one at a time, and all together few.
    async fn work<T: Send + 'static>(
        &self,
        account: Option<&Account>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let _place = self.places.try_acquire().map_err(|_| Error::TooManyRequests)?;
        let _turn = match account {
            Some(account) => Some(account.turn().await),
            None => None,
        };
        let at_work = Arc::clone(&self.at_work).acquire_owned().await.expect("it is never closed");
        // It goes on if nobody waits for it any more, and has its place until it has ended.
        let done = tokio::task::spawn_blocking(move || (work(), at_work).0).await;
        done.map_err(|_| Error::TooManyRequests)
    }
}
