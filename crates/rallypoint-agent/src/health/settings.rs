//! What of a node's health is looked at, and when: as flags and a backend's options say it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use rallypoint_health::{Check, Surroundings};
use rallypoint_rendezvous::HEALTH_OPTIONS;
use rallypoint_rendezvous::native::exclusion_time;

use super::{DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT, Health, WhenUnhealthy};

/// What of a node's health is looked at, and when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthSettings {
    /// The checks.
    pub checks: Vec<Check>,
    /// How long each may take; [`DEFAULT_HEALTH_TIMEOUT`], if it is not said.
    pub timeout: Option<Duration>,
    /// How long after a look the next one is, of a node that waits; [`DEFAULT_HEALTH_INTERVAL`], if it is not said.
    pub interval: Option<Duration>,
    /// What a node does that is not fit.
    pub when_unhealthy: Option<WhenUnhealthy>,
}

impl HealthSettings {
    /// Takes them out of a backend's options.
    pub fn take(config: &mut BTreeMap<String, String>) -> Result<Self, String> {
        let [checks, timeout, interval, when, exclude_for] = HEALTH_OPTIONS.map(|name| config.remove(name));
        let exclude_for = exclude_for
            .map(|text| exclusion_time(&text).map_err(|why| of(HEALTH_OPTIONS[4], why)))
            .transpose()?;
        let when = when
            .map(|text| WhenUnhealthy::from_str(&text).map_err(|why| of(HEALTH_OPTIONS[3], why)))
            .transpose()?;
        if exclude_for.is_some() && when != Some(WhenUnhealthy::Exclude(None)) {
            return Err(of(HEALTH_OPTIONS[4], "it needs when_unhealthy=exclude beside it"));
        }
        Ok(HealthSettings {
            checks: checks
                .map_or_else(|| Ok(Vec::new()), |text| list(&text))
                .map_err(|why| of(HEALTH_OPTIONS[0], why))?,
            timeout: timeout.map(|text| above_zero(HEALTH_OPTIONS[1], &text)).transpose()?,
            interval: interval.map(|text| above_zero(HEALTH_OPTIONS[2], &text)).transpose()?,
            when_unhealthy: when.map(|when| match when {
                WhenUnhealthy::Exclude(_) => WhenUnhealthy::Exclude(exclude_for),
                when => when,
            }),
        })
    }

    /// The checks, if there are any.
    #[must_use]
    pub fn health(self, surroundings: Surroundings) -> Option<Health> {
        let times = (
            self.timeout.unwrap_or(DEFAULT_HEALTH_TIMEOUT),
            self.interval.unwrap_or(DEFAULT_HEALTH_INTERVAL),
        );
        let when = self.when_unhealthy.unwrap_or_default();
        (!self.checks.is_empty()).then(|| Health::new(self.checks, surroundings, times, when))
    }
}

/// Several checks in one text, as variables and options have them: `;` between.
pub fn list(text: &str) -> Result<Vec<Check>, String> {
    text.split(';').map(str::trim).filter(|text| !text.is_empty()).map(str::parse).collect()
}

fn above_zero(name: &str, text: &str) -> Result<Duration, String> {
    let time = rallypoint_rendezvous::seconds(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| of(name, format!("{text:?} is no number of seconds above 0")))
}

fn of(name: &str, why: impl Display) -> String {
    format!("the option '{name}': {why}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn taken(pairs: &[(&str, &str)]) -> Result<(HealthSettings, usize), String> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut config = pairs.iter().map(own).collect();
        HealthSettings::take(&mut config).map(|settings| (settings, config.len()))
    }

    #[test]
    fn options_are_taken_out_and_what_is_wrong_is_named() {
        let (settings, left) = taken(&[
            ("health_check", "gpu=8; ./check --deep;"),
            ("health_check_timeout", "2.5"),
            ("when_unhealthy", "end"),
            ("rack", "r1"),
        ])
        .unwrap();
        assert_eq!(left, 1);
        assert_eq!(settings.checks, [Check::Gpu { count: Some(8) }, Check::Command("./check --deep".into())]);
        assert_eq!((settings.timeout, settings.interval), (Some(Duration::from_millis(2_500)), None));
        assert_eq!(settings.when_unhealthy, Some(WhenUnhealthy::End));
        let excludes = taken(&[("when_unhealthy", "exclude"), ("exclude_for", "2h")]).unwrap().0;
        let two_hours = Some(Duration::from_secs(7_200));
        assert_eq!(excludes.when_unhealthy, Some(WhenUnhealthy::Exclude(two_hours)));
        assert!(taken(&[]).unwrap().0.health(Surroundings::default()).is_none());
        for (name, value) in [
            ("health_check", "disk=x"),
            ("health_check_interval", "0"),
            ("when_unhealthy", "leave"),
            ("exclude_for", "31d"),
            ("exclude_for", "2h"),
        ] {
            let error = taken(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(&format!("the option '{name}'")), "{error}");
        }
    }
}
