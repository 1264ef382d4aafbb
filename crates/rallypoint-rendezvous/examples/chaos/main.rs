//! Random faults on real processes: three etcds and a handful of nodes, each in a network namespace of its own. What
//! the nodes say is checked against the promises. `scripts/chaos --help` tells how to run it.
//!
//! It goes in episodes: some faults, which the seed and the episode's number decide; the end of all of them; a time in
//! which the group must be whole again; and a time in which nothing may happen.
//!
//! - `plan`: what is done in an episode, and what that excuses. `world`: the processes, and how it is done to them.
//! - `words`: what the nodes say, and the log. `check`: what must hold of it.

#![allow(clippy::unwrap_used, reason = "a program for developers that cannot go on must say where")]

mod check;
mod plan;
mod words;
mod world;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::check::Check;
use self::plan::Episode;
use self::world::World;

const HELP: &str = "\
Usage: scripts/chaos [options]

Does random harm to three real etcds and some nodes, each in a network namespace of its own, and checks what the nodes
say. It ends with 0 if all promises were kept, and with 1 if not: then it prints what was done, what each node said,
and the command that does the same again. All of that is in a log, too, which is kept.

  --minutes N      for about so long (10)
  --seed N         decides what is done; a random one otherwise
  --nodes N        that many nodes, 3 to 20 (5 to 8, as the seed says)
  --episode N      only that episode of the seed, on a fresh group
  --keep-going     after a violation: goes on with a fresh group
  --list           prints the faults that there are, and ends
  --help           prints this

It needs what `cargo test` needs, and network namespaces: user namespaces, or root; unshare and iproute2.
";

struct Options {
    minutes: f64,
    seed: u64,
    nodes: Option<usize>,
    episode: Option<u64>,
    keep_going: bool,
}

fn options() -> Result<Option<Options>, String> {
    let mut options = Options {
        minutes: 10.0,
        seed: fastrand::u64(..1_000_000),
        nodes: None,
        episode: None,
        keep_going: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let text = arguments.next().ok_or(format!("{argument} needs a number"))?;
            text.parse::<f64>().map_err(|_| format!("{argument} needs a number, not {text:?}"))
        };
        match argument.as_str() {
            "--minutes" => options.minutes = number()?,
            "--seed" => options.seed = number()? as u64,
            "--nodes" => options.nodes = Some((number()? as usize).clamp(3, 20)),
            "--episode" => options.episode = Some(number()? as u64),
            "--keep-going" => options.keep_going = true,
            "--list" => {
                println!("{}", plan::LIST);
                return Ok(None);
            }
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(format!("there is no option {other}; see --help")),
        }
    }
    Ok(Some(options))
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("chaos: {why}");
            return ExitCode::from(2);
        }
    };
    let until = Instant::now() + Duration::from_secs_f64(options.minutes * 60.0);
    let mut number = options.episode.unwrap_or(0);
    let (mut violations, mut rounds, mut faults) = (0, 0, 0);
    'worlds: loop {
        let mut world = World::start(options.seed, options.nodes, number);
        let mut check = Check::default();
        println!("seed {}: {} ({})", options.seed, world.words.path().display(), world.describe());
        if let Some(broken) = first_meeting(&mut world, &mut check) {
            report(&options, number, &Episode::default(), &world, 0, &broken);
            return ExitCode::FAILURE;
        }
        loop {
            let from = world.words.count();
            let episode = Episode::new(options.seed, number, &world.order());
            let broken = run(&mut world, &mut check, &episode, number, from);
            faults += episode.faults;
            rounds += check.take_rounds();
            if !broken.is_empty() {
                report(&options, number, &episode, &world, from, &broken);
                violations += 1;
            }
            number += 1;
            let over = Instant::now() >= until || options.episode.is_some();
            if over || (!broken.is_empty() && !options.keep_going) {
                let left = if broken.is_empty() { world.farewell() } else { Vec::new() };
                if !left.is_empty() {
                    report(&options, number - 1, &episode, &world, from, &left);
                    violations += 1;
                }
                break 'worlds;
            }
            if !broken.is_empty() {
                continue 'worlds;
            }
        }
    }
    let first = options.episode.unwrap_or(0);
    println!("{} episodes, {faults} faults, {rounds} rounds, {violations} violations", number - first);
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn first_meeting(world: &mut World, check: &mut Check) -> Option<Vec<String>> {
    let calm = Episode { disturbed: 100, ..Episode::default() };
    world.converge(Duration::ZERO, Duration::from_secs(30)).err().map(|why| vec![why]).or_else(|| {
        let broken = check.episode(world, &calm, 0);
        (!broken.is_empty()).then_some(broken)
    })
}

/// One episode; what was broken.
fn run(world: &mut World, check: &mut Check, episode: &Episode, number: u64, from: usize) -> Vec<String> {
    println!("{:8.1} s  episode {number}: {}", world.words.now().as_secs_f64(), episode.name);
    world.words.note(&format!("==== episode {number}: {}", episode.name));
    world.snapshot_if_none();
    let began = Instant::now();
    for (at, step) in &episode.steps {
        std::thread::sleep((began + *at).saturating_duration_since(Instant::now()));
        world.carry_out(step);
    }
    world.revive();
    world.words.note("the faults are over");
    let patience = world::LEASE + world::LAST_CALL + world::A_FEW_SECONDS;
    let mut broken = Vec::new();
    // A lease ends that much after the last refresh, and a death is believed a second later.
    let notice = world::LEASE + Duration::from_secs(2);
    let whole = world.converge(notice, patience);
    broken.extend(whole.err());
    broken.extend(check.episode(world, episode, from));
    if !broken.is_empty() {
        return broken;
    }
    world.words.note("whole again");
    broken.extend(world.quiet());
    if world.dismiss_newcomers() {
        broken.extend(world.converge(Duration::from_millis(300), patience).err());
        let farewell = Episode { disturbed: 10, ..episode.clone() };
        broken.extend(check.episode(world, &farewell, from));
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
}
