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

/// Shows how far the rendezvous is, until the agent has ended.
pub(crate) async fn show(
    terminal: Arc<Terminal>,
    mut progress: watch::Receiver<Progress>,
    mut phase: watch::Receiver<Phase>,
    timeout: Duration,
) {
    loop {
        if phase.wait_for(|phase| matches!(phase, Phase::Meeting | Phase::Ended)).await.is_err() {
            return;
        }
        if *phase.borrow() == Phase::Ended {
            return;
        }
        meeting(&terminal, &mut progress, &mut phase, timeout).await;
        terminal.show(None);
    }
}

async fn meeting(
    terminal: &Terminal,
    progress: &mut watch::Receiver<Progress>,
    phase: &mut watch::Receiver<Phase>,
    timeout: Duration,
) {
    let began = Instant::now();
    let mut said: Option<(String, Instant)> = None;
    let mut pause = QUIET;
    loop {
        tokio::select! {
            _ = phase.wait_for(|phase| *phase != Phase::Meeting) => return,
            () = tokio::time::sleep(pause) => {}
            // The first half second counts from the beginning.
            Ok(()) = progress.changed(), if pause == TICK => {}
        }
        pause = TICK;
        let text = describe(&progress.borrow());
        let waited = began.elapsed();
        if terminal.has_line() {
            terminal.show(Some(format!("{text}{}", time(waited, timeout))));
        } else if said.as_ref().is_none_or(|(before, at)| *before != text || at.elapsed() >= REMINDER) {
            info!("{text}{}", time(waited, timeout));
            said = Some((text, Instant::now()));
        }
    }
}

fn time(waited: Duration, timeout: Duration) -> String {
    format!(" ({} s so far, {} s left)", waited.as_secs(), timeout.saturating_sub(waited).as_secs())
}

fn describe(progress: &Progress) -> String {
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
        return format!("waiting for {missing}: {joined} of {min_nodes} are here");
    }
    match progress.last_call {
        Some(left) if joined < max_nodes => {
            let left = left.as_secs_f64();
            format!("{} here, up to {max_nodes} may come: starting in {left:.0} s", nodes(joined))
        }
        _ => format!("{} here: starting", nodes(joined)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_who_is_missing_and_what_happens_next() {
        let mut progress = Progress::default();
        (progress.min_nodes, progress.max_nodes) = (3, 4);
        assert_eq!(describe(&progress), "waiting for 2 nodes: 1 of 3 are here");
        (progress.joined, progress.last_call) = (3, Some(Duration::from_secs(12)));
        assert_eq!(describe(&progress), "3 nodes here, up to 4 may come: starting in 12 s");
        progress.joined = 4;
        assert_eq!(describe(&progress), "4 nodes here: starting");
        (progress.joined, progress.last_call, progress.spare) = (0, None, true);
        assert_eq!(describe(&progress), "standing by as a spare: the group has its 4 nodes");
        assert_eq!(time(Duration::from_secs(9), Duration::from_secs(60)), " (9 s so far, 51 s left)");
    }
}
