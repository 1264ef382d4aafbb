//! What the scheduler that started this node says of the job, in the place of options that were not given.
//!
//! Pure: variables go in; options, settings of the backend and one line for people come out. What the user said wins.

mod kubernetes;
mod slurm;

use std::collections::BTreeMap;

use super::options::Run;
use super::server::Serves;
use crate::cli::exit::Problem;

/// What was taken, beside what was written into the options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// For the backend; what `--rdzv-conf` says comes first.
    pub(crate) config: BTreeMap<String, String>,
    /// Whether this node has the server, where the scheduler knows.
    pub(crate) serves: Option<Serves>,
    /// One line: each option that was taken, and the variables it is from.
    pub(crate) said: Option<String>,
    /// What the user should know at once.
    pub(crate) warned: Option<String>,
}

/// What a process finds around it.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    /// Its environment; a variable that is empty is none.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The name of its machine, or of its pod.
    pub(crate) host: &'a str,
}

impl Surroundings<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// A variable that is needed, for want of a flag.
    fn needed(&self, name: &str, instead: &str) -> Result<String, Problem> {
        self.text(name)
            .ok_or_else(|| Problem::usage(format!("{name} is not set, as it is under srun: give {instead}")))
    }

    fn number(&self, name: &str, instead: &str) -> Result<usize, Problem> {
        let text = self.needed(name, instead)?;
        text.parse()
            .map_err(|_| Problem::usage(format!("{name} is {text:?}, which is no number: give {instead}")))
    }
}

/// Takes what was not given from the scheduler, where there is one.
pub(crate) fn take(options: &mut Run, around: Surroundings<'_>) -> Result<Scheduled, Problem> {
    // For this node alone, whatever else the scheduler has started.
    if options.standalone {
        return Ok(Scheduled::default());
    }
    if around.text("SLURM_JOB_ID").is_some() {
        slurm::take(options, around)
    } else if around.text("KUBERNETES_SERVICE_HOST").is_some() {
        Ok(kubernetes::take(options, around))
    } else {
        Ok(Scheduled::default())
    }
}

/// The options that were taken, for people.
struct Taken {
    from: &'static str,
    options: Vec<String>,
}

impl Taken {
    fn from(scheduler: &'static str) -> Self {
        Taken { from: scheduler, options: Vec::new() }
    }

    fn add(&mut self, option: &str, value: impl std::fmt::Display, variables: &str) {
        self.options.push(format!("{option} {value} ({variables})"));
    }

    fn said(self) -> Option<String> {
        let taken = (!self.options.is_empty()).then(|| self.options.join(", "));
        taken.map(|taken| format!("from {}: {taken}; flags win", self.from))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        run: Run,
    }

    /// What follows from a command line, on a host, with these variables.
    pub(super) fn taken(
        line: &str,
        host: &str,
        variables: &[(&str, &str)],
    ) -> Result<(Run, Scheduled), Problem> {
        let words = ["rallypoint"].into_iter().chain(line.split_whitespace()).chain(["train.py"]);
        let mut run = Cli::try_parse_from(words).unwrap().run;
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let scheduled = take(&mut run, Surroundings { variable: &variable, host })?;
        Ok((run, scheduled))
    }

    #[test]
    fn without_a_scheduler_nothing_is_taken() {
        let (run, scheduled) = taken("", "node1", &[("SLURM_JOB_ID", "")]).unwrap();
        assert_eq!((run.nnodes, run.rdzv_id.as_str()), (None, ""));
        assert_eq!(scheduled, Scheduled::default());
    }
}
