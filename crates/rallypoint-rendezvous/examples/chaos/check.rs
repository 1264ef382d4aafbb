//! What must hold of what the nodes say.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::history::History;
use crate::news::{Told, undeserved};
use crate::words::Word;
use crate::world::World;

#[derive(Debug, Default)]
pub(crate) struct Check {
    /// The rounds, by their plans.
    rounds: BTreeMap<String, Round>,
    /// Up to which word, and up to when, all was looked at.
    seen: usize,
    until: Duration,
    new_rounds: usize,
}

#[derive(Debug)]
struct Round {
    number: u64,
    world_size: Value,
    master: Value,
    /// When it was first heard of.
    at: Duration,
    /// Which process has which rank.
    ranks: BTreeMap<u64, usize>,
}

impl Check {
    /// How many rounds were completed since it was last asked.
    pub(crate) fn take_rounds(&mut self) -> usize {
        std::mem::take(&mut self.new_rounds)
    }

    /// What is broken in what was said since it last looked.
    pub(crate) fn look(&mut self, world: &World) -> Vec<String> {
        let history = History::of(world);
        let mut words = world.words.since(self.seen);
        self.seen += words.len();
        words.sort_by_key(|word| word.at);
        let before = self.rounds.len();
        let mut broken = Vec::new();
        for word in &words {
            let said = match (word.round(), word.change(), word.error()) {
                (Some(number), _, _) => self.joined(world, &history, word, number),
                (_, Some(change), _) => changed(&history, word, change),
                (_, _, Some(error)) => undeserved(&history, word.process, word.at, error)
                    .map(|why| format!("it fails: {error}, but {why}")),
                _ => None,
            };
            broken.extend(said.map(|why| {
                let name = world.name_of(word.process);
                format!("{name} ({}) at {:.3} s: {why}", word.process, word.at.as_secs_f64())
            }));
        }
        let rounds = self.rounds.len() - before;
        self.new_rounds += rounds;
        let reasons = history.reasons(self.until);
        self.until = world.words.now();
        if rounds > 3 * reasons {
            broken.push(format!("{rounds} rounds are too many for {reasons} reasons"));
        }
        for (plan, round) in &self.rounds {
            if round.ranks.keys().any(|rank| Some(*rank) >= round.world_size.as_u64()) {
                broken.push(format!("a rank of {plan} is beyond its size: {round:?}"));
            }
        }
        broken
    }

    fn joined(&mut self, world: &World, history: &History, word: &Word, number: u64) -> Option<String> {
        let line = &word.line;
        let (plan, rank) = (line["plan"].as_str()?, line["rank"].as_u64()?);
        let size = line["world_size"].as_u64()?;
        if !(world.min as u64..=world.max as u64).contains(&size) {
            return Some(format!("a round of {size}: {line}"));
        }
        for (other, round) in self.rounds.iter().filter(|(other, _)| *other != plan) {
            if round.number == number && !history.harm.lost_between(round.at, word.at) {
                return Some(format!("round {number} was completed twice: {other} and {plan}"));
            }
            // Another process of the same node may be given the port again.
            if rank == 0 && round.master == line["master"] && round.ranks.get(&0) == Some(&word.process) {
                return Some(format!("{other} and {plan} have one master: {line}"));
            }
        }
        let master = line["master"].as_str()?;
        let is_there = master.split(':').next() == Some(&world.address_of(word.process));
        if rank == 0 && !is_there {
            return Some(format!("it has rank 0, and the master is elsewhere: {line}"));
        }
        let round = self.rounds.entry(plan.to_owned()).or_insert_with(|| Round {
            number,
            world_size: line["world_size"].clone(),
            master: line["master"].clone(),
            at: word.at,
            ranks: BTreeMap::new(),
        });
        if (round.number, &round.world_size, &round.master) != (number, &line["world_size"], &line["master"])
        {
            return Some(format!("{line} is not what others say: {round:?}"));
        }
        if let Some(other) = round.ranks.insert(rank, word.process) {
            return Some(format!("{line}: so says {other}"));
        }
        let last = history.lives[word.process].seats.iter().rev().find(|seat| seat.at < word.at)?;
        if number <= last.number {
            return Some(format!("{line} after round {}", last.number));
        }
        let kept = last.rank == rank || last.rank >= size || number != last.number + 1;
        // Who was taken for dead is a newcomer.
        let excused = history.harm.lease_ends(word.process, last.at, word.at).is_some()
            || history.harm.lost_between(last.at, word.at);
        (!kept && !excused).then(|| format!("it had rank {} and has {rank} now: {line}", last.rank))
    }
}

fn changed(history: &History, word: &Word, change: &str) -> Option<String> {
    let why = match Told::new(history, word.process, word.at) {
        Some(told) => told.lie(change)?,
        None => "it was never in a round".to_owned(),
    };
    Some(format!("it is told {change}, but {why}"))
}
