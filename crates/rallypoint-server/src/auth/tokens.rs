//! Tokens: what a client shows instead of its password, for as long as it goes on showing it.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

/// Tokens at a time. Over it the one that ends first goes: one of the same user, if it has any.
const MAX_TOKENS: usize = 1 << 16;

/// All tokens that were given out.
#[derive(Debug)]
pub(super) struct Tokens {
    by_text: HashMap<String, Token>,
    /// How long one lives that is not shown.
    ttl: Duration,
}

#[derive(Debug)]
struct Token {
    user: String,
    /// Moves on whenever it is shown.
    deadline: Cell<Instant>,
}

impl Default for Tokens {
    fn default() -> Self {
        // As etcd's.
        Tokens { by_text: HashMap::new(), ttl: Duration::from_secs(300) }
    }
}

impl Tokens {
    /// Those that are given out or shown from now on live for so long.
    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// A token for a user that nobody can guess.
    pub(super) fn assign(&mut self, user: &str, index: u64, now: Instant) -> String {
        if self.by_text.len() >= MAX_TOKENS {
            self.make_room(user, now);
        }
        let text = format!("{}.{index}", Uuid::new_v4().simple());
        self.by_text
            .insert(text.clone(), Token { user: user.to_owned(), deadline: Cell::new(now + self.ttl) });
        text
    }

    /// Whose token it is, which lives on.
    pub(super) fn user(&self, text: &[u8], now: Instant) -> Option<&str> {
        let token = self.by_text.get(std::str::from_utf8(text).ok()?)?;
        if token.deadline.get() <= now {
            return None;
        }
        token.deadline.set(now + self.ttl);
        Some(&token.user)
    }

    /// Those of a user are no longer good.
    pub(super) fn forget(&mut self, user: &str) {
        self.by_text.retain(|_, token| token.user != user);
    }

    pub(super) fn clear(&mut self) {
        self.by_text.clear();
    }

    fn make_room(&mut self, user: &str, now: Instant) {
        self.by_text.retain(|_, token| token.deadline.get() > now);
        if self.by_text.len() < MAX_TOKENS {
            return;
        }
        let first = |own: bool| {
            let candidates = self.by_text.iter().filter(|(_, token)| !own || token.user == user);
            candidates.min_by_key(|(_, token)| token.deadline.get()).map(|(text, _)| text.clone())
        };
        if let Some(text) = first(true).or_else(|| first(false)) {
            self.by_text.remove(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lives_for_as_long_as_it_is_shown() {
        const TTL: Duration = Duration::from_secs(7);
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        assert_eq!(tokens.ttl(), Duration::from_secs(300));
        tokens.set_ttl(TTL);
        let (one, other) = (tokens.assign("u", 1, now), tokens.assign("u", 1, now));
        assert_ne!(one, other);
        let later = now + TTL - Duration::from_secs(1);
        assert_eq!(tokens.user(one.as_bytes(), later), Some("u"));
        assert_eq!(tokens.user(one.as_bytes(), now + TTL), Some("u"));
        assert_eq!(tokens.user(other.as_bytes(), now + TTL), None);
        tokens.forget("u");
        assert_eq!(tokens.user(one.as_bytes(), now + TTL), None);
    }

    #[test]
    fn who_takes_too_many_loses_its_own() {
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        let good = tokens.assign("good", 1, now);
        let first = tokens.assign("greedy", 1, now);
        for _ in 0..MAX_TOKENS {
            tokens.assign("greedy", 1, now + Duration::from_secs(1));
        }
        assert_eq!(tokens.by_text.len(), MAX_TOKENS);
        let at = now + Duration::from_secs(2);
        assert_eq!(
            (tokens.user(good.as_bytes(), at), tokens.user(first.as_bytes(), at)),
            (Some("good"), None)
        );
    }
}
