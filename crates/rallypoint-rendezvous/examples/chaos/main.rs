//! Random faults on real processes: three etcds and a handful of nodes, each in a network namespace of its own. What
//! the nodes say is checked against the promises. `scripts/chaos --help` tells how to run it.
//!
//! It goes in episodes: some faults, which the seed and the episode's number decide; the end of all of them; a time in
//! which the group must be whole again; and a time in which nothing may happen.
//!
//! - `plan`: what is done in an episode, in `step`s. `world` and `etcds`: the processes, and how it is done to them.
//! - `words`: what the nodes say, and the log. `history` and `harm`: what became of each, and what was the matter when.
//! - `check`: what must hold of it; `news`: what they may be told; `expect`: what the group must come to.
//! - `planted`: bugs to be found. `interrupt`: how it ends by a signal.

#![allow(clippy::unwrap_used, reason = "a program for developers that cannot go on must say where")]

mod check;
mod etcds;
mod expect;
mod harm;
mod history;
mod interrupt;
mod news;
mod options;
mod plan;
mod planted;
mod step;
mod times;
mod words;
mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::check::Check;
use self::options::Options;
use self::plan::Episode;
use self::planted::Plant;
use self::world::World;

/// What was done and checked so far.
#[derive(Debug, Default)]
struct Tally {
    episodes: usize,
    faults: usize,
    rounds: usize,
    violations: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { episodes, faults, rounds, violations } = self;
        write!(f, "{episodes} episodes, {faults} faults, {rounds} rounds, {violations} violations")
    }
}

fn main() -> ExitCode {
    let options = match options::options() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("chaos: {why}");
            return ExitCode::from(2);
        }
    };
    interrupt::listen();
    // All that is kept while it runs: gone with it, whatever is under way when it ends.
    let folder = tempfile::Builder::new().prefix("rallypoint-chaos-").tempdir().unwrap();
    tempfile::env::override_temp_dir(folder.path()).unwrap();
    let mut tally = Tally::default();
    let ended = catch_unwind(AssertUnwindSafe(|| run(&options, &mut tally)));
    println!("seed {}: {tally}", options.seed);
    match (ended, interrupt::signal_seen()) {
        (Err(_), Some(signal)) => {
            println!("interrupted: an episode that was under way is not counted");
            ExitCode::from(128 + u8::try_from(signal).unwrap())
        }
        (Err(panic), None) => resume_unwind(panic),
        (Ok(()), _) if tally.violations > 0 => ExitCode::FAILURE,
        (Ok(()), _) => ExitCode::SUCCESS,
    }
}

fn run(options: &Options, tally: &mut Tally) {
    let until = Instant::now() + Duration::from_secs_f64(options.minutes * 60.0);
    let mut number = options.episode.unwrap_or(0);
    loop {
        let mut world = World::start(options, number);
        let mut check = Check::default();
        println!("seed {}: {} ({})", options.seed, world.words.path().display(), world.describe());
        let mut broken = first_meeting(&mut world, &mut check);
        let (mut episode, mut from) = (Episode::default(), 0);
        while broken.is_empty() {
            from = world.words.count();
            episode = Episode::new(options.seed, number, &world.order());
            broken = live_through(options, &mut world, &mut check, &episode, number);
            tally.episodes += 1;
            tally.faults += episode.faults;
            tally.rounds += check.take_rounds();
            number += 1;
            if broken.is_empty() && (Instant::now() >= until || options.episode.is_some()) {
                broken = world.farewell();
                if broken.is_empty() {
                    return;
                }
            }
        }
        tally.violations += 1;
        report(options, number.saturating_sub(1), &episode, &world, from, &broken);
        if !options.keep_going || Instant::now() >= until || options.episode.is_some() {
            return;
        }
    }
}

fn first_meeting(world: &mut World, check: &mut Check) -> Vec<String> {
    let met = world.converge(Duration::ZERO, Duration::from_secs(30));
    met.err().into_iter().chain(check.look(world)).collect()
}

/// One episode; what was broken.
fn live_through(
    options: &Options,
    world: &mut World,
    check: &mut Check,
    episode: &Episode,
    number: u64,
) -> Vec<String> {
    println!("{:8.1} s  episode {number}: {}", world.words.now().as_secs_f64(), episode.name);
    world.words.note(&format!("==== episode {number}: {}", episode.name));
    world.etcds.snapshot_if_none();
    let began = Instant::now();
    for (at, step) in &episode.steps {
        interrupt::sleep((began + *at).saturating_duration_since(Instant::now()));
        world.carry_out(step);
    }
    if options.plant == Some(Plant::Harm) {
        world.stall_in_secret();
    }
    world.revive();
    world.words.note("the faults are over");
    let patience = times::LEASE + times::LAST_CALL + times::A_FEW_SECONDS;
    let mut broken = Vec::new();
    // A lease ends that much after the last refresh, and a death is believed a second later.
    let notice = times::LEASE + Duration::from_secs(2);
    let whole = world.converge(notice, patience);
    broken.extend(whole.err());
    broken.extend(check.look(world));
    if !broken.is_empty() {
        return broken;
    }
    world.words.note("whole again");
    broken.extend(world.quiet());
    if world.dismiss_newcomers() {
        broken.extend(world.converge(Duration::from_millis(300), patience).err());
        broken.extend(check.look(world));
    }
    world.snapshot_sometimes();
    broken
}

fn report(options: &Options, number: u64, episode: &Episode, world: &World, from: usize, broken: &[String]) {
    let mut text = format!("\n---- episode {number} ({}) broke a promise\n", episode.name);
    for what in broken {
        text += &format!("  * {what}\n");
    }
    text += "\nWhat was done:\n";
    for (at, step) in &episode.steps {
        text += &format!("  {:6.3} s  {step:?}\n", at.as_secs_f64());
    }
    text += "\nWhat each node said:\n";
    text += &world.said_since(from);
    let nodes = options.nodes.map_or(String::new(), |nodes| format!(" --nodes {nodes}"));
    text += &format!(
        "\nThe same faults again: scripts/chaos --seed {}{nodes} --episode {number}\nLog: {}\n",
        options.seed,
        world.words.path().display()
    );
    println!("{text}");
    world.words.note(&text);
    world.etcds.keep_logs(world.words.path());
}
