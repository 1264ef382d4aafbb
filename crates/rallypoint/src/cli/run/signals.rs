//! What signals mean to the launcher.

use std::time::{Duration, Instant};

use rallypoint_agent::{AT_ONCE, Guarded, KNOWN_SIGNALS, Stopper, Workers, is_ignored, outlive_file_limit};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{debug, info, warn};

/// A site may send a signal to each of this command's processes; the workers get it once.
const LULL: Duration = Duration::from_secs(1);
/// Looking more often than this would be all that is done.
pub(crate) const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// Acts on signals from now on. Those in `ends` ask for the end in good order; SIGUSR1 and SIGUSR2 are passed on to the
/// workers, and others do nothing. Those in `preempts` also say that this node is going to be taken away.
pub(crate) fn listen(
    ends: &[Signal],
    preempts: &[Signal],
    interactive: bool,
    stopper: &Stopper,
    guarded: &Guarded,
    workers: &Workers,
) {
    if let Err(error) = outlive_file_limit() {
        warn!(%error, "SIGXFSZ cannot be handled");
    }
    for (name, number) in KNOWN_SIGNALS {
        let ignored = is_ignored(number);
        // The end of a guard is told by SIGTERM, also to those who ignore it.
        if ignored && number != Signal::TERM {
            continue;
        }
        let asks = ends.contains(&number) || (interactive && terminals(number));
        let preempts = preempts.contains(&number);
        let (stopper, guarded, workers) = (stopper.clone(), guarded.clone(), workers.clone());
        let mut passed: Option<Instant> = None;
        // A terminal that is closed tells of it more than once.
        let haste = match number {
            Signal::HUP if ends.contains(&Signal::TERM) => "; SIGTERM to end at once",
            Signal::HUP => "",
            _ => "; once more to end at once",
        };
        on(name, number, move || {
            if guarded.alone() {
                // The workers end at once, and the others are told all the same.
                if !stopper.ask(Signal::KILL) {
                    stopper.hurry();
                }
                warn!("this command was killed; killing its workers");
            } else if ignored {
                debug!("{name} is ignored");
            } else if terminals(number) && workers.on_terminal() {
                debug!("{name} is the worker's on the terminal");
            } else if asks {
                // Whether there is time to save, the agent knows.
                let news = if preempts { stopper.preempt(number, true) } else { stopper.ask(number) };
                if news {
                    info!("{name}: ending in good order{haste}");
                } else if interactive && terminals(number) {
                    // The command does not count those of a terminal that a worker has.
                    stopper.hurry();
                }
            } else if matches!(number, Signal::USR1 | Signal::USR2) {
                if passed.replace(Instant::now()).is_none_or(|passed| passed.elapsed() > LULL) {
                    pass_on(name, number, &workers);
                }
                if preempts {
                    stopper.preempt(number, false);
                }
            } else if preempts {
                stopper.preempt(number, false);
            } else {
                info!("{name} is not one of --signals-to-handle: going on");
            }
        });
    }
    let stopper = stopper.clone();
    on("a second request", AT_ONCE, move || {
        stopper.hurry();
        info!("asked to end again: ending at once; the workers are killed");
    });
}

fn on(name: &'static str, number: Signal, mut act: impl FnMut() + Send + 'static) {
    let Ok(mut signals) = signal(SignalKind::from_raw(number.as_raw())) else {
        warn!("{name} cannot be handled");
        return;
    };
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            act();
        }
    });
}

/// Those that a key sends, to whoever is on the terminal.
pub(crate) fn terminals(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::QUIT)
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
/// keeps its place among the others. Nothing tells of it, so it is looked at again and again.
pub(crate) async fn follow(guarded: Guarded, workers: Workers, interval: Duration) {
    loop {
        tokio::time::sleep(interval.max(SHORTEST_LOOK)).await;
        let paused = guarded.paused();
        if workers.pause(paused) {
            info!(
                "{}",
                if paused { "this command is stopped, and its workers with it" } else { "the workers go on" }
            );
        }
    }
}
