//! `rallypoint close`: the end of a run, by an operator.

use std::io::Write;

use rallypoint_core::round::DEFAULT_CLOSED_TTL;
use rallypoint_core::text::plain;
use rallypoint_rendezvous::native;

use super::super::connection::Connection;
use super::super::exit::{CLOSED, Problem};
use super::{failed, no_such_run};

/// End a run for all its nodes.
///
/// All its nodes stop their workers and end with exit code 5. So do nodes that are started with this --rdzv-id in the
/// next 10 minutes. Only runs of the backend rallypoint can be closed so.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: rallypoint close job42 --reason maintenance --endpoint etcd1:2379\n\nExit codes: 0 closed, 1 there is no such run, 2 wrong usage, 4 no etcd at the endpoint, 5 closed already."
)]
pub(crate) struct Close {
    /// The run, by its --rdzv-id.
    #[arg(value_name = "RUN")]
    run: String,
    /// Why, in words: each of its nodes says it when it ends.
    #[arg(long, env = "RALLYPOINT_REASON", value_name = "TEXT", value_parser = in_words)]
    reason: String,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn in_words(reason: &str) -> Result<String, &'static str> {
    if reason.trim().is_empty() { Err("say why, in words") } else { Ok(reason.to_owned()) }
}

/// The exit code of `rallypoint close`.
pub(crate) async fn close(options: &Close) -> Result<u8, Problem> {
    let run = &options.run;
    native::check_run_id(run).map_err(|error| Problem::usage(error.to_string()))?;
    let client = options.connection.client().await?;
    if native::status(&client, run).await.map_err(|error| failed(&error))?.is_none() {
        return Err(no_such_run(run));
    }
    let closed = native::close(&client, run, &options.reason, DEFAULT_CLOSED_TTL)
        .await
        .map_err(|error| failed(&error))?;
    if !closed {
        let endpoint = options.connection.endpoints();
        let text = format!(
            "run {run:?} is closed already; `rallypoint status {run} --endpoint {endpoint}` says why"
        );
        return Err(Problem::new(CLOSED, text));
    }
    // The run is closed, whoever reads.
    let _ = writeln!(std::io::stdout(), "run {} is closed: {}", plain(run), plain(&options.reason));
    Ok(0)
}
