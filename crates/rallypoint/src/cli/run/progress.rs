//! What a user sees while nodes wait for each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_agent::{Phase, ServerNode};
use rallypoint_core::text::plain;
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
            matches!(
                phase,
                Phase::Meeting | Phase::Checking | Phase::Finishing { .. } | Phase::Writing | Phase::Ended
            )
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
                Phase::Checking => "making this node's health checks".to_owned(),
                Phase::Writing => {
                    "the workers have finished; waiting for what they said last to be written".to_owned()
                }
                Phase::Meeting => progress.borrow().waits_for(left),
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
            let (so_far, run) = (began.elapsed(), plain(&self.run));
            let line = format!("{text} {}, run {run} at {}", time(so_far, left), self.endpoint);
            // That time passes is no news.
            let news = describe(call.told);
            if terminal.has_line() {
                let width = terminal.width().unwrap_or(usize::MAX);
                let long_left = left.map_or_else(String::new, |left| format!(" ({} s left)", left.as_secs()));
                let shorter = [
                    format!("{text} {}, at {}", time(so_far, left), self.endpoint),
                    format!("{text}{long_left}, at {}", self.endpoint),
                ];
                terminal.show(Some(fit(width, line, shorter, &self.endpoint)));
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

/// The first of these lines that a terminal of that width has room for. If none does, the endpoint stays: who waits looks
/// for a wrong one first.
fn fit(width: usize, line: String, shorter: [String; 2], endpoint: &str) -> String {
    let long = |line: &str| line.chars().count();
    let Some(last) = shorter.last().cloned() else { return line };
    if let Some(fits) = std::iter::once(line).chain(shorter).find(|line| long(line) <= width) {
        return fits;
    }
    let end = format!(", at {endpoint}");
    let (begin, end) = match last.strip_suffix(&end) {
        Some(begin) if long(&end) * 2 < width => (begin, end.as_str()),
        _ => (last.as_str(), ""),
    };
    let room = width.saturating_sub(long(end) + 1);
    format!("{}…{end}", begin.chars().take(room).collect::<String>())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_loses_what_matters_least() {
        let endpoint = "localhost:9999";
        let begin = "waiting for 2 nodes: 1 of 3 is here";
        let full = format!("{begin} (12 s so far, 588 s left), run job1 at {endpoint}");
        let shorter = [
            format!("{begin} (12 s so far, 588 s left), at {endpoint}"),
            format!("{begin} (588 s left), at {endpoint}"),
        ];
        let at = |width| fit(width, full.clone(), shorter.clone(), endpoint);
        assert_eq!(at(100), full);
        assert_eq!(at(80), shorter[0]);
        assert_eq!(at(70), shorter[1]);
        assert_eq!(at(50), "waiting for 2 nodes: 1 of 3 is…, at localhost:9999");
        assert_eq!(at(20), "waiting for 2 nodes…");
        assert!([80, 70, 50, 20].iter().all(|width| at(*width).chars().count() <= *width));
    }

    #[test]
    fn it_says_how_long_it_has_waited_and_will() {
        let waited = Duration::from_secs(9);
        assert_eq!(time(waited, Some(Duration::from_secs(51))), "(9 s so far, 51 s left)");
        assert_eq!(time(waited, None), "(9 s so far)");
    }
}
