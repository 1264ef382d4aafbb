//! What is to be measured, and how thoroughly.

use std::path::PathBuf;
use std::time::Instant;

use clap::builder::FalseyValueParser;
use rallypoint_testkit::torch_python;

use crate::parts::Which;
use crate::python::{rivals_python, target_folder};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What to measure; all of it, unless told otherwise.
    #[arg(value_enum)]
    parts: Vec<Which>,
    /// Everything smaller: under 5 minutes, for every day.
    #[arg(long, env = "RALLYPOINT_BENCH_SHORT", value_parser = FalseyValueParser::new())]
    short: bool,
    /// Rounds of each measurement; the median is quoted. Each part has its own number unless told otherwise.
    #[arg(long, env = "RALLYPOINT_BENCH_ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Fail, by name, if a promised ratio is not kept. Some promises are of full size and not asked for in short.
    #[arg(long, env = "RALLYPOINT_BENCH_CHECK", value_parser = FalseyValueParser::new())]
    pub(crate) check: bool,
    /// Of the server's rates, only those with this in their name; of the workers' store, only `rates`, `meet` or `proxies`;
    /// and nothing else of that part.
    #[arg(long, env = "RALLYPOINT_BENCH_ONLY", value_name = "TEXT")]
    only: Option<String>,
    /// Leave out PyTorch, and all that needs it.
    #[arg(long, env = "RALLYPOINT_BENCH_NO_TORCH", value_parser = FalseyValueParser::new())]
    no_torch: bool,
    /// Where to write: benchmarks.md, and benchmarks/ with plots and results.json. Parts that ran before and not
    /// now stay as they are there. [default: docs for all parts in full, else target/bench]
    #[arg(long, env = "RALLYPOINT_BENCH_OUT", value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print what `scripts/setup` has to bring, and measure nothing.
    #[arg(long, hide = true)]
    pub(crate) needs: bool,
}

impl Options {
    /// In the order of the report.
    pub(crate) fn wanted(&self) -> Result<Vec<Which>, &'static str> {
        let is_asked_for = |which: &Which| self.parts.is_empty() || self.parts.contains(which);
        // These are nothing without PyTorch.
        let theirs = [Which::Agents, Which::WorkerStore, Which::Restarts];
        let can_run = |which: &Which| !self.no_torch || !theirs.contains(which);
        let wanted: Vec<_> = Which::ALL.into_iter().filter(is_asked_for).filter(can_run).collect();
        if wanted.is_empty() { Err("these parts need PyTorch: leave out --no-torch") } else { Ok(wanted) }
    }

    /// Components of `scripts/setup` for those parts.
    pub(crate) fn components(&self, wanted: &[Which]) -> Vec<&'static str> {
        let needs = |which| wanted.contains(&which) && !self.no_torch;
        // Nothing of PyTorch's is beside these.
        let alone = [Which::Scale, Which::Server];
        let optional = [
            ("torch", !self.no_torch && wanted.iter().any(|which| !alone.contains(which))),
            ("rivals", needs(Which::Formation)),
            ("maturin", needs(Which::Agents) || needs(Which::Restarts)),
            ("python", needs(Which::Agents) || needs(Which::Restarts)),
        ];
        let needed = optional.into_iter().filter_map(|(name, needed)| needed.then_some(name));
        ["etcd", "etcd-3.4"].into_iter().chain(needed).collect()
    }

    pub(crate) fn out(&self) -> PathBuf {
        let complete = self.parts.is_empty() && !self.short && !self.no_torch && self.only.is_none();
        let usual = || if complete { "docs".into() } else { target_folder().join("bench") };
        self.out.clone().unwrap_or_else(usual)
    }

    /// Interpreters with the packages of rivals.
    pub(crate) fn pythons(&self) -> Vec<PathBuf> {
        if self.no_torch {
            return Vec::new();
        }
        let others = rivals_python();
        [Some(torch_python()), others.is_file().then_some(others)].into_iter().flatten().collect()
    }

    /// The command that measures the same again.
    pub(crate) fn command(&self) -> String {
        let mut words = vec!["bench/run".to_owned()];
        words.extend(self.parts.iter().map(|which| which.name().to_owned()));
        words.extend(self.short.then(|| "--short".to_owned()));
        words.extend(self.rounds.map(|rounds| format!("--rounds {rounds}")));
        words.extend(self.only.as_ref().map(|only| format!("--only '{only}'")));
        words.extend(self.no_torch.then(|| "--no-torch".to_owned()));
        words.join(" ")
    }
}

/// How to measure one part.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) short: bool,
    pub(crate) torch: bool,
    pub(crate) only: Option<String>,
    rounds: Option<u32>,
    /// Printed before each line of progress.
    place: String,
    began: Instant,
}

impl Plan {
    pub(crate) fn new(options: &Options, which: Which, (number, of): (usize, usize)) -> Self {
        Plan {
            short: options.short,
            torch: !options.no_torch,
            only: options.only.clone(),
            rounds: options.rounds,
            place: format!("{number}/{of} {}", which.name()),
            began: Instant::now(),
        }
    }

    /// One of two: in full, or in short.
    pub(crate) fn pick<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }

    pub(crate) fn rounds(&self, full: u32, short: u32) -> u32 {
        self.rounds.unwrap_or_else(|| self.pick(full, short))
    }

    /// Only what holds at full size alone needs it.
    pub(crate) fn in_full<T>(&self, promise: T) -> Option<T> {
        (!self.short).then_some(promise)
    }

    /// Whether this is among what alone is asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.contains(only))
    }

    /// Tells whoever waits what is measured now.
    pub(crate) fn say(&self, what: &str) {
        let seconds = self.began.elapsed().as_secs();
        eprintln!("[{} {}:{:02}] {what}", self.place, seconds / 60, seconds % 60);
    }

    /// Seconds since the part began.
    pub(crate) fn took(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        Cli::parse_from([&["bench/run"], words].concat()).options
    }

    #[test]
    fn only_what_the_parts_need_is_set_up() {
        let needs = |words: &[&str]| {
            let options = options(words);
            options.components(&options.wanted().unwrap()).join(" ")
        };
        assert_eq!(needs(&[]), "etcd etcd-3.4 torch rivals maturin python");
        assert_eq!(needs(&["--no-torch"]), "etcd etcd-3.4");
        assert_eq!(needs(&["scale", "server"]), "etcd etcd-3.4");
        assert_eq!(needs(&["store", "server"]), "etcd etcd-3.4 torch");
        for part in ["agents", "restarts"] {
            assert_eq!(needs(&[part]), "etcd etcd-3.4 torch maturin python");
        }
        assert!(options(&["agents", "--no-torch"]).wanted().is_err());
    }
}
