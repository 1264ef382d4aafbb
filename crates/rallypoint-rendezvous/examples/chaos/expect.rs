//! What the group must come to once the faults are over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::interrupt;
use crate::step::Step;
use crate::times::{A_FEW_SECONDS, LEASE, QUIET};
use crate::world::{Process, Standing, World};

impl World {
    /// Waits until all that live are in one round, but those that there is no room for. `notice`: the time in which all
    /// news must have come of what was done.
    pub(crate) fn converge(&mut self, notice: Duration, patience: Duration) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let whole = self.is_whole();
            if whole.is_ok() && began.elapsed() >= notice {
                return Ok(());
            }
            if began.elapsed() >= patience {
                let why = whole.err().unwrap_or_default();
                return Err(format!("{patience:?} after the last fault the group is not whole: {why}"));
            }
            interrupt::sleep(Duration::from_millis(20));
            self.revive();
        }
    }

    fn is_whole(&self) -> Result<(), String> {
        let standings = self.standings(&self.words.since(0));
        let alive: Vec<usize> =
            (0..standings.len()).filter(|process| standings[*process] != Standing::Ended).collect();
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for process in &alive {
            if let Some(other) = names.insert(self.name_of(*process), *process) {
                return Err(format!("{} runs twice: {other} and {process}", self.name_of(*process)));
            }
        }
        let rounds: Vec<&Value> = alive
            .iter()
            .filter_map(
                |process| if let Standing::In(round) = &standings[*process] { Some(round) } else { None },
            )
            .collect();
        let wanted = alive.len().min(self.max);
        let one = rounds.iter().all(|round| round["plan"] == rounds[0]["plan"]);
        let full = rounds.len() == wanted && rounds.iter().all(|round| round["world_size"] == wanted);
        if one && full {
            Ok(())
        } else {
            Err(format!("{wanted} of {} should be in one round: {rounds:?}", alive.len()))
        }
    }

    /// A time in which nothing happens, and nobody has anything to do.
    pub(crate) fn quiet(&mut self) -> Vec<String> {
        let from = self.words.count();
        let busy = |world: &World| -> Vec<Option<Duration>> {
            world.processes.iter().map(|process| processor_time(process.child.id())).collect()
        };
        let (before, revision, began) = (busy(self), self.etcds.revision(), Instant::now());
        interrupt::sleep(QUIET);
        let (after, passed) = (busy(self), began.elapsed());
        let written = self.etcds.revision() - revision;
        let mut broken = Vec::new();
        for (process, (before, after)) in before.iter().zip(&after).enumerate() {
            let (Some(before), Some(after)) = (before, after) else { continue };
            if *after - *before > passed / 5 {
                let name = self.name_of(process);
                broken.push(format!("{name} ({process}) spins: {:?} in {passed:?}", *after - *before));
            }
        }
        if written > 10 {
            broken.push(format!("nothing happens, and etcd is written to {written} times"));
        }
        for word in self.words.since(from) {
            if word.is_news() {
                let name = self.name_of(word.process);
                broken.push(format!("nothing happens, and {name} ({}) says {}", word.process, word.line));
            }
        }
        broken
    }

    /// Sends those away that only came for the episode. False if there were none.
    pub(crate) fn dismiss_newcomers(&mut self) -> bool {
        let is_guest = |process: &&Process| process.name.starts_with("guest");
        let names: Vec<String> =
            self.processes.iter().filter(is_guest).map(|process| process.name.clone()).collect();
        for name in names {
            // It has ended if it is of an earlier episode.
            self.carry_out(&Step::Order(name, "leave"));
        }
        let guests = std::mem::take(&mut self.newcomers) > 0;
        let deadline = Instant::now() + Duration::from_secs(5);
        while guests && Instant::now() < deadline {
            let standings = self.standings(&self.words.since(0));
            let here = |(index, process): (usize, &Process)| {
                process.name.starts_with("guest") && standings[index] != Standing::Ended
            };
            if !self.processes.iter().enumerate().any(here) {
                break;
            }
            interrupt::sleep(Duration::from_millis(20));
        }
        guests
    }

    /// Closes the run. What is broken in how it ends: it leaves its mark and its timeline, and nothing else.
    pub(crate) fn farewell(&mut self) -> Vec<String> {
        self.words.note("told to close");
        for name in self.order() {
            self.carry_out(&Step::Order(name, "close"));
        }
        let deadline = Instant::now() + LEASE + A_FEW_SECONDS;
        while self.standings(&self.words.since(0)).iter().any(|standing| *standing != Standing::Ended) {
            if Instant::now() >= deadline {
                return vec!["the run is closed, and not all have left".to_owned()];
            }
            interrupt::sleep(Duration::from_millis(20));
        }
        let left = self.etcds.ask(&["get", "--prefix", "rallypoint/", "--keys-only"]);
        let left: Vec<&str> = left.split_whitespace().filter(|key| !stays(key)).collect();
        if left.is_empty() {
            Vec::new()
        } else {
            vec![format!("the run has ended well, and leaves {left:?}")]
        }
    }
}

/// The processor time that a process has used; none if it has ended.
fn processor_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(") ").next()?.split(' ').skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// Whether this is there for a while after a run that has ended well, for people to read.
fn stays(key: &str) -> bool {
    key.ends_with("/group/round") || key.contains("/event/")
}
