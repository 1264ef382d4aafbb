//! What a node does in a round when it, or another one, is going to be taken away.

use std::time::{Duration, SystemTime};

use rallypoint_core::round::What;
use rallypoint_core::text::count;
use rallypoint_rendezvous::GroupChange;
use rallypoint_stacks::numbered;
use rustix::process::Signal;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::board::SavedBoard;
use super::deadline::Deadline;
use super::files::{Files, all};
use super::record::{Heard, Preempted, notice};
use super::saving::Saving;
use crate::agent::Agent;
use crate::decision::Event;
use crate::failure::Failure;
use crate::group::Group;
use crate::signals::name_of;
use crate::stop::{Stop, StopListener, Warning};
use crate::timeline::Keep;

/// How often it is looked whether workers have saved. Nothing tells of it on every file system.
const LOOK: Duration = Duration::from_millis(50);
/// Workers that have saved and ended may know of a preemption that their node is told of so much later.
const TO_BE_TOLD: Duration = Duration::from_secs(10);
/// For the store to say whose workers have saved, when the time for it is over.
const TO_ASK: Duration = Duration::from_millis(300);

/// The workers of a round, as this node knows them.
#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) round: u64,
    /// This node's place, and its name.
    pub(crate) node: usize,
    pub(crate) host: String,
    pub(crate) name: String,
    pub(crate) nodes: usize,
    pub(crate) ranks: Vec<usize>,
    /// None where they cannot be told.
    pub(crate) files: Option<Files>,
    pub(crate) board: SavedBoard,
}

/// Whether this node's workers can be stopped without a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    /// Nobody has asked for it.
    NotAsked,
    /// They are waited for.
    Waiting,
    /// All have said so, and the others are told.
    Told,
}

/// This node is the one that goes.
#[derive(Debug, Clone, Copy)]
struct Own {
    warning: Warning,
    /// None if nobody knows when it has to be gone.
    deadline: Option<Deadline>,
}

/// What is heard of while the workers run.
#[derive(Debug)]
enum News {
    /// Another node goes.
    Told(Preempted),
    /// All workers of this node have saved.
    SavedHere,
    /// Those of all nodes have.
    AllSaved,
}

/// One node's part in the preemptions of a round. Dropped, it tells nobody any more.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    agent: &'a Agent,
    /// None while there are no workers.
    crew: Option<Crew>,
    /// When all of them had been started.
    started: Option<SystemTime>,
    /// The workers have finished their work.
    finished: bool,
    seen: Stop,
    heard: Vec<Heard>,
    /// Nodes wait to get in, and the workers have until then to save.
    joining: Option<SystemTime>,
    own: Option<Own>,
    /// A worker of this node wanted the time to save when it was told.
    listened_to: bool,
    saved: Saved,
    /// Who has, of this node's workers, by local rank, at the last look.
    marks: watch::Sender<Vec<bool>>,
    tell: mpsc::UnboundedSender<News>,
    news: mpsc::UnboundedReceiver<News>,
    tasks: JoinSet<()>,
}

impl<'a> Watch<'a> {
    /// Before there are workers.
    pub(crate) fn new(agent: &'a Agent) -> Self {
        let (tell, news) = mpsc::unbounded_channel();
        Watch {
            agent,
            crew: None,
            started: None,
            finished: false,
            seen: Stop::No,
            heard: Vec::new(),
            joining: None,
            own: None,
            listened_to: false,
            saved: Saved::NotAsked,
            marks: watch::Sender::default(),
            tell,
            news,
            tasks: JoinSet::new(),
        }
    }

    /// The workers are about to be started.
    pub(crate) fn begin(&mut self, crew: Crew) {
        if crew.nodes > 1 {
            let (board, own, tell) = (crew.board.clone(), crew.node, self.tell.clone());
            self.tasks.spawn(async move {
                let told = |who: Preempted| {
                    if who.node != own {
                        let _ = tell.send(News::Told(who));
                    }
                };
                board.listen(told).await;
            });
        }
        self.crew = Some(crew);
    }

    /// They have been started, or those that were before the end was asked for.
    pub(crate) fn started(&mut self) {
        self.started = Some(SystemTime::now());
    }

    /// The file that tells a worker of preemptions.
    pub(crate) fn file(&self, local_rank: usize) -> Option<std::path::PathBuf> {
        Some(self.crew.as_ref()?.files.as_ref()?.of(local_rank))
    }

    /// The workers have finished their work; there is nothing left to save.
    pub(crate) fn finished(&mut self) {
        self.finished = true;
        if self.is_asked() {
            let _ = self.tell.send(News::SavedHere);
        }
    }

    /// This node goes, because it is taken away.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// When this node has to be gone, if it goes and that is known.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        self.own?.deadline
    }

    /// Whether the workers have been told that they can save.
    fn is_asked(&self) -> bool {
        !self.heard.is_empty() || self.joining.is_some()
    }

    /// That workers may be saving, if it is known until when.
    pub(crate) fn saving(&self) -> Option<Saving> {
        let goes = self.heard.iter().filter_map(|heard| heard.deadline).max();
        // Where nobody goes, each node meets again when its own have saved.
        let joins = self.joining.filter(|_| self.saved != Saved::Told);
        let here = self.listened_to && self.saved == Saved::Waiting && !self.finished;
        goes.max(joins).map(|until| Saving { until, here })
    }

    /// Waits for the next thing that happens, and acts on it; the signal by which this node is to end, if it is. May be
    /// dropped and called again.
    pub(crate) async fn turn(&mut self, stop: &mut StopListener) -> Option<Signal> {
        let deadline = self.deadline().map(|deadline| deadline.save);
        let over = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        // A node that goes has its own last word.
        let saving = self.saving().filter(|saving| saving.is_here() && deadline.is_none());
        let saving_is_over = async {
            match saving {
                Some(saving) => tokio::time::sleep(left_until(saving.until)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            stop = stop.other_than(self.seen) => {
                self.seen = stop;
                match stop {
                    Stop::No => None,
                    Stop::Preempted(warning) => self.warned(warning),
                    Stop::InOrder(signal) | Stop::Now(signal) => Some(signal),
                    Stop::Stuck(_) => Some(Signal::KILL),
                }
            }
            Some(news) = self.news.recv() => self.take(news),
            () = over => self.time_is_over().await,
            () = saving_is_over => {
                // What others do counts again.
                warn!("the time to save is over, without a word from {}", unsaved(&self.unsaved_here(), &[]));
                None
            }
        }
    }

    /// This node is going to be taken away. The signal, if it ends at once.
    fn warned(&mut self, warning: Warning) -> Option<Signal> {
        let at_once = warning.ends.then_some(warning.signal);
        let Some(crew) = self.crew.as_ref().filter(|_| !self.finished || self.own.is_some()) else {
            return at_once;
        };
        let too_early = self.started.is_none_or(|started| warning.at < started);
        if warning.ends && (too_early || !self.is_listened_to()) {
            return at_once;
        }
        let notify = self.agent.spec().preemption.notify;
        let deadline = Deadline::of(warning, self.agent.spec());
        let left = move || deadline.map(|deadline| millis_until(deadline.save));
        let who = Preempted {
            node: crew.node,
            host: crew.host.clone(),
            name: crew.name.clone(),
            ranks: crew.ranks.clone(),
            signal: name_of(warning.signal),
            left_ms: left(),
        };
        let what = What::Preempted { rank: who.node, signal: who.signal.clone(), left_ms: who.left_ms };
        self.agent.timeline().note(Keep::Run, crew.round, what);
        if crew.nodes > 1 {
            let (board, who) = (crew.board.clone(), who.clone());
            self.tasks.spawn(async move {
                board.tell(|| Preempted { left_ms: left(), ..who.clone() }).await;
            });
            let (board, tell) = (crew.board.clone(), self.tell.clone());
            self.tasks.spawn(async move {
                board.all_saved().await;
                let _ = tell.send(News::AllSaved);
            });
        }
        self.own = Some(Own { warning, deadline });
        // It was passed on to them already, or asks for the end.
        self.hear(who, notify.filter(|notify| warning.ends || *notify != warning.signal));
        None
    }

    /// Whether a worker wants the time to save, or gets it anyhow.
    fn is_listened_to(&self) -> bool {
        self.agent.spec().preemption.grace.is_some() || self.a_worker_listens()
    }

    fn a_worker_listens(&self) -> bool {
        let notify = self.agent.spec().preemption.notify;
        let files = self.crew.as_ref().and_then(|crew| crew.files.as_ref());
        notify.is_some_and(|signal| self.agent.workers().handle(signal))
            || files.is_some_and(Files::is_listened_to)
    }

    fn take(&mut self, news: News) -> Option<Signal> {
        match news {
            News::Told(who) => {
                self.hear(who, self.agent.spec().preemption.notify);
                None
            }
            News::SavedHere => self.saved_here(),
            News::AllSaved => {
                // Who has finished waits for the others to finish, or for the deadline.
                let own = self.own.filter(|_| !self.finished)?;
                info!("the workers of all nodes have saved; this node leaves");
                Some(own.warning.signal)
            }
        }
    }

    /// A node goes: the workers are told, and get this signal.
    fn hear(&mut self, who: Preempted, notify: Option<Signal>) {
        info!("{}", who.in_short());
        let heard = Heard::now(who);
        // One that was warned before has less time now.
        self.heard.retain(|known| known.who.node != heard.who.node);
        self.heard.push(heard);
        self.tell_workers(notify);
    }

    /// The group meets again for another reason. Where that is that nodes want to get in, workers that listen can save
    /// first: true if they are told so, and the change waits.
    pub(crate) fn lets_save(&mut self, change: &GroupChange) -> bool {
        let GroupChange::Waiting { count: waiting } = change else { return false };
        if self.is_asked() || self.finished || self.crew.is_none() || !self.a_worker_listens() {
            return false;
        }
        let (signal, at, ends) = (Signal::TERM, SystemTime::now(), true);
        let deadline = Deadline::of(Warning { signal, at, ends }, self.agent.spec());
        let Some(left) = deadline.map(|deadline| millis_until(deadline.save)).filter(|left| *left > 0) else {
            return false;
        };
        let left = Duration::from_millis(left);
        let (who, seconds) = (count(*waiting, "node"), left.as_secs_f64().round());
        info!("there is room for {who} more: before they meet again, the workers have {seconds} s to save");
        self.joining = Some(at + left);
        self.tell_workers(self.agent.spec().preemption.notify);
        true
    }

    /// The workers are told all that is known, and get this signal.
    fn tell_workers(&mut self, notify: Option<Signal>) {
        let listened_to = self.a_worker_listens();
        let Some(crew) = &self.crew else { return };
        self.listened_to |= listened_to;
        self.agent.workers().save(true);
        if let Some(files) = &crew.files {
            files.write(notice(&self.heard, self.joining, crew.node, SystemTime::now()));
            if self.saved == Saved::NotAsked {
                self.tasks.spawn(look(files.clone(), self.marks.clone(), self.tell.clone()));
                self.saved = Saved::Waiting;
            }
        }
        if self.finished {
            let _ = self.tell.send(News::SavedHere);
        }
        if let Some(signal) = notify {
            self.agent.workers().pass_on(signal);
        }
    }

    /// All workers of this node have saved: the others are told.
    fn saved_here(&mut self) -> Option<Signal> {
        let crew = self.crew.as_ref()?;
        if self.saved == Saved::Told {
            return None;
        }
        self.saved = Saved::Told;
        info!("the workers of this node have {}", if self.finished { "finished" } else { "saved" });
        if crew.nodes == 1 {
            return self.take(News::AllSaved);
        }
        let (board, node, tell) = (crew.board.clone(), crew.node, self.tell.clone());
        self.tasks.spawn(async move {
            if board.saved(node).await {
                // Before others are heard to leave because of it.
                let _ = tell.send(News::AllSaved);
            }
        });
        None
    }

    /// The time to save is over.
    async fn time_is_over(&mut self) -> Option<Signal> {
        let own = self.own?;
        if !own.warning.ends && !self.is_listened_to() {
            // As it would be without: the program has its own way, or the scheduler's.
            self.own = Some(Own { deadline: None, ..own });
            return None;
        }
        let nodes = match &self.crew {
            Some(crew) if crew.nodes > 1 => {
                let unsaved = tokio::time::timeout(TO_ASK, crew.board.unsaved()).await;
                let others = unsaved.ok().and_then(Result::ok).unwrap_or_default();
                others.into_iter().filter(|node| *node != crew.node).collect()
            }
            _ => Vec::new(),
        };
        let who = unsaved(&self.unsaved_here(), &nodes);
        warn!("the time to save is over, without a word from {who}; this node leaves");
        Some(own.warning.signal)
    }

    /// The ranks of this node's workers that have not said that they have saved.
    fn unsaved_here(&self) -> Vec<usize> {
        let (Some(crew), false) = (&self.crew, self.saved == Saved::Told) else { return Vec::new() };
        let marks = self.marks.borrow();
        let has_saved = |at: usize| marks.get(at).copied().unwrap_or(false);
        crew.ranks.iter().enumerate().filter(|(at, _)| !has_saved(*at)).map(|(_, rank)| *rank).collect()
    }

    /// What it means that workers have ended: whoever has saved may, whatever its exit code, and has not finished its work
    /// by that. None: the round goes on.
    pub(crate) fn ended(&mut self, group: &mut Group, event: Event) -> Option<Event> {
        let files = self.crew.as_ref().and_then(|crew| crew.files.as_ref());
        let saved = files.map(Files::saved_by_now).unwrap_or_default();
        if self.is_asked() {
            group.forgive(&saved);
        }
        if group.has_failed() {
            // Slurm signals every process there is; and a node that goes has nothing to settle with the others.
            let goes = self.own.filter(|own| own.warning.ends || self.is_listened_to());
            if goes.is_some() {
                let failures = group.failures(self.agent.keeps_logs());
                let first = failures.iter().min_by_key(|failure| failure.moment());
                let what = first.map_or_else(|| "a worker has failed".to_owned(), Failure::in_short);
                warn!("{what}, before all had saved: this node leaves");
            }
            return Some(goes.map_or(event, |own| Event::Asked(own.warning.signal)));
        }
        if !group.has_ended() {
            return None;
        }
        if !saved.contains(&true) {
            return Some(Event::Succeeded);
        }
        // They may know of it from other workers, before this node does.
        let silent = self.agent.handler().contact().is_some_and(|contact| contact.is_silent());
        if !self.is_asked() && self.saved == Saved::Told && !silent {
            warn!("the workers have said that they have saved, and no node is preempted: they have finished");
            return Some(Event::Succeeded);
        }
        group.park(TO_BE_TOLD);
        let _ = self.tell.send(News::SavedHere);
        None
    }

    /// What an event means to this node: one that goes and has saved does not meet the others again.
    pub(crate) fn means(&self, event: Event) -> Event {
        match (self.own, &event) {
            (Some(own), Event::Notice(_) | Event::Changed(_) | Event::CutOff(_))
                if self.saved == Saved::Told =>
            {
                Event::Asked(own.warning.signal)
            }
            _ => event,
        }
    }

    /// By what the workers are told to end, and how long they have: otherwise by `signal`, for `grace`.
    pub(crate) fn stops_by(&self, signal: Signal, grace: Duration) -> (Signal, Duration) {
        match self.own {
            Some(own) if own.warning.signal == signal => {
                let left = own.deadline.map(|at| at.kill.saturating_duration_since(Instant::now()));
                (Signal::TERM, left.map_or(grace, |left| left.min(grace)))
            }
            _ => (signal, grace),
        }
    }

    /// The workers are gone.
    pub(crate) fn over(&mut self) {
        self.agent.workers().save(false);
        self.tasks.abort_all();
        if let Some(files) = self.crew.take().and_then(|crew| crew.files) {
            files.remove();
        }
    }
}

/// These ranks, and the workers of these nodes.
fn unsaved(ranks: &[usize], nodes: &[usize]) -> String {
    let named = |one: &str, all: &[usize]| (!all.is_empty()).then(|| numbered(one, all));
    match (named("rank", ranks), named("the workers of node", nodes)) {
        (None, None) => "workers of other nodes".to_owned(),
        (Some(one), None) | (None, Some(one)) => one,
        (Some(ranks), Some(nodes)) => format!("{ranks} and {nodes}"),
    }
}

/// Waits until all workers have saved.
async fn look(files: Files, marks: watch::Sender<Vec<bool>>, tell: mpsc::UnboundedSender<News>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let files = files.clone();
        let saved = tokio::task::spawn_blocking(move || files.saved()).await.unwrap_or_default();
        let all_have = all(&saved);
        marks.send_replace(saved);
        if all_have {
            let _ = tell.send(News::SavedHere);
            return;
        }
    }
}

fn millis_until(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX)
}

fn left_until(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::now()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_saved_is_named() {
        assert_eq!(unsaved(&[3], &[]), "rank 3");
        assert_eq!(unsaved(&[], &[1]), "the workers of node 1");
        assert_eq!(unsaved(&[0, 1, 4], &[1, 2]), "ranks 0, 1, 4 and the workers of nodes 1, 2");
    }
}
