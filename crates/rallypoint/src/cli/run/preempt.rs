//! What is taken for a preemption, and how long workers then have.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rallypoint_agent::{PreemptionSettings, Signal};

use super::surroundings::Surroundings;
use super::values::Seconds;

/// Those that a platform sends before it takes a machine away. The others are for whoever sits at a terminal.
const SIGNALS: [(&str, Signal); 3] =
    [("SIGTERM", Signal::TERM), ("SIGUSR1", Signal::USR1), ("SIGUSR2", Signal::USR2)];
/// When a Slurm job's time is up, in seconds since 1970.
const JOB_END: &str = "SLURM_JOB_END_TIME";

/// The options of a preemption.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Preempt {
    /// The signals by which this node learns that it is taken away: SIGTERM, SIGUSR1, SIGUSR2, '' for none. Workers that
    /// listen for it get time to save. If it is not given, SIGTERM, and under Slurm SIGUSR1 too.
    #[arg(long, env = "RALLYPOINT_PREEMPT_SIGNAL", value_name = "NAMES", help_heading = "Workers")]
    preempt_signal: Option<Signals>,
    /// How long it is from that signal until this node has to be gone, whatever else goes on. Its workers can save in all but
    /// the end of it, also if they do not listen; 0: they never get time to save. If it is not given, --shutdown-timeout, or
    /// until the end of the Slurm job, and only where workers listen.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "RALLYPOINT_PREEMPT_GRACE",
        value_name = "SECONDS",
        help_heading = "Workers"
    )]
    preempt_grace: Option<Seconds>,
    /// SIGUSR1 or SIGUSR2, which workers of all nodes get when a node is preempted, if they have a handler for it. If it is
    /// not given, none.
    #[arg(long, env = "RALLYPOINT_PREEMPT_NOTIFY", value_name = "SIGNAL", value_parser = notify, help_heading = "Workers")]
    preempt_notify: Option<Signal>,
}

impl Preempt {
    /// The signals that mean a preemption.
    pub(crate) fn signals(&self, around: Surroundings<'_>) -> Vec<Signal> {
        if self.grace().is_some_and(|grace| grace.is_zero()) {
            return Vec::new();
        }
        match &self.preempt_signal {
            Some(Signals(signals)) => signals.clone(),
            None if is_slurm(around) => vec![Signal::TERM, Signal::USR1],
            None => vec![Signal::TERM],
        }
    }

    /// The time that was asked for.
    pub(crate) fn grace(&self) -> Option<Duration> {
        self.preempt_grace.map(|seconds| seconds.0)
    }

    /// For the agent, but for the folder.
    pub(crate) fn settings(&self, around: Surroundings<'_>) -> PreemptionSettings {
        let mut settings = PreemptionSettings::default();
        settings.grace = self.grace();
        settings.notify = self.preempt_notify;
        settings.job_end = job_end(around);
        settings
    }
}

fn is_slurm(around: Surroundings<'_>) -> bool {
    (around.variable)("SLURM_JOB_ID").is_some_and(|job| !job.is_empty())
}

fn job_end(around: Surroundings<'_>) -> Option<SystemTime> {
    let seconds = (around.variable)(JOB_END)?.trim().parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).filter(|_| is_slurm(around))
}

/// Signals by their names, commas between.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Signals(Vec<Signal>);

impl FromStr for Signals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let find = |name| match SIGNALS.iter().find(|(known, _)| *known == name) {
            Some((_, signal)) => Ok(*signal),
            None => Err(format!(
                "{name:?} cannot be it: there are SIGTERM, SIGUSR1 and SIGUSR2; Ctrl-C and the end of a terminal always end this node at once"
            )),
        };
        named.map(find).collect::<Result<_, _>>().map(Signals)
    }
}

fn notify(text: &str) -> Result<Signal, String> {
    match text.trim() {
        "SIGUSR1" => Ok(Signal::USR1),
        "SIGUSR2" => Ok(Signal::USR2),
        _ => Err("write SIGUSR1 or SIGUSR2; other signals have a meaning of their own".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::super::options::tests::parsed;
    use super::*;

    fn signals(line: &str, variables: &[(&str, &str)]) -> Vec<Signal> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        parsed(line).unwrap().preempt.signals(Surroundings { variable: &variable, host: "h" })
    }

    #[test]
    fn what_a_platform_sends_is_a_preemption_and_ctrl_c_is_not() {
        let slurm = [("SLURM_JOB_ID", "7")];
        assert_eq!(signals("", &[]), [Signal::TERM]);
        assert_eq!(signals("", &slurm), [Signal::TERM, Signal::USR1]);
        assert_eq!(signals("--preempt-signal SIGUSR2", &slurm), [Signal::USR2]);
        assert_eq!(signals("--preempt-signal=", &slurm), []);
        assert_eq!(signals("--preempt-grace 0", &slurm), [], "they never get time");
        for refused in ["--preempt-signal SIGINT", "--preempt-signal TERM", "--preempt-notify SIGTERM"] {
            assert!(parsed(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_jobs_end_is_slurms() {
        let end = |variables: &'static [(&str, &str)]| {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            job_end(Surroundings { variable: &variable, host: "h" })
        };
        let at = Some(UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        assert_eq!(end(&[("SLURM_JOB_ID", "7"), (JOB_END, "1800000000")]), at);
        assert_eq!(end(&[("SLURM_JOB_ID", "7"), (JOB_END, "soon")]), None);
        assert_eq!(end(&[(JOB_END, "1800000000")]), None, "left over in an environment");
    }
}
