//! A table of comparisons, with what the project promises of each.

use std::fmt;

use serde::Serialize;

use crate::measure::Samples;

/// What a ratio must be.
#[derive(Debug, Clone, Copy, Serialize)]
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

/// Ours beside a rival's.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) ours: Samples,
    pub(crate) rival: &'static str,
    pub(crate) theirs: Samples,
    pub(crate) promise: Option<Promise>,
}

impl Comparison {
    fn ratio(&self) -> f64 {
        self.ours.median() / self.theirs.median()
    }

    fn kept(&self) -> bool {
        self.promise.is_none_or(|promise| promise.kept(self.ratio()))
    }
}

/// Everything that was measured in one run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// What ran: versions, cores, rounds.
    pub(crate) setting: Vec<String>,
    pub(crate) comparisons: Vec<Comparison>,
}

impl Report {
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("figures and names can be written as JSON")
    }

    pub(crate) fn broken_promises(&self) -> Vec<String> {
        let broken = self.comparisons.iter().filter(|comparison| !comparison.kept());
        broken
            .map(|broken| format!("{} against {} ({:.2})", broken.name, broken.rival, broken.ratio()))
            .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.setting {
            writeln!(f, "{line}")?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "| what | ours: median (least - most) | rival | rival's: median (least - most) | ratio | promise |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- |")?;
        for row in &self.comparisons {
            let figure = |samples: &Samples| {
                let (median, least, most) = (samples.median(), samples.least(), samples.most());
                format!("{} {} ({} - {})", short(median), row.unit, short(least), short(most))
            };
            let promise = match row.promise {
                None => String::new(),
                Some(promise) if row.kept() => format!("{promise}: kept"),
                Some(promise) => format!("{promise}: NOT KEPT"),
            };
            let (ours, theirs) = (figure(&row.ours), figure(&row.theirs));
            writeln!(
                f,
                "| {} | {ours} | {} | {theirs} | {:.2} | {promise} |",
                row.name,
                row.rival,
                row.ratio()
            )?;
        }
        Ok(())
    }
}

/// Three digits are as much as such figures can tell.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(ours: f64, promise: Promise) -> Comparison {
        let samples = |value| {
            let mut samples = Samples::default();
            samples.push(value);
            samples
        };
        let (ours, theirs) = (samples(ours), samples(100.0));
        Comparison { name: "set", unit: "/s", ours, rival: "raw put", theirs, promise: Some(promise) }
    }

    #[test]
    fn a_broken_promise_is_named() {
        let comparisons =
            vec![comparison(79.0, Promise::AtLeast(0.8)), comparison(81.0, Promise::AtLeast(0.8))];
        let report = Report { comparisons, ..Report::default() };
        assert_eq!(report.broken_promises(), ["set against raw put (0.79)"]);
        assert!(report.to_string().contains("NOT KEPT"));
        assert!(!comparison(310.0, Promise::AtMost(3.0)).kept());
        assert!(comparison(290.0, Promise::AtMost(3.0)).kept());
    }
}
