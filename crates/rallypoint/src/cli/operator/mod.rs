//! What an operator asks of an etcd: `rallypoint status`, `events`, `close`, `exclude`, `include`, `excluded` and `stacks`.

mod close;
mod events;
mod exclusions;
mod stacks;
mod status;
mod table;

use std::io::{ErrorKind, Write};
use std::time::SystemTime;

use rallypoint_core::time::millis;
use rallypoint_etcd::v3::{Client, KeyRange, Watch, revision_of};

pub(super) use self::close::{Close, close};
pub(super) use self::events::{Events, events};
pub(super) use self::exclusions::{
    Exclude, Excluded, Include, exclude, excluded, include, time as exclusion_time,
};
pub(super) use self::stacks::{Stacks, stacks};
pub(super) use self::status::{Status, status};
use super::exit::{EndpointFlags, NODE, Problem, advice, chain, of_etcd};

/// No such run on this etcd.
const NO_RUN: u8 = 1;

/// All changes from now on.
async fn watch(client: &Client, range: KeyRange) -> rallypoint_etcd::Result<Watch> {
    let options = range.get_options().with_count_only();
    let answer = client.get(range.start().to_vec(), Some(options)).await?;
    Ok(client.watch(range, revision_of(answer.header())? + 1))
}

fn failed(error: &rallypoint_etcd::Error) -> Problem {
    let advice = match error.is_transient() {
        true => "",
        false => advice(Some(error), EndpointFlags::Operator),
    };
    Problem::new(of_etcd(error), format!("{}{advice}", chain(error)))
}

fn no_such_run(run: &str) -> Problem {
    Problem::new(
        NO_RUN,
        format!(
            "there is no run {run:?} on this etcd; `rallypoint status` lists those there are: runs of the backend rallypoint, and no others"
        ),
    )
}

/// Shows it. False if nobody reads any more, which is no fault of the run.
fn print(text: &str, redraw: bool) -> Result<bool, Problem> {
    let clear = if redraw { "\x1b[2J\x1b[H" } else { "" };
    let mut out = std::io::stdout().lock();
    match write!(out, "{clear}{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Problem::new(NODE, format!("what is to be shown cannot be written: {error}"))),
    }
}

fn json(value: &impl serde::Serialize, one_line: bool) -> Result<String, Problem> {
    let text = if one_line { serde_json::to_string(value) } else { serde_json::to_string_pretty(value) };
    text.map(|text| text + "\n").map_err(|error| Problem::new(NO_RUN, error.to_string()))
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    millis(SystemTime::now())
}
