//! What a user of torchrun reads while the nodes wait for each other: torchrun itself says nothing.

use std::convert::Infallible;
use std::time::Duration;

use rallypoint_core::text::plain;
use rallypoint_rendezvous::RendezvousHandler;
use tokio::time::{Instant, sleep};

/// Whoever meets quicker than this need not read about it.
const QUIET: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_secs(1);
/// How often it is said again that nothing has changed.
const REMINDER: Duration = Duration::from_secs(60);

/// Says now and then what this node waits for, until it is dropped.
pub(crate) async fn tell(handler: &dyn RendezvousHandler) -> Infallible {
    let (began, progress) = (Instant::now(), handler.progress());
    let mut said: Option<(String, Instant)> = None;
    sleep(QUIET).await;
    loop {
        let (text, stands_by) = {
            let progress = progress.borrow();
            (progress.waits_for(None), progress.spare)
        };
        // That etcd does not answer is said by whoever asks it.
        let is_silent = handler.contact().is_some_and(|contact| contact.is_silent());
        let is_news = said.as_ref().is_none_or(|(before, at)| {
            (*before != text && at.elapsed() >= QUIET) || (at.elapsed() >= REMINDER && !stands_by)
        });
        if is_news && !is_silent {
            let (waited, run) = (began.elapsed().as_secs(), plain(handler.run_id()));
            tracing::warn!("{text} ({waited} s so far), run {run}");
            said = Some((text, Instant::now()));
        }
        sleep(TICK).await;
    }
}
