//! What a member may be told of its group, and which errors it may end with: for what was done, within what time.
//!
//! | it is told | and that is so if |
//! | --- | --- |
//! | `Waiting` | so many others ask for a round, whom its own round was not the answer to |
//! | `Left` | that member asks for another round, or leaves, before |
//! | `MemberReplaced` | that member was followed by another process of its name; or by one before a snapshot was restored |
//! | `Died` | that member was killed, or ended; or was kept silent for so long that its lease may have ended; or an earlier process of its name has ended, and stood in a snapshot that was restored. A silence of etcd alone is nobody's death |
//! | `Excluded` | there is a later round without it, and when that was formed it could not hear of it: it was silent itself, or etcd was harmed, up to a few seconds before |
//! | `StateLost` | etcd lost data, a few seconds before at most |
//! | `Replaced` | a later process of its name was started, at that address |

use std::time::Duration;

use crate::harm::Matter;
use crate::history::{History, Life, Seat};
use crate::times::{LAST_CALL, LEASE};

/// A member that is told something.
pub(crate) struct Told<'a> {
    history: &'a History,
    process: usize,
    at: Duration,
    seat: &'a Seat,
    /// When its round was first heard of.
    began: Duration,
}

/// Where it holds: why not, otherwise.
fn unless(holds: bool, why: &str) -> Option<String> {
    (!holds).then(|| why.to_owned())
}

impl<'a> Told<'a> {
    /// None for a process that was never in a round.
    pub(crate) fn new(history: &'a History, process: usize, at: Duration) -> Option<Self> {
        let seat = history.lives[process].seat_at(at)?;
        Some(Told { history, process, at, seat, began: history.began(&seat.plan)? })
    }

    /// Why it is not so, if it is not.
    pub(crate) fn lie(&self, change: &str) -> Option<String> {
        let kind = change.split([' ', '{']).next().unwrap_or_default();
        let name = change.split('"').nth(1).unwrap_or_default();
        let number = change.rsplit('"').next().unwrap_or_default();
        let number: String = number.chars().filter(char::is_ascii_digit).collect();
        let number = number.parse::<u64>().ok();
        match kind {
            "Waiting" => unless(
                number.is_some_and(|count| count <= self.others_waiting()),
                &format!("{} wait", self.others_waiting()),
            ),
            "Left" => self
                .no_such_member(name, number)
                .or_else(|| unless(self.has_left(name), "it has neither left nor asked for a round")),
            "Died" => self.no_such_member(name, number).or_else(|| {
                unless(self.may_be_dead(name), "it lives, and nothing was done to it that ends a lease")
            }),
            "MemberReplaced" => self
                .no_such_member(name, number)
                .or_else(|| unless(self.is_followed(name), "no other process has its name")),
            "Excluded" => self.is_in_the_last_round(),
            "StateLost" => unless(self.history.harm.is_of(Matter::Loss, self.at), "nothing was lost"),
            "Replaced" => unless(self.is_replaced_at(name), "nobody has taken its name there"),
            _ => Some("nobody did such a thing".to_owned()),
        }
    }

    fn no_such_member(&self, name: &str, rank: Option<u64>) -> Option<String> {
        let sits = |life: &&Life| {
            life.seats.iter().any(|seat| seat.plan == self.seat.plan && Some(seat.rank) == rank)
        };
        let sits = self.history.lives.iter().find(sits);
        let other = sits.filter(|life| life.name != name)?;
        Some(format!("that was {}'s rank", other.name))
    }

    /// How many ask for a round that is not its own.
    fn others_waiting(&self) -> u64 {
        let lives = self.history.lives.iter().enumerate().filter(|(process, _)| *process != self.process);
        let waits = |life: &Life| life.asks_past(&self.seat.plan, self.began, self.at).is_some();
        lives.filter(|(_, life)| waits(life)).count() as u64
    }

    fn has_left(&self, name: &str) -> bool {
        self.history.named(name).any(|(_, life)| {
            // It may have been a member without knowing so.
            let asks = life.asks_past(&self.seat.plan, self.began, self.at);
            let is_member = life.was_in(&self.seat.plan) || asks.is_some_and(|from| from < self.began);
            let leaves = life.gone.is_some_and(|gone| gone <= self.at);
            is_member && (asks.is_some() || leaves)
        })
    }

    /// When something that this round is told of can have happened: a node may have been dead for most of a lease when
    /// the round was formed.
    fn from(&self) -> Duration {
        self.began.saturating_sub(LEASE)
    }

    fn is_news(&self, then: Duration) -> bool {
        then >= self.from() && (then..=self.history.harm.known_by(then)).contains(&self.at)
    }

    fn is_followed(&self, name: &str) -> bool {
        let restored = self.history.harm.restored_between(self.from(), self.at);
        let later = self.history.named(name).skip(1);
        later.into_iter().any(|(_, life)| self.is_news(life.started) || restored && life.started <= self.at)
    }

    fn may_be_dead(&self, name: &str) -> bool {
        let (harm, from) = (&self.history.harm, self.from());
        for (process, life) in self.history.named(name) {
            // Its lease was refreshed up to a quarter of it before, and perhaps once in vain.
            let is_gone = life.gone.is_some_and(|gone| self.is_news(gone) && gone + LEASE / 2 <= self.at);
            let is_silent = harm.lease_ends(process, from, self.at).is_some();
            // Its key stood there again, the round was formed with it, and it was missed.
            let is_ghost =
                life.gone.is_some_and(|gone| gone <= self.at) && harm.restored_between(from, self.at);
            if is_gone || is_silent || is_ghost {
                return true;
            }
        }
        false
    }

    fn is_in_the_last_round(&self) -> Option<String> {
        let own = &self.history.lives[self.process];
        let seats = self.history.lives.iter().flat_map(|life| &life.seats);
        let later = seats.filter(|seat| seat.number > self.seat.number && !own.was_in(&seat.plan));
        let Some(later) = later.map(|seat| seat.at).min() else {
            return Some("there was no later round without it".to_owned());
        };
        let deaf = self.history.harm.is_deaf(self.process, later.saturating_sub(LAST_CALL), later);
        let known_by = self.history.harm.known_by(later);
        unless(deaf, "nothing kept it from coming back in time")
            .or_else(|| unless(self.at <= known_by, "that was long ago"))
    }

    fn is_replaced_at(&self, address: &str) -> bool {
        is_followed_at(self.history, self.process, address, self.at)
    }
}

/// Whether a later process of the same name was started at that address, before `at`.
fn is_followed_at(history: &History, process: usize, address: &str, at: Duration) -> bool {
    let name = &history.lives[process].name;
    let mut later = history.named(name).filter(|(other, _)| *other > process);
    later.any(|(_, life)| life.started <= at && address.contains(&life.address))
}

/// Why there was no reason for an error, if there was none.
pub(crate) fn undeserved(history: &History, process: usize, at: Duration, error: &str) -> Option<String> {
    if let Some((_, address)) = error.split_once("another process, at ") {
        let replaced = is_followed_at(history, process, address, at);
        return unless(replaced, "nobody has taken its name there");
    }
    let life = &history.lives[process];
    let deserved = history.harm.etcd_at(at).into_iter().any(|matter| match matter {
        Matter::NoSpace => error.contains("space exceeded"),
        Matter::Passwords => error.contains("user name is empty"),
        // Who is started while there is no etcd does not wait for one.
        Matter::Etcd | Matter::Loss => !life.is_known && error.contains("the connection to etcd"),
        Matter::Silence(_) => false,
    });
    unless(deserved, "etcd had no reason for that")
}
