//! Says whose connections are ended, and not more often than anybody wants to read.

use std::fmt::Display;
use std::mem;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Between two lines about one address.
const BETWEEN_LINES: Duration = Duration::from_secs(10);
/// So many addresses have lines of their own in that time. A scan of a whole network is no more news than that.
const MOST: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// Of whom something was said, and until when there is no more; `MOST` at most.
    said: Vec<(IpAddr, Instant)>,
    left_out: usize,
}

impl Complaints {
    pub(super) fn say(&mut self, of: IpAddr, what: impl Display) {
        if let Some(line) = self.line(of, what, Instant::now()) {
            tracing::warn!("{line}");
        }
    }

    /// What is said now, if anything is.
    fn line(&mut self, of: IpAddr, what: impl Display, now: Instant) -> Option<String> {
        self.said.retain(|(_, until)| now < *until);
        if self.said.len() >= MOST || self.said.iter().any(|(address, _)| *address == of) {
            self.left_out += 1;
            return None;
        }
        self.said.push((of, now + BETWEEN_LINES));
        Some(match mem::take(&mut self.left_out) {
            0 => what.to_string(),
            more => format!("{what}; and {more} others since the last such line"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn of_many_the_first_is_told_and_then_how_many_there_were() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        assert_eq!(complaints.line(address(1), "a", now).as_deref(), Some("a"));
        for _ in 0..99 {
            assert_eq!(complaints.line(address(1), "b", now), None);
        }
        let later = now + BETWEEN_LINES;
        let line = complaints.line(address(1), "c", later);
        assert_eq!(line.as_deref(), Some("c; and 99 others since the last such line"));
        assert_eq!(complaints.line(address(1), "d", later + BETWEEN_LINES).as_deref(), Some("d"));
    }

    #[test]
    fn another_address_is_told_at_once_and_a_crowd_of_them_is_counted() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        let told = (0..=u8::MAX).filter(|number| complaints.line(address(*number), "a", now).is_some());
        assert_eq!(told.collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert!(complaints.said.len() <= MOST);
        let line = complaints.line(address(99), "b", now + BETWEEN_LINES);
        assert_eq!(line.as_deref(), Some("b; and 248 others since the last such line"));
    }
}
