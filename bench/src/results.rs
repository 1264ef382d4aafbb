//! What was measured, as it is kept in `results.json`: everything that the report is made from.

use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::measure::Samples;

/// Everything that was measured.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) parts: Vec<Part>,
}

/// One part, measured in one go. Parts may come from different runs, so each says how it came about.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) command: String,
    /// In UTC.
    pub(crate) begun: String,
    /// The load average of the machine when it began.
    pub(crate) load: f64,
    pub(crate) seconds: f64,
    /// What ran, and how.
    pub(crate) setting: Vec<String>,
    pub(crate) tables: Vec<Table>,
    pub(crate) comparisons: Vec<Comparison>,
}

/// Contenders side by side, one a column.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// By which a plot finds it.
    pub(crate) id: String,
    pub(crate) title: String,
    /// What the rows are.
    pub(crate) rows_are: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Where it is on the x axis of a plot.
    pub(crate) x: Option<f64>,
    pub(crate) unit: String,
    pub(crate) cells: Vec<Outcome>,
}

/// What came of measuring one thing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Measured(Samples),
    /// It was given so many seconds, and was not done.
    NotWithin(f64),
    Failed(String),
    /// Left out: smaller ones of the same kind were not done in time, or nobody asked for it.
    NotRun,
}

impl Outcome {
    /// The median, or the time limit that it is above.
    pub(crate) fn figure(&self) -> f64 {
        match self {
            Outcome::Measured(samples) => samples.median(),
            Outcome::NotWithin(seconds) => *seconds,
            Outcome::Failed(_) | Outcome::NotRun => f64::NAN,
        }
    }
}

/// What a ratio must be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Promise {
    AtLeast(f64),
    AtMost(f64),
}

impl Promise {
    fn kept(self, ratio: f64) -> bool {
        match self {
            Promise::AtLeast(bound) => ratio >= bound,
            Promise::AtMost(bound) => ratio <= bound,
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Promise::AtLeast(bound) => write!(f, ">= {bound}"),
            Promise::AtMost(bound) => write!(f, "<= {bound}"),
        }
    }
}

/// Ours beside a rival's, or beside a fixed figure that is promised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) ours: Samples,
    pub(crate) rival: String,
    pub(crate) theirs: Outcome,
    pub(crate) promise: Option<Promise>,
}

impl Comparison {
    pub(crate) fn new(
        name: impl Into<String>,
        unit: &str,
        (ours, rival, theirs): (Samples, &str, Samples),
        promise: Option<Promise>,
    ) -> Self {
        let (unit, rival, theirs) = (unit.to_owned(), rival.to_owned(), Outcome::Measured(theirs));
        Comparison { name: name.into(), unit, ours, rival, theirs, promise }
    }

    /// Beside a figure that is promised.
    pub(crate) fn fixed(name: impl Into<String>, unit: &str, ours: Samples, what: &str, figure: f64) -> Self {
        Self::new(name, unit, (ours, what, Samples::one(figure)), Some(Promise::AtMost(1.0)))
    }

    pub(crate) fn ratio(&self) -> f64 {
        self.ours.median() / self.theirs.figure()
    }

    pub(crate) fn kept(&self) -> bool {
        self.promise.is_none_or(|promise| promise.kept(self.ratio()))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} against {} ({:.2})", self.name, self.rival, self.ratio())
    }
}

impl Part {
    pub(crate) fn broken_promises(&self) -> impl Iterator<Item = &Comparison> {
        self.comparisons.iter().filter(|comparison| !comparison.kept())
    }
}

impl Results {
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, serde_json::to_string_pretty(self)? + "\n")
    }

    /// What was measured later takes the place of what was measured before.
    pub(crate) fn merge(&mut self, later: Results) {
        // A run names only what it measures, and the other parts stay.
        let program = |version: &String| version.split(' ').next().map(str::to_owned);
        let mut versions = std::mem::replace(&mut self.machine, later.machine).versions;
        versions.retain(|earlier| !self.machine.versions.iter().any(|now| program(now) == program(earlier)));
        self.machine.versions.extend(versions);
        for part in later.parts {
            self.parts.retain(|earlier| earlier.name != part.name);
            self.parts.push(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(ours: f64, theirs: Outcome, promise: Promise) -> Comparison {
        let name = "set".to_owned();
        let (unit, rival, ours) = ("/s".to_owned(), "raw put".to_owned(), Samples::one(ours));
        Comparison { name, unit, ours, rival, theirs, promise: Some(promise) }
    }

    fn measured(figure: f64) -> Outcome {
        Outcome::Measured(Samples::one(figure))
    }

    #[test]
    fn a_part_that_is_measured_again_leaves_the_programs_of_the_others() {
        let run = |versions: &[&str]| {
            let versions = versions.iter().map(|version| (*version).to_owned()).collect();
            Results { machine: Machine { versions, ..Machine::default() }, parts: Vec::new() }
        };
        let mut all = run(&["etcd 3.4.23", "torch 2.14.0", "a-rival 0.2.0"]);
        all.merge(run(&["etcd 3.4.23", "torch 2.15.0"]));
        assert_eq!(all.machine.versions, ["etcd 3.4.23", "torch 2.15.0", "a-rival 0.2.0"]);
    }

    #[test]
    fn a_broken_promise_is_named() {
        let comparisons = vec![
            comparison(79.0, measured(100.0), Promise::AtLeast(0.8)),
            comparison(81.0, measured(100.0), Promise::AtLeast(0.8)),
        ];
        let part = Part { comparisons, ..Part::default() };
        let broken: Vec<String> = part.broken_promises().map(ToString::to_string).collect();
        assert_eq!(broken, ["set against raw put (0.79)"]);
        assert!(!comparison(310.0, measured(100.0), Promise::AtMost(3.0)).kept());
        assert!(comparison(290.0, measured(100.0), Promise::AtMost(3.0)).kept());
    }

    #[test]
    fn a_rival_that_was_too_slow_counts_with_its_limit_and_one_that_failed_keeps_no_promise() {
        assert!(comparison(2.9, Outcome::NotWithin(150.0), Promise::AtMost(0.02)).kept());
        assert!(!comparison(3.1, Outcome::NotWithin(150.0), Promise::AtMost(0.02)).kept());
        assert!(!comparison(1.0, Outcome::Failed("why".to_owned()), Promise::AtMost(1.0)).kept());
    }

    #[test]
    fn a_part_that_is_measured_again_takes_the_place_of_the_earlier_one() {
        let part = |name: &str, load| Part { name: name.to_owned(), load, ..Part::default() };
        let mut results =
            Results { parts: vec![part("store", 1.0), part("server", 1.0)], ..Results::default() };
        results.merge(Results { parts: vec![part("store", 2.0)], ..Results::default() });
        let mut loads: Vec<_> = results.parts.iter().map(|part| (part.name.as_str(), part.load)).collect();
        loads.sort_by_key(|(name, _)| *name);
        assert_eq!(loads, [("server", 1.0), ("store", 2.0)]);
    }
}
