//! Options that would be taken without a word, though they cannot mean anything.

use rallypoint_agent::{StreamChoice, Streams};

use super::options::Run;
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
