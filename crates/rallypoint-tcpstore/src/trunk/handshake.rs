//! How a trunk begins: both sides show that they know the secret of the round, and neither says it.
//!
//! ```text
//! server   "RPS" version(1)  nonce(16)
//! proxy    "RPS" version(1)  nonce(16)  proof(32)
//! server   "RPS" version(1)  proof(32)                or it closes the connection
//! ```
//!
//! A proof is an HMAC-SHA256, keyed by the secret, of who proves and of both nonces. The secret stands in the round's store, so
//! whoever can read that may come in, as any node of the round may. It keeps strangers out; what is said afterwards can be
//! read along by who is on the way, unless there is TLS below.

use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

const MAGIC: [u8; 4] = *b"RPS\x01";
const NONCE: usize = 16;
const PROOF: usize = 32;

pub(crate) const GREETING: usize = 4 + NONCE;
pub(crate) const ANSWER: usize = 4 + NONCE + PROOF;
pub(crate) const WELCOME: usize = 4 + PROOF;

/// What the members of a round know, and nobody else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 32]);

/// This is no secret: it has 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret of the workers' store is not 64 hexadecimal digits")]
pub struct SecretError;

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// A new one. None where the system has no randomness.
    #[must_use]
    pub fn random() -> Option<Self> {
        random().map(Secret)
    }

    /// As it stands in a round's store.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// From there.
    ///
    /// # Errors
    ///
    /// If it is none.
    pub fn from_hex(text: &str) -> Result<Self, SecretError> {
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() {
            return Err(SecretError);
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(SecretError);
            *byte = (digit(digits[0])? * 16 + digit(digits[1])?) as u8;
        }
        Ok(Secret(bytes))
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}

/// Who proves that it knows the secret.
#[derive(Clone, Copy)]
enum Side {
    Proxy,
    Server,
}

fn said(by: Side, server: &[u8; NONCE], proxy: &[u8; NONCE]) -> [u8; 1 + 2 * NONCE] {
    let mut bytes = [0; 1 + 2 * NONCE];
    bytes[0] = match by {
        Side::Proxy => b'p',
        Side::Server => b's',
    };
    bytes[1..=NONCE].copy_from_slice(server);
    bytes[1 + NONCE..].copy_from_slice(proxy);
    bytes
}

/// The server's side, for one trunk.
#[derive(Debug)]
pub(crate) struct Door {
    nonce: [u8; NONCE],
}

impl Door {
    /// None where the system has no randomness.
    pub(crate) fn new() -> Option<Self> {
        random().map(|nonce| Door { nonce })
    }

    pub(crate) fn greeting(&self) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Whether an answer can begin so.
    pub(crate) fn may_be_answer(start: &[u8]) -> bool {
        start.iter().zip(&MAGIC).all(|(byte, wanted)| byte == wanted)
    }

    /// What is sent to one who knows the secret; none for one who does not. It takes as long for any that is wrong.
    pub(crate) fn welcome(&self, answer: &[u8; ANSWER], secret: &Secret) -> Option<[u8; WELCOME]> {
        let nonce: [u8; NONCE] = answer[4..4 + NONCE].try_into().ok()?;
        let key = secret.key();
        hmac::verify(&key, &said(Side::Proxy, &self.nonce, &nonce), &answer[4 + NONCE..]).ok()?;
        let proof = hmac::sign(&key, &said(Side::Server, &self.nonce, &nonce));
        let mut bytes = [0; WELCOME];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..].copy_from_slice(proof.as_ref());
        Some(bytes)
    }
}

/// The proxy's side.
#[derive(Debug)]
pub(crate) struct Guest {
    server: [u8; NONCE],
    own: [u8; NONCE],
}

impl Guest {
    /// None where this is no greeting of a server, or there is no randomness.
    pub(crate) fn new(greeting: &[u8; GREETING]) -> Option<Self> {
        let server = greeting[4..].try_into().ok().filter(|_| greeting[..4] == MAGIC)?;
        Some(Guest { server, own: random()? })
    }

    pub(crate) fn answer(&self, secret: &Secret) -> [u8; ANSWER] {
        let proof = hmac::sign(&secret.key(), &said(Side::Proxy, &self.server, &self.own));
        let mut bytes = [0; ANSWER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..4 + NONCE].copy_from_slice(&self.own);
        bytes[4 + NONCE..].copy_from_slice(proof.as_ref());
        bytes
    }

    /// Whether the server knows the secret too.
    pub(crate) fn is_welcome(&self, welcome: &[u8; WELCOME], secret: &Secret) -> bool {
        let said = said(Side::Server, &self.server, &self.own);
        welcome[..4] == MAGIC && hmac::verify(&secret.key(), &said, &welcome[4..]).is_ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn only_who_knows_the_secret_is_let_in_and_only_once_with_one_answer() {
        let (secret, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let (door, next) = (Door::new().unwrap(), Door::new().unwrap());
        let guest = Guest::new(&door.greeting()).unwrap();
        let answer = guest.answer(&secret);
        assert!(Door::may_be_answer(&answer) && Door::may_be_answer(b"RP") && !Door::may_be_answer(&[0]));
        let welcome = door.welcome(&answer, &secret).unwrap();
        assert!(guest.is_welcome(&welcome, &secret));
        assert!(!guest.is_welcome(&welcome, &other), "a server of another round");
        assert_eq!(door.welcome(&guest.answer(&other), &secret), None);
        assert_eq!(next.welcome(&answer, &secret), None, "an answer that somebody read along");
        // What the server proves is of no use for a guest.
        let mut echoed = answer;
        echoed[20..].copy_from_slice(&welcome[4..]);
        assert_eq!(door.welcome(&echoed, &secret), None);
        assert!(Guest::new(&[0; GREETING]).is_none());
    }

    #[test]
    fn a_secret_is_written_in_hexadecimal_digits_and_shown_nowhere() {
        let secret = Secret::random().unwrap();
        assert_eq!(Secret::from_hex(&secret.to_hex()), Ok(secret));
        assert_eq!(format!("{secret:?}"), "Secret");
        for wrong in ["", "00", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(Secret::from_hex(wrong), Err(SecretError));
        }
    }
}
