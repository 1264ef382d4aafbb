//! The checks that a node must pass before it meets the others.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rallypoint_agent::checks::{Check, Surroundings};
use rallypoint_agent::{GUARD_VARIABLE, Health, HealthSettings, WhenUnhealthy, list_of_checks};
use rallypoint_rendezvous::RendezvousParameters;
use rallypoint_rendezvous::native::NativeSettings;

use super::values::Seconds;
use crate::cli::exit::Problem;
use crate::cli::variables::Variable;

const FLAG: &str = "--health-check";

/// Which checks, and when.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Health")]
pub(crate) struct HealthOptions {
    /// A check that this node must pass before it meets the others, each time, and now and then while it waits: clock, disk,
    /// gpu or port, or a command, which must end with 0. May be given several times; in the variable, `;` is between them.
    #[arg(long, long_help = help(), env = "RALLYPOINT_HEALTH_CHECK", value_name = "CHECK|COMMAND")]
    health_check: Vec<String>,
    /// How long a check may take; 25, if it is not given. The others wait meanwhile, up to the last call.
    #[arg(
        long,
        env = "RALLYPOINT_HEALTH_CHECK_TIMEOUT",
        value_name = "SECONDS",
        allow_negative_numbers = true
    )]
    health_check_timeout: Option<Seconds>,
    /// How long after a look the next one is, on a node that waits or has failed; 60, if it is not given.
    #[arg(
        long,
        env = "RALLYPOINT_HEALTH_CHECK_INTERVAL",
        value_name = "SECONDS",
        allow_negative_numbers = true
    )]
    health_check_interval: Option<Seconds>,
    /// What a node does that fails: wait until it passes, end with 6, or end and be excluded from the run. If it is not given,
    /// wait.
    #[arg(long, env = "RALLYPOINT_WHEN_UNHEALTHY", value_name = "WHAT")]
    when_unhealthy: Option<When>,
}

/// What a node does that fails its checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum When {
    /// It stays away from the others, and comes when it passes.
    Wait,
    /// It ends with 6.
    End,
    /// It ends with 6, and is excluded from the run, also if it is started again: see --exclude-for.
    Exclude,
}

fn help() -> String {
    let mut text = "A check that this node must pass before it meets the others, each time, and now and then while it waits. \
                    May be given several times; in the variable, `;` is between them.\n\nThere are:\n"
        .to_owned();
    for (name, more, what) in rallypoint_agent::checks::BUILT_IN {
        text.push_str(&format!("- {name}{more}: {what}\n"));
    }
    text.push_str("- anything else is a command, run by sh: it must end with 0");
    text
}

impl HealthOptions {
    /// Whether a node that fails is to be excluded.
    pub(crate) fn excludes(&self) -> bool {
        self.when_unhealthy == Some(When::Exclude)
    }

    /// The settings. The options of the backend, which are for torchrun, mean the same as the flags; flags come first.
    pub(crate) fn take(
        &self,
        variables: &[Variable],
        exclude_for: Option<Duration>,
        config: &mut BTreeMap<String, String>,
    ) -> Result<HealthSettings, Problem> {
        let wrong = |error: String| Problem::usage(format!("{FLAG}: {error}"));
        let mut settings =
            HealthSettings::take(config).map_err(|error| Problem::usage(format!("--rdzv-conf: {error}")))?;
        let from_variable = variables.iter().any(|variable| variable.is_of(FLAG));
        let mut checks: Vec<Check> = Vec::new();
        for text in &self.health_check {
            if from_variable {
                checks.extend(list_of_checks(text).map_err(wrong)?);
            } else {
                checks.push(text.parse().map_err(wrong)?);
            }
        }
        if !checks.is_empty() {
            settings.checks = checks;
        }
        let positive = |name: &str, given: Option<Seconds>| match given {
            Some(Seconds(time)) if time.is_zero() => {
                Err(Problem::usage(format!("{FLAG}-{name} 0: it takes a number of seconds above 0")))
            }
            given => Ok(given.map(|Seconds(time)| time)),
        };
        settings.timeout = positive("timeout", self.health_check_timeout)?.or(settings.timeout);
        settings.interval = positive("interval", self.health_check_interval)?.or(settings.interval);
        let when = self.when_unhealthy.map(|when| match when {
            When::Wait => WhenUnhealthy::Wait,
            When::End => WhenUnhealthy::End,
            When::Exclude => WhenUnhealthy::Exclude(None),
        });
        // How long is an option, too.
        let when = match (when, settings.when_unhealthy) {
            (Some(WhenUnhealthy::Exclude(_)) | None, given @ Some(WhenUnhealthy::Exclude(_))) => given,
            (when, given) => when.or(given),
        };
        settings.when_unhealthy = when.map(|when| match when {
            WhenUnhealthy::Exclude(time) => WhenUnhealthy::Exclude(exclude_for.or(time)),
            when => when,
        });
        Ok(settings)
    }
}

/// The checks of this node, if there are any.
pub(crate) fn start(
    settings: HealthSettings,
    parameters: &RendezvousParameters,
    logs: Option<&Path>,
) -> Option<Health> {
    // Only the settings of the native backend have all of the way to etcd; the other one's are among them.
    let etcd = NativeSettings::from_parameters(parameters).ok().map(|settings| settings.etcd);
    let temporary = std::env::temp_dir();
    let folders = [Some(temporary.as_path()), logs].into_iter().flatten().map(Path::to_owned).collect();
    let environment = vec![(GUARD_VARIABLE, None), ("RALLYPOINT_RUN_ID", Some(parameters.run_id.clone()))];
    settings.health(Surroundings { folders, etcd, environment })
}
