//! Of ranks that are all silent, the one that stopped first, and how that is known.

use std::time::Duration;

use rallypoint_core::text::count;
use rallypoint_stacks::Folded;

/// Nodes are asked at slightly different moments, and look at their workers now and then: who has been silent for less longer
/// than this has not clearly been silent for longer.
const CLEARLY: Duration = Duration::from_secs(2);

/// What of a stack shows that its process waits for others: names of functions, and of files, in lower case. A collective on
/// GPUs is waited for where the program waits for its GPU, so that is the same.
const WAITS: [&str; 15] = [
    "torch/distributed",
    "torch\\distributed",
    "allreduce",
    "all_reduce",
    "allgather",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "barrier",
    "processgroup",
    "gloo::",
    "nccl",
    "libcuda",
    "libamdhip",
    "torch/cuda",
];
/// So many of the innermost calls are looked at for that.
const INNERMOST: usize = 12;

/// One rank in the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) rank: usize,
    pub(super) node: usize,
    pub(super) host: &'a str,
    /// None: it beats, and nobody counts how often.
    pub(super) beats: Option<u64>,
    pub(super) silent: Duration,
    pub(super) stack: Option<&'a Folded>,
    /// How many do the same.
    pub(super) alike: usize,
}

/// Whom a step of the search leaves.
type Fits<'a> = dyn Fn(&Case<'_>) -> bool + 'a;

/// The one who stopped first, and how that is known: by the last step that told. Each leaves those who fit it, if others do not.
pub(super) fn first(mut cases: Vec<Case<'_>>) -> (Option<Case<'_>>, String) {
    cases.sort_by_key(|case| case.rank);
    if let [only] = cases[..] {
        return (Some(only), "it is the only one".to_owned());
    }
    let mut why = None;
    // Numbers are compared where each has one.
    let beats: Option<Vec<u64>> = cases.iter().map(|case| case.beats).collect();
    let beats = beats.unwrap_or_default();
    let (fewest, most) = (beats.iter().min().copied(), beats.iter().max().copied());
    let others_wait = cases.iter().any(|case| seen(case).is_some_and(waits));
    let others_are_seen = cases.iter().any(|case| seen(case).is_some());
    let longest = cases.iter().map(|case| case.silent).max().unwrap_or_default();
    let vforks = |case: &Case<'_>| case.stack.is_some_and(|stack| stack.waits_for_child);
    let state = |case: &Case<'_>, state: &str| case.stack.is_some_and(|stack| stack.state == state);
    let steps: [(&Fits<'_>, String); 7] = [
        (&|case| state(case, "T"), "it is stopped by a signal".to_owned()),
        (&|case| vforks(case), "it waits for its child process, as in vfork".to_owned()),
        (&|case| state(case, "D"), "it waits in the kernel".to_owned()),
        (
            &|case| case.beats == fewest && fewest < most,
            format!(
                "its {} {} the fewest",
                fewest.unwrap_or(0),
                if fewest == Some(1) { "heartbeat is" } else { "heartbeats are" }
            ),
        ),
        (
            &|case| longest.saturating_sub(case.silent) <= CLEARLY,
            "it has been silent for the longest".to_owned(),
        ),
        (
            // Of one that could not be looked at it is not known.
            &|case| others_wait && seen(case).is_some_and(|stack| !waits(stack)),
            "it waits for no other, and others do".to_owned(),
        ),
        (
            &|case| others_are_seen && seen(case).is_none() && case.stack.is_some(),
            "it could not be looked at, and others could".to_owned(),
        ),
    ];
    for (fits, said) in steps {
        if narrow(&mut cases, fits) {
            why = Some(said);
        }
        if let [only] = cases[..] {
            return (Some(only), why.unwrap_or_default());
        }
    }
    let fewest = cases.iter().map(|case| case.alike).min().unwrap_or(0);
    let all = cases.len();
    if narrow(&mut cases, &|case| case.alike == fewest) {
        let unlike = all - cases.len();
        why = Some(format!("its stack differs from that of {}", count(unlike, "other")));
    }
    (
        cases.first().copied(),
        why.unwrap_or_else(|| "nothing tells it from the others; it is the first of them".to_owned()),
    )
}

/// Whether it was seen of all that none waits for another, and none is stopped. Not before they are looked at.
pub(super) fn nobody_waits(cases: &[Case<'_>]) -> bool {
    cases.iter().all(|case| seen(case).is_some_and(|stack| !waits(stack) && stack.state != "T"))
}

/// The stack of a rank, if it could be looked at.
fn seen<'a>(case: &Case<'a>) -> Option<&'a Folded> {
    case.stack.filter(|stack| !stack.stack.is_empty())
}

/// Leaves those that fit, if some do and others do not. Whether that was so.
fn narrow(cases: &mut Vec<Case<'_>>, fits: &Fits<'_>) -> bool {
    let fit = cases.iter().filter(|case| fits(case)).count();
    let tells = fit > 0 && fit < cases.len();
    if tells {
        cases.retain(|case| fits(case));
    }
    tells
}

/// Whether a stack is that of a process that waits for others.
fn waits(stack: &Folded) -> bool {
    stack.stack.iter().take(INNERMOST).any(|line| {
        let line = line.to_lowercase();
        WAITS.iter().any(|word| line.contains(word))
    })
}
