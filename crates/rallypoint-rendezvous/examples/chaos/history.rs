//! What became of each process, by its own words.

use std::time::Duration;

use crate::harm::Harm;
use crate::words::Word;
use crate::world::World;

/// One process.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) started: Duration,
    /// It has said who it is: etcd has answered it.
    pub(crate) is_known: bool,
    /// Since then it is killed, or leaves.
    pub(crate) gone: Option<Duration>,
    pub(crate) asked: Vec<Asking>,
    pub(crate) seats: Vec<Seat>,
}

/// A time in which a process asked for a round.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    /// The plan of the round that it got.
    answer: Option<String>,
}

/// A place in a round.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    pub(crate) at: Duration,
    pub(crate) number: u64,
    pub(crate) plan: String,
    pub(crate) rank: u64,
}

impl Life {
    fn new(name: &str, address: String, started: Duration, killed: Option<Duration>) -> Self {
        let (asked, seats) = (Vec::new(), Vec::new());
        Life { name: name.to_owned(), address, started, is_known: false, gone: killed, asked, seats }
    }

    fn says(&mut self, word: &Word) {
        let line = &word.line;
        self.is_known |= line["node"].is_string();
        if let (Some(number), Some(plan)) = (word.round(), line["plan"].as_str()) {
            let (plan, rank) = (plan.to_owned(), line["rank"].as_u64().unwrap_or(u64::MAX));
            self.no_longer_asks(word.at, Some(plan.clone()));
            self.seats.push(Seat { at: word.at, number, plan, rank });
        } else if line["asks"] == true {
            self.asked.push(Asking { from: word.at, to: Duration::MAX, answer: None });
        } else if line["leaves"] == true || word.is_end() {
            self.no_longer_asks(word.at, None);
            self.gone = Some(self.gone.unwrap_or(word.at).min(word.at));
        }
    }

    fn no_longer_asks(&mut self, at: Duration, plan: Option<String>) {
        if let Some(asking) = self.asked.last_mut().filter(|asking| asking.to == Duration::MAX) {
            (asking.to, asking.answer) = (at, plan);
        }
    }

    /// The seat that it had at that time, or last.
    pub(crate) fn seat_at(&self, at: Duration) -> Option<&Seat> {
        self.seats.iter().rev().find(|seat| seat.at <= at)
    }

    pub(crate) fn was_in(&self, plan: &str) -> bool {
        self.seats.iter().any(|seat| seat.plan == plan)
    }

    /// When it first asked for another round than `plan`, at a time from `from` to `to`.
    pub(crate) fn asks_past(&self, plan: &str, from: Duration, to: Duration) -> Option<Duration> {
        let past = |asking: &&Asking| {
            asking.from <= to && asking.to > from && asking.answer.as_deref() != Some(plan)
        };
        self.asked.iter().find(past).map(|asking| asking.from)
    }
}

/// All processes that there were, and what was done.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) lives: Vec<Life>,
    pub(crate) harm: Harm,
}

impl History {
    pub(crate) fn of(world: &World) -> Self {
        let harm = Harm::new(&world.deeds, world.words.now());
        let life = |(index, process): (usize, &crate::world::Process)| {
            Life::new(&process.name, world.address_of(index), process.started, harm.killed(index))
        };
        let mut lives: Vec<Life> = world.processes.iter().enumerate().map(life).collect();
        for word in world.words.since(0) {
            lives[word.process].says(&word);
        }
        History { lives, harm }
    }

    /// The processes of a name, with their numbers.
    pub(crate) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (usize, &'a Life)> {
        self.lives.iter().enumerate().filter(move |(_, life)| life.name == name)
    }

    /// How many things happened since then of which the group must take note.
    pub(crate) fn reasons(&self, since: Duration) -> usize {
        let later = |at: &Duration| *at >= since;
        let comes = self.lives.iter().filter(|life| later(&life.started)).count();
        let goes = self.lives.iter().filter_map(|life| life.gone).filter(later).count();
        comes + goes + self.harm.reasons(since)
    }

    /// When somebody first said to be in the round.
    pub(crate) fn began(&self, plan: &str) -> Option<Duration> {
        let seats = self.lives.iter().flat_map(|life| &life.seats);
        seats.filter(|seat| seat.plan == plan).map(|seat| seat.at).min()
    }
}
