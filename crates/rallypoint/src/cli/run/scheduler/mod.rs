//! What the scheduler that started this node says of the job, in the place of options that were not given.
//!
//! Pure: variables go in; options, settings of the backend and one line for people come out. What the user said wins.

mod kubernetes;
mod slurm;

use std::collections::BTreeMap;
use std::fmt;

use rallypoint_core::Endpoints;
use rallypoint_rendezvous::RendezvousParameters;

use super::options::Run;
use super::server::Serves;
use super::surroundings::Surroundings;
use crate::cli::exit::Problem;

/// In the environment of workers: where their launcher was started. What they hand in elsewhere, another job for one, takes
/// the variable along, and is somewhere else.
pub(crate) const LAUNCHED_IN: &str = "RALLYPOINT_LAUNCHED_IN";

/// The step or the pod that this process is in.
pub(crate) fn launched_in(around: Surroundings<'_>) -> Option<String> {
    match (around.text("SLURM_JOB_ID"), around.text("SLURM_STEP_ID")) {
        (Some(job), Some(step)) => Some(format!("{job}.{step}")),
        _ => around.text("KUBERNETES_SERVICE_HOST").map(|_| around.host.to_owned()),
    }
}

/// What was taken, beside what was written into the options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// For the backend; what `--rdzv-conf` says comes first.
    pub(crate) config: BTreeMap<String, String>,
    /// Whether this node has the server, where the scheduler knows.
    pub(crate) serves: Option<Serves>,
    /// Both the run's name and its place are the scheduler's: what it starts next in the same way has them too.
    pub(crate) names_run: bool,
    /// One line: each option that was taken, and what it is from.
    pub(crate) said: Option<String>,
    /// What the user should know at once.
    pub(crate) warned: Option<String>,
}

/// Takes what was not given from the scheduler, where there is one.
pub(crate) fn take(options: &mut Run, around: Surroundings<'_>) -> Result<Scheduled, Problem> {
    // What the scheduler says of a step is of the run that its launchers have: not of one that a worker starts.
    let within = around.text(LAUNCHED_IN).is_some_and(|outer| launched_in(around) == Some(outer));
    // For this node alone, whatever else the scheduler has started.
    if options.standalone || within {
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

/// Takes options, and keeps what to say of it.
struct Taking<'a> {
    options: &'a mut Run,
    scheduled: Scheduled,
    /// What `--rdzv-conf` says itself. What is wrong with it is told later.
    given: BTreeMap<String, String>,
    said: Vec<String>,
}

impl<'a> Taking<'a> {
    fn new(options: &'a mut Run) -> Self {
        let given = RendezvousParameters::parse_config(&options.rdzv_conf).unwrap_or_default();
        options.local_addr = options.local_addr.take().filter(|address| !address.is_empty());
        Taking { options, scheduled: Scheduled::default(), given, said: Vec::new() }
    }

    /// TLS is spoken, by a flag or by `--rdzv-conf`: no server that a job starts has it.
    fn wants_tls(&self) -> bool {
        let https = self.given.get("protocol").is_some_and(|protocol| protocol == "https");
        let files = ["cacert", "ca_cert", "cert", "ssl_cert"];
        https
            || files.iter().any(|file| self.given.contains_key(*file))
            || !self.options.connection.is_plain()
    }

    fn say(&mut self, option: &str, value: impl fmt::Display, from: &str) {
        self.said.push(format!("{option} {value} ({from})"));
    }

    /// A setting of the backend.
    fn set(&mut self, key: &str, value: String, from: &str) {
        if !self.given.contains_key(key) {
            self.say(key, &value, from);
            self.scheduled.config.insert(key.to_owned(), value);
        }
    }

    /// This node has the server: the others reach it by this name.
    fn serve(&mut self, serves: Serves, host: &str, from: &str) {
        self.scheduled.serves = Some(serves);
        self.be_known_as(host, from);
    }

    /// The address by which the others reach this node.
    fn be_known_as(&mut self, host: &str, from: &str) {
        if self.options.local_addr.is_none() {
            self.say("--local-addr", host, from);
            self.options.local_addr = Some(host.to_owned());
        }
    }

    /// Where the nodes meet is on this node, by the name that it is known by: whoever serves there, this is its address.
    fn own_endpoint(&self, own: &str) -> Option<String> {
        let options = &self.options;
        if options.connection.only_connect() {
            return None;
        }
        let place = if options.meets_at_master() {
            options.master_addr.clone()?
        } else {
            let endpoints: Endpoints = options.connection.endpoints().parse().ok()?;
            let [endpoint] = endpoints.as_slice() else { return None };
            endpoint.host.clone()
        };
        (place == own || place.split('.').next() == Some(own)).then_some(place)
    }

    fn done(mut self, scheduler: &str) -> Scheduled {
        if !self.said.is_empty() {
            self.scheduled.said = Some(format!("from {scheduler}: {}; flags win", self.said.join(", ")));
        }
        self.scheduled
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::super::options::tests::parsed;
    use super::*;

    /// What follows from a command line, on a host, with these variables.
    pub(super) fn taken(
        line: &str,
        host: &str,
        variables: &[(&str, &str)],
    ) -> Result<(Run, Scheduled), Problem> {
        let mut run = parsed(line).unwrap();
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let scheduled = take(&mut run, Surroundings { variable: &variable, host })?;
        Ok((run, scheduled))
    }

    #[test]
    fn without_a_scheduler_nothing_is_taken() {
        for job in ["", "1\n2"] {
            let (run, scheduled) = taken("", "node1", &[("SLURM_JOB_ID", job)]).unwrap();
            assert_eq!((run.nnodes, run.rdzv_id.as_str()), (None, ""));
            assert_eq!(scheduled, Scheduled::default());
        }
    }
}
