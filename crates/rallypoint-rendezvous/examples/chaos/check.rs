//! What must hold of what the nodes say.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::plan::Episode;
use crate::words::Word;
use crate::world::World;

#[derive(Debug, Default)]
pub(crate) struct Check {
    /// The rounds, by their plans.
    rounds: BTreeMap<String, Round>,
    /// The last round of each process: number, rank.
    last: BTreeMap<usize, (u64, u64)>,
    /// Up to where all was looked at.
    seen: usize,
    /// Whether etcd ever lost data.
    lost: bool,
    new_rounds: usize,
}

#[derive(Debug)]
struct Round {
    number: u64,
    world_size: Value,
    master: Value,
    /// Which process has which rank.
    ranks: BTreeMap<u64, usize>,
}

impl Check {
    /// How many rounds were completed since it was last asked.
    pub(crate) fn take_rounds(&mut self) -> usize {
        std::mem::take(&mut self.new_rounds)
    }

    /// What is broken in what was said since the word `from`.
    pub(crate) fn episode(&mut self, world: &World, episode: &Episode, from: usize) -> Vec<String> {
        self.lost |= episode.lost;
        let words = world.words.since(self.seen.max(from));
        self.seen = world.words.count().max(self.seen);
        let before = self.rounds.len();
        let mut broken = Vec::new();
        for word in &words {
            let said = match (word.round(), word.change(), word.error()) {
                (Some(number), _, _) => self.joined(world, episode, word, number),
                (_, Some(change), _) => self.changed(world, episode, word, change),
                (_, _, Some(error)) => self.failed(world, episode, word, error),
                _ => None,
            };
            broken.extend(said.map(|why| {
                let name = world.name_of(word.process);
                format!("{name} ({}) at {:.3} s: {why}", word.process, word.at.as_secs_f64())
            }));
        }
        let rounds = self.rounds.len() - before;
        self.new_rounds += rounds;
        if episode.disturbed == 0 && rounds > 0 {
            broken.push(format!("nobody was harmed, and there were {rounds} rounds"));
        }
        if rounds > 2 + 3 * episode.disturbed {
            broken.push(format!("{rounds} rounds are too many"));
        }
        for (plan, round) in &self.rounds {
            if round.ranks.keys().any(|rank| Some(*rank) >= round.world_size.as_u64()) {
                broken.push(format!("a rank of {plan} is beyond its size: {round:?}"));
            }
        }
        broken
    }

    fn joined(&mut self, world: &World, episode: &Episode, word: &Word, number: u64) -> Option<String> {
        let line = &word.line;
        let (plan, rank) = (line["plan"].as_str()?.to_owned(), line["rank"].as_u64()?);
        let size = line["world_size"].as_u64()?;
        if !(world.min as u64..=world.max as u64).contains(&size) {
            return Some(format!("a round of {size}: {line}"));
        }
        let again = self.rounds.iter().find(|(other, round)| **other != plan && round.number == number);
        if let Some((other, _)) = again.filter(|_| !self.lost) {
            return Some(format!("round {number} was completed twice: {other} and {plan}"));
        }
        let round = self.rounds.entry(plan).or_insert_with(|| Round {
            number,
            world_size: line["world_size"].clone(),
            master: line["master"].clone(),
            ranks: BTreeMap::new(),
        });
        if (round.number, &round.world_size, &round.master) != (number, &line["world_size"], &line["master"])
        {
            return Some(format!("{line} is not what others say: {round:?}"));
        }
        if let Some(other) = round.ranks.insert(rank, word.process) {
            return Some(format!("{line}: so says {other}"));
        }
        let (last, had) = self.last.insert(word.process, (number, rank))?;
        if number <= last {
            return Some(format!("{line} after round {last}"));
        }
        let kept = had == rank || had >= size || number != last + 1;
        let excused = episode.lost || episode.harmed.contains(world.name_of(word.process));
        (!kept && !excused).then(|| format!("it had rank {had} and has {rank} now: {line}"))
    }

    fn changed(&self, world: &World, episode: &Episode, word: &Word, change: &str) -> Option<String> {
        let name = world.name_of(word.process);
        let harmed = |node: &str| episode.harmed.contains(node) || episode.replaced.contains(node);
        let kind = change.split([' ', '{']).next().unwrap_or_default();
        let about = change.split('"').nth(1).unwrap_or_default();
        let is_true = match kind {
            "Waiting" => episode.comers || episode.lost || !episode.harmed.is_empty(),
            "Died" => harmed(about),
            "Left" => episode.disturbed > 0,
            "Excluded" => {
                harmed(name) || episode.hung.contains(name) || (episode.etcd && episode.disturbed > 0)
            }
            "StateLost" => episode.lost,
            "Replaced" => episode.replaced.contains(name),
            _ => false,
        };
        (!is_true).then(|| format!("it is told {change}, which is not so"))
    }

    fn failed(&self, world: &World, episode: &Episode, word: &Word, error: &str) -> Option<String> {
        let replaced = error.contains("another process, at 10.77.0.");
        // Who is started while there is no etcd does not wait for one.
        let unreached = episode.etcd && error.contains("the connection to etcd");
        let excused = match replaced {
            true => episode.replaced.contains(world.name_of(word.process)),
            false => episode.refuses || unreached,
        };
        (!excused).then(|| format!("it fails: {error}"))
    }
}
