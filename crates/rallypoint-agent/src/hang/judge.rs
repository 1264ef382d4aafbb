//! Who stopped first. No clock, no store: a table of all ranks goes in, and one name comes out, the same on whichever node.
//!
//! In synchronous training all ranks stop when one does. So everybody is silent, and the one to be found is what the others
//! wait for: a process that is stopped; who has beaten less often; who has been silent for clearly longer; who waits for
//! no other, in a collective or for its GPU, where the others do; whose stack is like nobody's.

use std::time::Duration;

use rallypoint_stacks::{fold, numbered};

use super::first::{Case, first, nobody_waits};
use super::inquiry::{Answer, WorkerState};
use super::limits::Limits;
use crate::progress::Sign;

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Finding {
    /// This one stopped first; `seconds` is how long it has been silent, as it is told.
    Hung { rank: usize, node: usize, host: String, silent: Duration, seconds: u64, why: String },
    /// Nobody is hung, as far as can be told; it can be different after so long. Whoever waits is told of it where it will not be
    /// different by itself.
    Nobody { why: String, again: Duration, told: bool },
}

/// Finds who stopped first.
pub(crate) fn judge(answers: &[Answer], limits: Limits) -> Finding {
    let stacks = fold(answers.iter().flat_map(|answer| answer.stacks.iter().cloned()));
    let nobody_is = |why: String, again: Duration, told| Finding::Nobody {
        why,
        again: again.max(Duration::from_secs(1)),
        told,
    };
    let nobody = |why, again| nobody_is(why, again, false);
    let mut cases: Vec<Case<'_>> = Vec::new();
    let mut starting: Vec<usize> = Vec::new();
    let mut ended: Vec<usize> = Vec::new();
    let mut youngest: Option<(Duration, usize)> = None;
    let stood = Stood::of(answers);
    for (answer, worker) in
        answers.iter().flat_map(|answer| answer.workers.iter().map(move |it| (answer, it)))
    {
        let rank = worker.rank;
        match worker.state {
            WorkerState::Paused => return nobody(format!("rank {rank} is paused"), limits.timeout / 2),
            WorkerState::Unknown => continue,
            WorkerState::Ended => {
                ended.push(rank);
                continue;
            }
            WorkerState::Unwatched => {
                let why = format!(
                    "node {} does not look for its workers' progress: give --hang-timeout to all nodes",
                    answer.node
                );
                return nobody_is(why, limits.timeout / 2, true);
            }
            WorkerState::Running | WorkerState::Ending => {}
        }
        // What it stood still itself is left out already: where all did, it was at one time.
        let waited = stood.elsewhere(answer.node).saturating_sub(Duration::from_millis(worker.stood_ms));
        let counts = |time| Duration::from_millis(time).saturating_sub(waited);
        let (silent, starts) = (worker.silent_ms.map(counts), worker.starts_ms.map(counts));
        let silent = match (silent, starts) {
            // One that has begun to end has another limit, and that it has begun is a sign.
            (silent, starts) if worker.state == WorkerState::Ending => {
                let time = silent.or(starts);
                let Some(too_long) = time.filter(|time| limits.end.is_some_and(|limit| *time >= limit))
                else {
                    ended.push(rank);
                    youngest = youngest.into_iter().chain(time.map(|time| (time, rank))).min();
                    continue;
                };
                too_long
            }
            (Some(silent), _) => silent,
            // Before its first sign it has another limit.
            (None, Some(starts)) if limits.start.is_some_and(|limit| starts >= limit) => starts,
            _ => {
                starting.push(rank);
                continue;
            }
        };
        youngest = youngest.into_iter().chain([(silent, rank)]).min();
        let stack = stacks.iter().find(|folded| folded.ranks.contains(&rank));
        // Of one that could not be looked at it is not known.
        let seen = stack.filter(|stack| !stack.stack.is_empty());
        let alike = seen.map_or(usize::MAX, |stack| stack.ranks.len());
        let (node, host) = (answer.node, answer.host.as_str());
        let beats = match worker.sign {
            // Whoever writes to the file itself does not count for anybody.
            Some(Sign::Heartbeat) => worker.beats,
            _ => Some(worker.beats.unwrap_or(0)),
        };
        cases.push(Case { rank, node, host, beats, silent, stack, alike });
    }
    let half = limits.timeout / 2;
    if let Some((silent, rank)) = youngest.filter(|(silent, _)| *silent < half) {
        let why = format!("rank {rank} still makes progress, so nobody waits for others");
        return nobody(why, half - silent);
    }
    // Where some beat, all are expected to: the others have not come that far.
    if cases.iter().any(|case| case.beats != Some(0)) && !starting.is_empty() {
        let why = format!(
            "{} {} shown no sign yet (--hang-start-timeout bounds that)",
            whose(&starting),
            has(&starting)
        );
        return nobody_is(why, half, true);
    }
    if !cases.iter().any(|case| case.silent >= limits.timeout) {
        return nobody("nobody has been silent for long enough".to_owned(), half);
    }
    let ends = limits.end.is_none_or(|end| cases.iter().all(|case| case.silent < end));
    if ends && !ended.is_empty() && nobody_waits(&cases) {
        let still: Vec<usize> = cases.iter().map(|case| case.rank).collect();
        let (have, wait) = (has(&ended), if still.len() == 1 { "waits" } else { "wait" });
        let why = format!(
            "{} {have} ended, and {}, still there, {wait} for no other: that may be a slow end (--hang-end-timeout bounds that)",
            whose(&ended),
            whose(&still),
        );
        let longest = cases.iter().map(|case| case.silent).max().unwrap_or_default();
        let left = limits.end.map_or(half, |end| end.saturating_sub(longest));
        return nobody_is(why, half.min(left), true);
    }
    let (case, why) = first(cases);
    match case {
        Some(case) => {
            let Case { rank, node, host, silent, .. } = case;
            let (host, seconds) = (host.to_owned(), limits.seconds(silent));
            Finding::Hung { rank, node, host, silent, seconds, why }
        }
        None => nobody("no worker runs".to_owned(), half),
    }
}

/// For how long workers have stood still that the others waited for meanwhile: the longest of one node, and of all others. It is
/// no silence of the others.
struct Stood {
    node: Option<usize>,
    longest: Duration,
    elsewhere: Duration,
}

impl Stood {
    fn of(answers: &[Answer]) -> Self {
        let of = |answer: &Answer| answer.workers.iter().map(|worker| worker.stood_ms).max().unwrap_or(0);
        let longest = answers.iter().max_by_key(|answer| of(answer));
        let node = longest.map(|answer| answer.node);
        let others = answers.iter().filter(|answer| Some(answer.node) != node);
        Stood {
            node,
            longest: Duration::from_millis(longest.map_or(0, of)),
            elsewhere: Duration::from_millis(others.map(of).max().unwrap_or(0)),
        }
    }

    /// On other nodes than this.
    fn elsewhere(&self, node: usize) -> Duration {
        if self.node == Some(node) { self.elsewhere } else { self.longest }
    }
}

fn whose(ranks: &[usize]) -> String {
    numbered("rank", ranks)
}

fn has(ranks: &[usize]) -> &'static str {
    if ranks.len() == 1 { "has" } else { "have" }
}

#[cfg(test)]
mod tests {
    use rallypoint_stacks::Folded;

    use super::*;
    use crate::hang::inquiry::Worker;

    const LIMITS: Limits = Limits { timeout: Duration::from_secs(60), start: None, end: None };

    /// A node of two ranks.
    fn node(node: usize, workers: [Worker; 2]) -> Answer {
        Answer { node, host: format!("h{node}"), workers: workers.into(), stacks: Vec::new() }
    }

    fn worker(rank: usize, beats: u64, silent: u64) -> Worker {
        let (beats, silent_ms) = (Some(beats).filter(|beats| *beats > 0), Some(silent * 1000));
        let sign = Some(if beats.is_some() { Sign::Heartbeat } else { Sign::Output });
        Worker { rank, beats, sign, silent_ms, starts_ms: None, stood_ms: 0, state: WorkerState::Running }
    }

    fn starting(rank: usize, seconds: u64) -> Worker {
        Worker {
            beats: None,
            sign: None,
            silent_ms: None,
            starts_ms: Some(seconds * 1000),
            ..worker(rank, 0, 0)
        }
    }

    /// Four ranks on two nodes.
    fn table(ranks: [(u64, u64); 4]) -> Vec<Answer> {
        let [a, b, c, d] = ranks;
        vec![
            node(0, [worker(0, a.0, a.1), worker(1, b.0, b.1)]),
            node(1, [worker(2, c.0, c.1), worker(3, d.0, d.1)]),
        ]
    }

    fn stacks(mut answers: Vec<Answer>, stacks: [(&str, &str); 4]) -> Vec<Answer> {
        for (rank, (state, line)) in stacks.into_iter().enumerate() {
            let folded = Folded {
                ranks: vec![rank],
                state: state.to_owned(),
                stack: vec![line.to_owned(), "main (train.py:9)".to_owned()],
                ..Folded::default()
            };
            answers[rank / 2].stacks.push(folded);
        }
        answers
    }

    #[track_caller]
    fn hung(answers: &[Answer], who: usize, how: &str) {
        match judge(answers, LIMITS) {
            Finding::Hung { rank, node, host, why, .. } => {
                assert_eq!((rank, node, host), (who, who / 2, format!("h{}", who / 2)), "{why}");
                assert!(why.contains(how), "{why}");
            }
            nobody => panic!("{nobody:?}"),
        }
    }

    #[track_caller]
    fn nobody(answers: &[Answer], limits: Limits, how: &str) {
        match judge(answers, limits) {
            Finding::Nobody { why, .. } => assert!(why.contains(how), "{why}"),
            hung => panic!("{hung:?}"),
        }
    }

    const WAITING: (&str, &str) = ("S", "all_reduce (torch/distributed/distributed_c10d.py:3)");
    const LOCKED: (&str, &str) = ("S", "acquire (lock.py:1)");

    #[test]
    fn who_has_beaten_less_often_stopped_first_whatever_the_clocks_say() {
        hung(&table([(42, 61), (42, 60), (41, 60), (42, 62)]), 2, "its 41 heartbeats are the fewest");
        let answers =
            stacks(table([(42, 61), (42, 60), (41, 60), (42, 62)]), [LOCKED, WAITING, WAITING, WAITING]);
        hung(&answers, 2, "heartbeats");
    }

    #[test]
    fn who_has_been_silent_for_clearly_longer_stopped_first_and_a_second_does_not_tell() {
        hung(&table([(0, 61), (0, 90), (0, 60), (0, 62)]), 1, "silent for the longest");
        let answers =
            stacks(table([(0, 62), (0, 61), (0, 60), (0, 61)]), [WAITING, WAITING, WAITING, LOCKED]);
        hung(&answers, 3, "waits for no other");
        // As seen on a GPU: a collective of NCCL is waited for by waiting for the GPU.
        let gpu = ("S", "cuCtxSynchronize_v2 (libcuda.so.580.159.04)");
        let answers = stacks(table([(7, 61); 4]), [gpu, LOCKED, gpu, gpu]);
        hung(&answers, 1, "waits for no other");
    }

    /// One node was paused for 100 s, and the others waited for it.
    #[test]
    fn what_one_stood_still_is_no_silence_of_those_who_waited_for_it() {
        let paused = |mut answers: Vec<Answer>| {
            answers[1].workers.iter_mut().for_each(|worker| worker.stood_ms = 100_000);
            answers
        };
        nobody(&paused(table([(0, 140), (0, 140), (0, 40), (0, 40)])), LIMITS, "silent for long enough");
        nobody(&paused(table([(0, 110), (0, 110), (0, 40), (0, 1)])), LIMITS, "still makes progress");
        // It had stopped before.
        let answers = paused(table([(0, 161), (0, 160), (0, 61), (0, 61)]));
        hung(&stacks(answers, [WAITING, WAITING, LOCKED, WAITING]), 2, "waits for no other");
        // All were paused.
        let mut answers = paused(table([(0, 61), (0, 61), (0, 61), (0, 61)]));
        answers[0].workers.iter_mut().for_each(|worker| worker.stood_ms = 100_000);
        let answers = stacks(answers, [WAITING, WAITING, LOCKED, WAITING]);
        hung(&answers, 2, "waits for no other");
    }

    #[test]
    fn one_that_could_not_be_looked_at_does_not_make_others_wait() {
        let mut answers = stacks(table([(7, 61); 4]), [LOCKED; 4]);
        for answer in &mut answers {
            for stack in answer.stacks.iter_mut().filter(|stack| stack.ranks.contains(&2)) {
                stack.stack.clear();
                stack.unseen = Some("it could not be looked at within 2 s".to_owned());
            }
        }
        hung(&answers, 2, "could not be looked at, and others could");
    }

    #[test]
    fn who_has_no_heartbeat_where_others_have_some_has_the_fewest() {
        let limited = Limits { start: Some(Duration::from_secs(60)), ..LIMITS };
        let answers = vec![
            node(0, [worker(0, 10, 61), worker(1, 10, 61)]),
            node(1, [starting(2, 62), worker(3, 10, 61)]),
        ];
        let Finding::Hung { rank, why, .. } = judge(&answers, limited) else { panic!("one hangs") };
        assert_eq!((rank, why.as_str()), (2, "its 0 heartbeats are the fewest"));
    }

    #[test]
    fn who_beats_uncounted_has_not_the_fewest() {
        let mut answers = table([(0, 60), (10, 60), (0, 60), (0, 64)]);
        for (node, worker) in [(0, 0), (1, 0), (1, 1)] {
            answers[node].workers[worker].sign = Some(Sign::Heartbeat);
        }
        hung(&answers, 3, "silent for the longest");
        // Where some beat, however they do it, one that has shown nothing has not come that far.
        let begun = vec![answers.remove(1), node(0, [starting(0, 90), starting(1, 90)])];
        nobody(&begun, LIMITS, "ranks 0, 1 have shown no sign yet");
    }

    #[test]
    fn a_node_that_does_not_look_for_progress_keeps_others_from_judging() {
        let mut answers = table([(7, 61); 4]);
        answers[1].workers[0].state = WorkerState::Unwatched;
        nobody(&answers, LIMITS, "give --hang-timeout to all nodes");
        assert!(matches!(judge(&answers, LIMITS), Finding::Nobody { told: true, .. }));
    }

    #[test]
    fn the_odd_stack_tells_where_nothing_else_does() {
        let (a, b) = (("S", "recv (socket.py:1)"), ("S", "read (disk.py:1)"));
        hung(&stacks(table([(7, 61); 4]), [a, a, b, a]), 2, "its stack differs from that of 3 others");
        hung(&stacks(table([(7, 61); 4]), [a; 4]), 0, "nothing tells");
        hung(&table([(7, 61); 4]), 0, "nothing tells");
    }

    #[test]
    fn a_process_that_is_stopped_keeps_all_others() {
        let answers =
            stacks(table([(7, 61), (7, 90), (6, 61), (7, 61)]), [("T", WAITING.1), LOCKED, WAITING, WAITING]);
        hung(&answers, 0, "stopped by a signal");
        let answers = stacks(table([(7, 61); 4]), [WAITING, WAITING, ("D", "read (disk.py:1)"), WAITING]);
        hung(&answers, 2, "in the kernel");
    }

    #[test]
    fn nobody_is_hung_while_others_make_progress_or_one_is_paused_or_has_not_begun() {
        nobody(&table([(7, 61), (9, 1), (9, 2), (9, 1)]), LIMITS, "rank 1 still makes progress");
        nobody(&table([(7, 59), (7, 58), (7, 58), (7, 58)]), LIMITS, "long enough");
        let mut answers = table([(7, 61); 4]);
        answers[1].workers[0].state = WorkerState::Paused;
        nobody(&answers, LIMITS, "rank 2 is paused");
        let begun =
            vec![node(0, [worker(0, 1, 90), worker(1, 1, 90)]), node(1, [worker(2, 1, 90), starting(3, 95)])];
        nobody(&begun, LIMITS, "rank 3 has shown no sign yet");
        let limited = Limits { start: Some(Duration::from_secs(95)), ..LIMITS };
        assert!(matches!(judge(&begun, limited), Finding::Hung { rank: 3, .. }));
        // Those who never say anything are not expected to, where nobody beats.
        let printing =
            vec![node(0, [worker(0, 0, 90), starting(1, 95)]), node(1, [starting(2, 95), starting(3, 95)])];
        hung(&printing, 0, "the only one");
    }

    #[test]
    fn who_has_ended_is_not_judged() {
        let mut answers = table([(7, 61), (7, 61), (3, 90), (7, 61)]);
        answers[1].workers[0].state = WorkerState::Ended;
        hung(&stacks(answers, [WAITING, WAITING, WAITING, LOCKED]), 3, "waits for no other");
    }

    /// As after the last step: the first have ended, one saves or tears down, and nobody waits for it.
    #[test]
    fn who_is_slow_to_end_is_not_taken_to_hang_unless_others_wait() {
        let ended = |ranks: &[usize], stacked: [(&str, &str); 4]| {
            let mut answers = table([(7, 61); 4]);
            for rank in ranks {
                answers[rank / 2].workers[rank % 2].state = WorkerState::Ended;
            }
            stacks(answers, stacked)
        };
        let slow = ended(&[0, 1, 3], [LOCKED; 4]);
        nobody(&slow, LIMITS, "ranks 0, 1, 3 have ended, and rank 2, still there, waits for no other");
        assert!(matches!(judge(&slow, LIMITS), Finding::Nobody { told: true, .. }));
        let bounded = |end| Limits { end: Some(Duration::from_secs(end)), ..LIMITS };
        nobody(&slow, bounded(62), "slow end");
        assert!(matches!(judge(&slow, bounded(61)), Finding::Hung { rank: 2, .. }));
        // Those it waits for have gone; or others wait for it; or it is stopped.
        hung(&ended(&[0, 1, 3], [WAITING; 4]), 2, "the only one");
        hung(&ended(&[0, 1], [LOCKED, LOCKED, LOCKED, WAITING]), 2, "waits for no other, and others do");
        hung(&ended(&[0, 1, 3], [LOCKED, LOCKED, ("T", LOCKED.1), LOCKED]), 2, "the only one");
        // It was not looked at, yet or ever.
        let mut unseen = table([(7, 61); 4]);
        unseen[0].workers.iter_mut().for_each(|worker| worker.state = WorkerState::Ended);
        assert!(matches!(judge(&unseen, LIMITS), Finding::Hung { .. }));
    }

    #[test]
    fn who_has_begun_to_end_has_a_limit_of_its_own() {
        let mut answers = table([(7, 61); 4]);
        answers[1].workers[0] = Worker { state: WorkerState::Ending, ..worker(2, 7, 90) };
        // As one that has ended: whoever waits for it is judged, but not as soon as it has begun.
        let stacked = stacks(answers.clone(), [WAITING, WAITING, LOCKED, LOCKED]);
        hung(&stacked, 3, "waits for no other, and others do");
        let mut begins = stacked.clone();
        begins[1].workers[0].silent_ms = Some(10_000);
        nobody(&begins, LIMITS, "rank 2 still makes progress");
        let bounded = Limits { end: Some(Duration::from_secs(90)), ..LIMITS };
        let Finding::Hung { rank, why, .. } = judge(&answers, bounded) else { panic!("one hangs") };
        assert_eq!((rank, why.as_str()), (2, "it has been silent for the longest"));
        answers
            .iter_mut()
            .flat_map(|answer| &mut answer.workers)
            .for_each(|worker| worker.state = WorkerState::Ending);
        nobody(&answers, LIMITS, "no");
    }

    #[test]
    fn it_is_asked_again_when_the_last_one_may_have_stopped() {
        let Finding::Nobody { again, .. } = judge(&table([(7, 61), (9, 10), (9, 2), (9, 20)]), LIMITS) else {
            panic!("others make progress");
        };
        assert_eq!(again, Duration::from_secs(28));
    }

    #[test]
    fn nobody_is_found_to_hang_before_the_timeout_and_a_silence_is_looked_into_a_little_before() {
        let silent = |seconds| [node(0, [worker(0, 7, seconds), worker(1, 7, seconds)])];
        let found = |seconds, limits| matches!(judge(&silent(seconds), limits), Finding::Hung { .. });
        assert_eq!([55, 57].map(|seconds| found(seconds, LIMITS.early())), [false, true]);
        assert_eq!([59, 60].map(|seconds| found(seconds, LIMITS)), [false, true]);
    }

    /// Of one that could not be looked at it is not known whether it waits.
    #[test]
    fn one_that_is_seen_to_wait_for_nobody_comes_before_one_that_could_not_be_looked_at() {
        let stack = |ranks: &[usize], calls: &[&str]| Folded {
            ranks: ranks.to_vec(),
            stack: calls.iter().map(|call| (*call).to_owned()).collect(),
            unseen: calls.is_empty().then(|| "it may not be traced".to_owned()),
            ..Folded::default()
        };
        let mut answers =
            [node(0, [worker(0, 7, 60), worker(1, 7, 60)]), node(1, [worker(2, 7, 60), worker(3, 7, 60)])];
        answers[0].stacks =
            vec![stack(&[0], &["all_reduce (torch/distributed/c10d.py:1)"]), stack(&[1], &[])];
        answers[1].stacks = vec![
            stack(&[2], &["acquire (lock.py:1)"]),
            stack(&[3], &["broadcast (torch/distributed/c10d.py:1)"]),
        ];
        let Finding::Hung { rank, why, .. } = judge(&answers, LIMITS) else { panic!("one hangs") };
        assert_eq!((rank, why.as_str()), (2, "it waits for no other, and others do"));
        answers[1].stacks = vec![stack(&[2, 3], &["broadcast (torch/distributed/c10d.py:1)"])];
        let Finding::Hung { rank, why, .. } = judge(&answers, LIMITS) else { panic!("one hangs") };
        assert_eq!((rank, why.as_str()), (1, "it could not be looked at, and others could"));
    }
}
