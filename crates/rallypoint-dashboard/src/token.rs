//! Who may change a run: whoever has the token. Guessing is slow.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ring::hmac;
use ring::rand::SystemRandom;

/// Wrong tokens of one address within [`WINDOW`]; then it is not listened to until that has passed.
const MOST_WRONG: u32 = 5;
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are remembered. If there are more, all wait.
const MOST_ADDRESSES: usize = 1024;

/// What came of a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    /// With how many wrong ones there were since that was last told of, if it is time to.
    Wrong(Option<u32>),
    /// There were too many wrong ones; it is not even looked at.
    Later(Duration),
    /// There is no token: nobody may.
    ReadOnly,
}

/// The token as no reader of memory dumps or logs finds it, and who has shown wrong ones.
pub(crate) struct Gatekeeper {
    key: Option<(hmac::Key, hmac::Tag)>,
    wrong: Mutex<Wrong>,
}

/// Wrong tokens.
#[derive(Debug, Default)]
struct Wrong {
    /// Of each address, within [`WINDOW`]: how many, and when the first was.
    by: HashMap<IpAddr, (u32, Instant)>,
    /// How many nobody was told of.
    untold: u32,
    told_at: Option<Instant>,
}

impl std::fmt::Debug for Gatekeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gatekeeper").field("has_token", &self.key.is_some()).finish_non_exhaustive()
    }
}

impl Gatekeeper {
    pub(crate) fn new(token: Option<&str>) -> Self {
        let key = token.and_then(|token| {
            // Without randomness there is no key, and nobody may.
            let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()?;
            let tag = hmac::sign(&key, token.as_bytes());
            Some((key, tag))
        });
        Gatekeeper { key, wrong: Mutex::default() }
    }

    /// Whether there is anything to be opened.
    pub(crate) fn may_open(&self) -> bool {
        self.key.is_some()
    }

    /// Judges a token in a time that does not tell how much of it is right.
    pub(crate) fn judge(&self, from: IpAddr, given: Option<&str>, now: Instant) -> Verdict {
        let Some((key, tag)) = &self.key else { return Verdict::ReadOnly };
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.by.retain(|_, (_, first)| now.saturating_duration_since(*first) < WINDOW);
        let known = wrong.by.get(&from).copied();
        let left = |first: Instant| WINDOW.saturating_sub(now.saturating_duration_since(first));
        match known {
            Some((count, first)) if count >= MOST_WRONG => return Verdict::Later(left(first)),
            None if wrong.by.len() >= MOST_ADDRESSES => return Verdict::Later(WINDOW),
            _ => {}
        }
        if given.is_some_and(|given| hmac::verify(key, given.as_bytes(), tag.as_ref()).is_ok()) {
            wrong.by.remove(&from);
            return Verdict::Right;
        }
        wrong.by.entry(from).or_insert((0, now)).0 += 1;
        wrong.untold += 1;
        // Once in a while, whoever they are: they could fill the log.
        if wrong.told_at.is_some_and(|at| now.saturating_duration_since(at) < WINDOW) {
            return Verdict::Wrong(None);
        }
        wrong.told_at = Some(now);
        Verdict::Wrong(Some(std::mem::take(&mut wrong.untold)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const TOKEN: &str = "correct horse battery";

    #[test]
    fn only_the_whole_token_opens() {
        let gate = Gatekeeper::new(Some(TOKEN));
        let now = Instant::now();
        assert_eq!(gate.judge(HERE, Some(TOKEN), now), Verdict::Right);
        for wrong in [None, Some(""), Some("correct horse batter"), Some("correct horse battery ")] {
            assert!(matches!(gate.judge(HERE, wrong, now), Verdict::Wrong(_)), "{wrong:?}");
        }
    }

    #[test]
    fn after_five_wrong_ones_an_address_waits_and_others_do_not() {
        let gate = Gatekeeper::new(Some(TOKEN));
        let now = Instant::now();
        for _ in 0..MOST_WRONG {
            assert!(matches!(gate.judge(HERE, Some("x"), now), Verdict::Wrong(_)));
        }
        assert_eq!(
            gate.judge(HERE, Some(TOKEN), now + Duration::from_secs(20)),
            Verdict::Later(Duration::from_secs(40))
        );
        let other = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(gate.judge(other, Some(TOKEN), now), Verdict::Right);
        assert_eq!(gate.judge(HERE, Some(TOKEN), now + WINDOW), Verdict::Right);
    }

    #[test]
    fn wrong_ones_are_told_of_once_a_minute_and_counted() {
        let gate = Gatekeeper::new(Some(TOKEN));
        let now = Instant::now();
        let from = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(n));
        let told = (0..100).map(|n| gate.judge(from(n), Some("x"), now));
        let told: Vec<_> = told.filter(|verdict| *verdict != Verdict::Wrong(None)).collect();
        assert_eq!(told, [Verdict::Wrong(Some(1))]);
        let later = now + WINDOW;
        assert_eq!(gate.judge(HERE, Some("x"), later), Verdict::Wrong(Some(100)), "99 and this one");
    }

    #[test]
    fn many_addresses_do_not_cost_memory_without_end() {
        let gate = Gatekeeper::new(Some(TOKEN));
        let now = Instant::now();
        let address = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(n));
        for n in 0..MOST_ADDRESSES {
            gate.judge(address(n as u32), Some("x"), now);
        }
        assert_eq!(gate.judge(HERE, Some(TOKEN), now), Verdict::Later(WINDOW));
        assert_eq!(
            gate.judge(address(3), Some(TOKEN), now),
            Verdict::Right,
            "it is known, and has tries left"
        );
    }

    #[test]
    fn without_a_token_nobody_may() {
        let gate = Gatekeeper::new(None);
        assert!(!gate.may_open());
        assert_eq!(gate.judge(HERE, Some(""), Instant::now()), Verdict::ReadOnly);
    }
}
