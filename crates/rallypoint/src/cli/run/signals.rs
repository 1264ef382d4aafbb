//! What signals mean to the launcher.

use std::time::Duration;

use rallypoint_agent::{Guarded, KNOWN_SIGNALS, Stopper, Workers, is_ignored};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{debug, info, warn};

/// How often it is looked whether the command was stopped, of which nothing tells.
const LOOK: Duration = Duration::from_millis(500);

/// Acts on signals from now on. Those in `ends` ask for the end: the first in good order, the second at once.
/// SIGUSR1 and SIGUSR2 are passed on to the workers, and others do nothing.
pub(crate) fn listen(ends: &[Signal], stopper: &Stopper, guarded: &Guarded, workers: &Workers) {
    for (name, number) in KNOWN_SIGNALS {
        let ignored = is_ignored(number);
        // The end of a guard is told by SIGTERM, also to those who ignore it.
        if ignored && number != Signal::TERM {
            continue;
        }
        let Ok(mut signals) = signal(SignalKind::from_raw(number.as_raw())) else {
            warn!("{name} cannot be handled");
            continue;
        };
        let asks = ends.contains(&number);
        let (stopper, guarded, workers) = (stopper.clone(), guarded.clone(), workers.clone());
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if guarded.alone() {
                    // The workers end at once, and the others are told all the same.
                    stopper.ask(Signal::KILL);
                    warn!("this command was killed; killing its workers");
                } else if ignored {
                    debug!("{name} is ignored");
                } else if asks {
                    if stopper.ask(number) {
                        info!("{name} again: ending at once; the workers are killed");
                    } else {
                        info!("{name}: ending in good order; once more to end at once");
                    }
                } else if matches!(number, Signal::USR1 | Signal::USR2) {
                    pass_on(name, number, &workers);
                } else {
                    info!("{name} is not one of --signals-to-handle: going on");
                }
            }
        });
    }
}

fn pass_on(name: &str, signal: Signal, workers: &Workers) {
    let spared = workers.pass_on(signal);
    if spared.is_empty() {
        info!("{name} is passed on to the workers");
    } else {
        info!(ranks = ?spared, "{name} is passed on to the workers that handle it; it would end those that do not");
    }
}

/// Stops the workers while the command is stopped, as by Ctrl-Z. The launcher itself goes on, so that this node
/// keeps its place among the others.
pub(crate) async fn follow(guarded: Guarded, workers: Workers) {
    loop {
        tokio::time::sleep(LOOK).await;
        let paused = guarded.paused();
        if workers.pause(paused) {
            info!(
                "{}",
                if paused { "this command is stopped, and its workers with it" } else { "the workers go on" }
            );
        }
    }
}
