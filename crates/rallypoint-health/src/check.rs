//! The checks by name, as they are asked for.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The checks that are built in: each with what may follow it and what it looks at.
pub const BUILT_IN: [(&str, &str, &str); 4] = [
    ("clock", "[=SECONDS]", "this machine's clock is not so far from etcd's (2)"),
    (
        "disk",
        "[=SIZE[:FOLDER]]",
        "the folder takes files and has so much room (1G; the folders of logs and temporary files)",
    ),
    (
        "gpu",
        "[=COUNT]",
        "as many NVIDIA GPUs are there, and none reports lost memory, an Xid error or too high a temperature",
    ),
    ("port", "", "the nodes that have met can reach each other, and the port where the workers meet"),
];

const DEFAULT_ROOM: u64 = 1 << 30;
/// Two clocks that are set by NTP are milliseconds apart; an etcd tells its own in whole seconds.
const DEFAULT_SKEW: Duration = Duration::from_secs(2);

/// A check of a node.
///
/// ```
/// use rallypoint_health::Check;
///
/// assert_eq!("gpu=8".parse(), Ok(Check::Gpu { count: Some(8) }));
/// assert_eq!("nvidia-smi -L".parse(), Ok(Check::Command("nvidia-smi -L".into())));
/// assert!("disk=much".parse::<Check>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Check {
    /// The clocks of this machine and of etcd are not so far apart.
    Clock {
        /// At most.
        most: Duration,
    },
    /// A shell command ends with 0.
    Command(String),
    /// A folder takes files and has room.
    Disk {
        /// At least so many bytes.
        least: u64,
        /// Where; in the folders of logs and temporary files, if it is not said.
        folder: Option<PathBuf>,
    },
    /// The GPUs are there and report nothing bad.
    Gpu {
        /// So many, if it is said; otherwise as many as were there first.
        count: Option<u32>,
    },
    /// The nodes that meet can reach each other.
    Port,
}

impl FromStr for Check {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let wrong = |wanted: &str| format!("{text:?}: after {name}= comes {wanted}");
        Ok(match (name, value) {
            ("", _) => return Err("there is no check in an empty text".to_owned()),
            ("clock", None) => Check::Clock { most: DEFAULT_SKEW },
            ("clock", Some(value)) => {
                let seconds =
                    value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                let most = seconds.filter(|most| !most.is_zero());
                Check::Clock { most: most.ok_or_else(|| wrong("a number of seconds, as in clock=2"))? }
            }
            ("disk", None) => Check::Disk { least: DEFAULT_ROOM, folder: None },
            ("disk", Some(value)) => {
                let (least, folder) = match value.split_once(':') {
                    Some((least, folder)) if !folder.is_empty() => (least, Some(folder.into())),
                    _ => (value, None),
                };
                let least =
                    size(least).ok_or_else(|| wrong("a size, as in disk=20G or disk=500M:/scratch"))?;
                Check::Disk { least, folder }
            }
            ("gpu", None) => Check::Gpu { count: None },
            ("gpu", Some(value)) => {
                let count = value.parse().ok().filter(|count| *count > 0);
                Check::Gpu {
                    count: Some(count.ok_or_else(|| wrong("how many there are to be, as in gpu=8"))?),
                }
            }
            ("port", None) => Check::Port,
            ("port", Some(_)) => return Err(format!("{text:?}: nothing comes after port")),
            // The shell would set a variable, and be content.
            (name, Some(_)) if !text.contains(char::is_whitespace) && is_name(name) => {
                return Err(format!("{text:?} is no check: those that are built in are {}", names()));
            }
            _ => Check::Command(text.to_owned()),
        })
    }
}

/// Whether this can be the name of a variable.
fn is_name(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))
}

/// Those that are built in.
pub(crate) fn names() -> String {
    BUILT_IN.map(|(name, ..)| name).join(", ")
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Check::Clock { .. } => f.write_str("clock"),
            Check::Command(text) => f.write_str(text),
            Check::Disk { .. } => f.write_str("disk"),
            Check::Gpu { .. } => f.write_str("gpu"),
            Check::Port => f.write_str("port"),
        }
    }
}

/// `500M`, `20G`, `1T` or plain bytes; powers of 1024.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        (at, 't' | 'T') => (&text[..at], 40),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_a_command_and_what_follows_a_name_is_looked_at() {
        let check = |text: &str| text.parse::<Check>();
        assert_eq!(check("clock=0.5"), Ok(Check::Clock { most: Duration::from_millis(500) }));
        assert_eq!(check("disk"), Ok(Check::Disk { least: 1 << 30, folder: None }));
        let scratch = Check::Disk { least: 500 << 20, folder: Some("/scratch:1".into()) };
        assert_eq!(check("disk=500M:/scratch:1"), Ok(scratch));
        for command in ["./disk", "disk-check", "FOO=1 ./check", "true; gpu"] {
            assert_eq!(check(command), Ok(Check::Command(command.to_owned())));
        }
        for wrong in [
            "gpus=8",
            "GPU=8",
            "",
            " ",
            "clock=",
            "clock=0",
            "clock=-1",
            "disk=",
            "disk=1Q",
            "disk=99999999T",
            "gpu=0",
            "gpu=all",
            "port=1",
        ] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
