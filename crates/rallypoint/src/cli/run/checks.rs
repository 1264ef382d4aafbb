//! Options that would be taken without a word, though they cannot mean anything.

use std::time::Duration;

use rallypoint_agent::{DEFAULT_GRACE, DEFAULT_MAX_DEPARTURES, StreamChoice, Streams};
use rallypoint_core::round::DEFAULT_LAST_CALL;

use super::options::Run;
use super::room;
use super::values::{Exhausted, Nodes};
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

// A node that has to kill its workers is still in time for the last call of the others.
const _: () = assert!(DEFAULT_GRACE.as_millis() < DEFAULT_LAST_CALL.as_millis());

/// What is said where that is not so by the user's choice. A group of one size waits for all its nodes anyhow.
pub(crate) fn late_for_last_call(nodes: Nodes, grace: Duration, last_call: Duration) -> Option<String> {
    let (grace, last_call) = (grace.as_secs_f64(), last_call.as_secs_f64());
    (nodes.min < nodes.max && grace >= last_call).then(|| {
        format!(
            "--shutdown-timeout is {grace} s, and the others wait {last_call} s for a node that stops its workers (last_call_timeout): one that takes longer \
             is met without, and then once more, so all start twice; keep it below that, or give --rdzv-conf last_call_timeout={}",
            grace + 5.0
        )
    })
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
    let fixed = options.nodes().min == options.nodes().max;
    let waits = options.replacement_timeout.is_some_and(|seconds| !seconds.0.is_zero());
    let all = [
        (
            waits && !options.is_native(),
            "--replacement-timeout",
            "only nodes of the backend rallypoint wait for a replacement",
        ),
        (
            waits && options.is_native() && fixed,
            "--replacement-timeout",
            "a group of one size, as --nnodes says, never meets with fewer",
        ),
        (
            traces,
            "--otlp-endpoint",
            "only rounds of the backend rallypoint have what all their nodes know a trace by",
        ),
        (departs, "--max-departures", "nodes leave so only with --when-exhausted leave or exclude"),
        (
            excludes,
            "--exclude-for",
            "nodes are excluded so only with --when-exhausted exclude or --when-unhealthy exclude",
        ),
        (returns, "--restarts-return-after", "with --max-restarts 0 there is nothing to come back"),
    ];
    let given = all.into_iter().filter(|(given, ..)| *given).map(|(_, flag, why)| (flag, why));
    options.without_meaning.given().into_iter().chain(given).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_as_long_as_the_last_call_is_warned_of_where_a_node_can_be_late() {
        let [some, all] = [Nodes { min: 2, max: 4 }, Nodes { min: 4, max: 4 }];
        let s = Duration::from_secs;
        for (nodes, grace, last_call, warns) in
            [(some, 29, 30, false), (some, 30, 30, true), (some, 60, 30, true), (all, 60, 30, false)]
        {
            let said = late_for_last_call(nodes, s(grace), s(last_call));
            assert_eq!(said.is_some(), warns, "{nodes:?} {grace} {last_call}: {said:?}");
        }
        assert_eq!(late_for_last_call(some, DEFAULT_GRACE, DEFAULT_LAST_CALL), None);
        let said = late_for_last_call(some, s(60), s(30)).unwrap_or_default();
        assert!(said.contains("last_call_timeout=65"), "{said}");
    }
}
