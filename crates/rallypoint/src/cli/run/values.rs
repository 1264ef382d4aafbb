//! What the values of options are, and how they are written.

use std::str::FromStr;
use std::time::Duration;

use rallypoint_agent::WhenExhausted;
use rallypoint_core::time::bounded;

/// Where events go, by torchrun's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventLogHandler {
    Console,
    Null,
}

impl FromStr for EventLogHandler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "console" => Ok(EventLogHandler::Console),
            // The second is one that PyTorch keeps for its own rendezvous, and that writes nothing.
            "null" | "dynamic_rendezvous" => Ok(EventLogHandler::Null),
            _ => {
                Err("write console or null; handlers that a Python program registers cannot be used"
                    .to_owned())
            }
        }
    }
}

pub(crate) fn restarts(text: &str) -> Result<u32, String> {
    let wanted = "write how often, 0 or more; a large number, such as 1000000, where there is to be no end";
    text.trim().parse().map_err(|_| wanted.to_owned())
}

/// A port that others are to find something at.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    text.trim().parse().map_err(|_| "write the number of a port, at most 65535".to_owned())
}

/// The least and the most nodes of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nodes {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let parsed = text.trim().parse::<usize>();
            parsed.map_err(|_| "write a number of nodes, or MIN:MAX, such as 2 or 2:4".to_owned())
        };
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        let (min, max) = (number(min)?, number(max)?);
        match (min, max) {
            (0, _) | (_, 0) => Err("a job needs at least 1 node".to_owned()),
            (min, max) if min > max => Err(format!(
                "MIN {min} is above MAX {max}; write {max}:{min} if you mean {max} to {min} nodes"
            )),
            (min, max) => Ok(Nodes { min, max }),
        }
    }
}

/// What a node does without restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Exhausted {
    /// The run is closed for all nodes, as under torchrun.
    Close,
    /// The node leaves, where the others can go on without it; otherwise the run is closed.
    Leave,
    /// The same, and the node is excluded from the run, also if it is started again: see --exclude-for.
    Exclude,
}

impl From<Exhausted> for WhenExhausted {
    fn from(exhausted: Exhausted) -> Self {
        match exhausted {
            Exhausted::Close => WhenExhausted::Close,
            Exhausted::Leave => WhenExhausted::Leave,
            Exhausted::Exclude => WhenExhausted::Exclude,
        }
    }
}

/// How many workers a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkersPerNode {
    Number(usize),
    Auto,
    Gpu,
    Xpu,
    Cpu,
}

impl FromStr for WorkersPerNode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(WorkersPerNode::Auto),
            "gpu" => Ok(WorkersPerNode::Gpu),
            "xpu" => Ok(WorkersPerNode::Xpu),
            "cpu" => Ok(WorkersPerNode::Cpu),
            "0" => Err("a node needs at least 1 worker".to_owned()),
            text => text
                .parse()
                .map(WorkersPerNode::Number)
                .map_err(|_| "write a number, or one of auto, gpu, xpu, cpu; how many devices of another kind there are only PyTorch knows".to_owned()),
        }
    }
}

/// A time in seconds, fractions allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Seconds(pub(crate) Duration);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = text.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds
            .map(bounded)
            .map(Seconds)
            .ok_or_else(|| "write a number of seconds, such as 30 or 0.5".to_owned())
    }
}

/// torchrun's lists: commas between, two commas for one.
pub(crate) fn words(text: &str) -> Vec<String> {
    const COMMA: &str = "\u{0}";
    let split = text.replace(",,", COMMA);
    split.split(',').filter(|word| !word.is_empty()).map(|word| word.replace(COMMA, ",")).collect()
}
