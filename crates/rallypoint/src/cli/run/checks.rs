//! Options that would be taken without a word, though they cannot mean anything.

use rallypoint_agent::{DEFAULT_MAX_DEPARTURES, StreamChoice, Streams};

use super::options::{Exhausted, Run};
use super::room;
use crate::cli::exit::Problem;

/// Refuses what cannot be meant, on a node with so many workers.
pub(crate) fn check(options: &Run, workers: usize) -> Result<(), Problem> {
    room::check(workers, &room::limits())?;
    let named = [
        ("--redirects", options.redirects.last_named()),
        ("--tee", StreamChoice::last_named(&options.tee)),
        ("--interactive-rank", options.interactive_rank),
        ("--local-ranks-filter", options.local_ranks_filter.iter().max().copied()),
    ];
    for (flag, last) in named {
        if let Some(last) = last.filter(|last| *last >= workers) {
            let there =
                if workers == 1 { "is only 0".to_owned() } else { format!("are 0 to {}", workers - 1) };
            return Err(Problem::usage(format!(
                "{flag} names the local rank {last}, and on this node there {there}"
            )));
        }
    }
    if let Some(name) = &options.without_meaning.logs_specs {
        return Err(Problem::usage(format!(
            "--logs-specs {name} names a Python class, which only torchrun can load: choose with --log-dir, --redirects and --tee"
        )));
    }
    if let Some(rank) = options.interactive_rank {
        for (flag, choice) in [("--redirects", &options.redirects), ("--tee", &options.tee)] {
            if choice.of(rank) != Streams::default() {
                return Err(Problem::usage(format!(
                    "{flag} is for the worker with local rank {rank} too, whose output --interactive-rank leaves on the terminal: name the others, as in {flag} {}:3",
                    rank + 1
                )));
            }
        }
    }
    if options.standalone && !options.connection.endpoints().is_empty() {
        return Err(Problem::usage(format!(
            "--standalone needs no --rdzv-endpoint, and there is {}: leave one of them out",
            options.connection.endpoints()
        )));
    }
    if options.max_etcd_outage.is_some() && options.fence_timeout.is_some_and(|seconds| seconds.0.is_zero()) {
        return Err(Problem::usage(
            "--fence-timeout 0 turns off what --max-etcd-outage needs: leave one of them out",
        ));
    }
    Ok(())
}

/// What was given and does nothing, with why.
pub(crate) fn without_effect(options: &Run) -> Vec<(&'static str, &'static str)> {
    let departs =
        options.max_departures != DEFAULT_MAX_DEPARTURES && options.when_exhausted == Exhausted::Close;
    let excludes = options.exclude_for.is_some()
        && options.when_exhausted != Exhausted::Exclude
        && !options.health.excludes();
    let returns = options.restarts_return_after.is_some() && options.max_restarts == 0;
    let traces = options.otlp_endpoint.is_some() && !options.is_native();
    let all = [
        (
            traces,
            "--otlp-endpoint",
            "only rounds of the backend rallypoint have what all their nodes know a trace by",
        ),
        (departs, "--max-departures", "nodes leave so only with --when-exhausted leave or exclude"),
        (
            excludes,
            "--exclude-for",
            "nodes are kept out so only with --when-exhausted exclude or --when-unhealthy exclude",
        ),
        (returns, "--restarts-return-after", "with --max-restarts 0 there is nothing to come back"),
    ];
    let given = all.into_iter().filter(|(given, ..)| *given).map(|(_, flag, why)| (flag, why));
    options.without_meaning.given().into_iter().chain(given).collect()
}
