//! What a user sees while nodes wait for each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_agent::Phase;
use rallypoint_rendezvous::Progress;
use tokio::sync::watch;
use tracing::info;

use super::terminal::Terminal;

/// Whoever meets quicker than this does not want to read about it.
const QUIET: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_secs(1);
/// Where the line cannot change, how often it is said again that nothing has.
const REMINDER: Duration = Duration::from_secs(30);

/// What is waited for, and where.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) run: String,
    pub(crate) endpoint: String,
    /// For how long at most.
    pub(crate) timeout: Duration,
}

/// Shows what this node waits for, until the agent has ended.
pub(crate) async fn show(
    terminal: Arc<Terminal>,
    mut progress: watch::Receiver<Progress>,
    mut phase: watch::Receiver<Phase>,
    waiting: Waiting,
) {
    loop {
        let waits = |phase: &Phase| matches!(phase, Phase::Meeting | Phase::Finishing | Phase::Ended);
        let now = match phase.wait_for(waits).await.as_deref() {
            Err(_) | Ok(Phase::Ended) => return,
            Ok(now) => *now,
        };
        waiting.show(now, &terminal, &mut progress, &mut phase).await;
        terminal.show(None);
    }
}

impl Waiting {
    /// As long as it is this phase.
    async fn show(
        &self,
        now: Phase,
        terminal: &Terminal,
        progress: &mut watch::Receiver<Progress>,
        phase: &mut watch::Receiver<Phase>,
    ) {
        let began = Instant::now();
        let mut call = LastCall::default();
        call.heard(progress.borrow_and_update().last_call);
        let mut said: Option<(String, Instant)> = None;
        let mut next = began + QUIET;
        loop {
            let quiet = tokio::select! {
                _ = phase.wait_for(|phase| *phase != now) => return,
                () = tokio::time::sleep_until(next.into()) => false,
                Ok(()) = progress.changed() => {
                    call.heard(progress.borrow_and_update().last_call);
                    began.elapsed() < QUIET
                }
            };
            if quiet {
                continue;
            }
            next = Instant::now() + TICK;
            let describe = |left| match now {
                Phase::Meeting => describe(&progress.borrow(), left),
                _ => "this node's workers have finished; waiting for those of other nodes".to_owned(),
            };
            let limit = (now == Phase::Meeting).then_some(self.timeout);
            let text = describe(call.left());
            let line =
                format!("{text} {}, run {} at {}", time(began.elapsed(), limit), self.run, self.endpoint);
            // That time passes is no news.
            let news = describe(call.told);
            if terminal.has_line() {
                terminal.show(Some(line));
            } else if said.as_ref().is_none_or(|(before, at)| *before != news || at.elapsed() >= REMINDER) {
                info!("{line}");
                said = Some((news, Instant::now()));
            }
        }
    }
}

/// What is left of the last call. It is told now and then, and passes meanwhile.
#[derive(Debug, Default)]
struct LastCall {
    told: Option<Duration>,
    at: Option<Instant>,
}

impl LastCall {
    fn heard(&mut self, left: Option<Duration>) {
        if self.told != left {
            (self.told, self.at) = (left, Some(Instant::now()));
        }
    }

    fn left(&self) -> Option<Duration> {
        let passed = self.at.map(|at| at.elapsed()).unwrap_or_default();
        self.told.map(|told| told.saturating_sub(passed))
    }
}

fn time(waited: Duration, timeout: Option<Duration>) -> String {
    let so_far = waited.as_secs();
    match timeout {
        Some(timeout) => format!("({so_far} s so far, {} s left)", timeout.saturating_sub(waited).as_secs()),
        None => format!("({so_far} s so far)"),
    }
}

/// `left` is of the last call.
fn describe(progress: &Progress, left: Option<Duration>) -> String {
    let Progress { joined, min_nodes, max_nodes, .. } = *progress;
    // This node is here, whether the others have counted it yet or not.
    let joined = joined.max(1);
    let nodes = |count: usize| if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") };
    if progress.spare {
        return format!("standing by as a spare: the group has its {}", nodes(max_nodes));
    }
    if min_nodes == 0 {
        return "waiting for the other nodes".to_owned();
    }
    if joined < min_nodes {
        let missing = nodes(min_nodes - joined);
        return format!(
            "waiting for {missing}: {joined} of {min_nodes} {} here",
            if joined == 1 { "is" } else { "are" }
        );
    }
    let here = nodes(joined);
    if joined >= max_nodes {
        return format!("{here} here: starting");
    }
    match left.map(|left| left.as_secs_f64().round()) {
        Some(left) if left >= 1.0 => format!("{here} here, up to {max_nodes} may come: starting in {left} s"),
        // Not every node is told how long it is.
        _ => format!("{here} here, up to {max_nodes} may come: starting soon"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_who_is_missing_and_what_happens_next() {
        let mut progress = Progress::default();
        (progress.min_nodes, progress.max_nodes) = (3, 4);
        assert_eq!(describe(&progress, None), "waiting for 2 nodes: 1 of 3 is here");
        progress.joined = 3;
        let left = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(describe(&progress, left(11.6)), "3 nodes here, up to 4 may come: starting in 12 s");
        for left in [None, left(0.4)] {
            assert_eq!(describe(&progress, left), "3 nodes here, up to 4 may come: starting soon");
        }
        progress.joined = 4;
        assert_eq!(describe(&progress, left(12.0)), "4 nodes here: starting");
        (progress.joined, progress.spare) = (0, true);
        assert_eq!(describe(&progress, None), "standing by as a spare: the group has its 4 nodes");
        let waited = Duration::from_secs(9);
        assert_eq!(time(waited, Some(Duration::from_secs(60))), "(9 s so far, 51 s left)");
        assert_eq!(time(waited, None), "(9 s so far)");
    }
}
