//! What a user sees while nodes wait for each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_agent::{Phase, ServerNode};
use rallypoint_core::round::kept_out;
use rallypoint_core::text::{are, count, plain};
use rallypoint_rendezvous::{Progress, RendezvousHandler};
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
    pub(crate) handler: Arc<dyn RendezvousHandler>,
    pub(crate) run: String,
    pub(crate) endpoint: String,
    /// For how long at most.
    pub(crate) timeout: Duration,
    /// The other node that runs the server.
    pub(crate) server: watch::Receiver<Option<ServerNode>>,
}

/// Shows what this node waits for, until the agent has ended.
pub(crate) async fn show(terminal: Arc<Terminal>, mut phase: watch::Receiver<Phase>, waiting: Waiting) {
    let mut progress = waiting.handler.progress();
    loop {
        let waits = |phase: &Phase| {
            matches!(phase, Phase::Meeting | Phase::Finishing { .. } | Phase::Writing | Phase::Ended)
        };
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
        // A spare waits for as long as the run lives. Its time begins when it is none any more.
        let (mut stood_by, mut since) = (false, began);
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
                Phase::Meeting if self.handler.contact().is_some_and(|contact| contact.is_silent()) => {
                    silent(self.server.borrow().as_ref())
                }
                Phase::Writing => {
                    "the workers have finished; waiting for what they said last to be written".to_owned()
                }
                Phase::Meeting => describe(&progress.borrow(), left),
                Phase::Finishing { nodes: 1 } => {
                    "the workers have finished; waiting for etcd to take note of it".to_owned()
                }
                _ => "this node's workers have finished; waiting for those of other nodes".to_owned(),
            };
            let spare = progress.borrow().spare;
            if std::mem::replace(&mut stood_by, spare) && !spare {
                since = Instant::now();
            }
            // Most often the place that it takes is given to it at once.
            if since.elapsed() < QUIET {
                next = since + QUIET;
                continue;
            }
            let left = self.timeout.saturating_sub(since.elapsed());
            let left = (now == Phase::Meeting && !spare).then_some(left);
            let text = describe(call.left());
            let (time, run) = (time(began.elapsed(), left), plain(&self.run));
            let line = format!("{text} {time}, run {run} at {}", self.endpoint);
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

fn time(waited: Duration, left: Option<Duration>) -> String {
    let so_far = waited.as_secs();
    match left {
        Some(left) => format!("({so_far} s so far, {} s left)", left.as_secs()),
        None => format!("({so_far} s so far)"),
    }
}

/// That the server does not answer.
fn silent(server: Option<&ServerNode>) -> String {
    match server {
        None => "waiting for etcd, which does not serve this node".to_owned(),
        Some(server) => {
            format!("waiting for {server}, which ran the server: start it again, or end this node too")
        }
    }
}

/// `left` is of the last call.
fn describe(progress: &Progress, left: Option<Duration>) -> String {
    let waits = describe_wait(progress, left);
    match kept_out(&progress.exclusions).filter(|_| progress.kept_out.is_none()) {
        Some(others) => format!("{waits}; {others}"),
        None => waits,
    }
}

fn describe_wait(progress: &Progress, left: Option<Duration>) -> String {
    let Progress { joined, min_nodes, max_nodes, .. } = *progress;
    if let Some(exclusion) = &progress.kept_out {
        let (until, reason) = (exclusion.until(), plain(&exclusion.reason));
        return format!("excluded from the run, {until}: {reason}; waiting to be let in again");
    }
    if progress.spare {
        return match progress.segment_size {
            Some(size) => {
                format!("standing by as a spare: only whole segments of {size} of one rack are seated")
            }
            None => format!("standing by as a spare: the group has its {}", count(max_nodes, "node")),
        };
    }
    if let (Some(size), Some(seatable)) = (progress.segment_size, progress.seatable)
        && seatable < min_nodes
        && seatable < joined
    {
        let here = are(joined, "node", "here");
        return format!(
            "waiting for whole segments of {size} nodes of one rack: {here}, {seatable} of {min_nodes} in such"
        );
    }
    // This node is here, whether the others have counted it yet or not.
    let here = joined.max(1);
    if here < min_nodes {
        let is = if here == 1 { "is" } else { "are" };
        let missing = count(min_nodes - here, "node");
        return format!("waiting for {missing}: {here} of {min_nodes} {is} here");
    }
    if joined == 0 {
        // Nobody has counted this node, so nothing is known of the others.
        return "waiting for the other nodes".to_owned();
    }
    if joined >= max_nodes {
        return format!("{}: starting", are(joined, "node", "here"));
    }
    let here = count(joined, "node");
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
        assert_eq!(describe(&progress, left(12.0)), "4 nodes are here: starting");
        (progress.joined, progress.min_nodes) = (0, 1);
        assert_eq!(describe(&progress, None), "waiting for the other nodes");
        progress.spare = true;
        assert_eq!(describe(&progress, None), "standing by as a spare: the group has its 4 nodes");
        let waited = Duration::from_secs(9);
        assert_eq!(time(waited, Some(Duration::from_secs(51))), "(9 s so far, 51 s left)");
        assert_eq!(time(waited, None), "(9 s so far)");
    }
}
