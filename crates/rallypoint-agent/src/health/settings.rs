//! What of a node's health is looked at, and when: as flags and a backend's options say it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use rallypoint_health::{Check, Surroundings};

use super::{DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT, Health, WhenUnhealthy};

/// The options of a backend that are read here.
pub const HEALTH_OPTIONS: [&str; 4] =
    ["health_check", "health_check_timeout", "health_check_interval", "when_unhealthy"];

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
        let [checks, timeout, interval, when] = HEALTH_OPTIONS.map(|name| config.remove(name));
        Ok(HealthSettings {
            checks: checks
                .map_or_else(|| Ok(Vec::new()), |text| list(&text))
                .map_err(|why| of(HEALTH_OPTIONS[0], why))?,
            timeout: timeout.map(|text| seconds(HEALTH_OPTIONS[1], &text)).transpose()?,
            interval: interval.map(|text| seconds(HEALTH_OPTIONS[2], &text)).transpose()?,
            when_unhealthy: when
                .map(|text| WhenUnhealthy::from_str(&text).map_err(|why| of(HEALTH_OPTIONS[3], why)))
                .transpose()?,
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

fn seconds(name: &str, text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|seconds| !seconds.is_zero());
    seconds.ok_or_else(|| of(name, format!("{text:?} is no number of seconds above 0")))
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
        assert!(taken(&[]).unwrap().0.health(Surroundings::default()).is_none());
        for (name, value) in
            [("health_check", "disk=x"), ("health_check_interval", "0"), ("when_unhealthy", "leave")]
        {
            let error = taken(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(&format!("the option '{name}'")), "{error}");
        }
    }
}
