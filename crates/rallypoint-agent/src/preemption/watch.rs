//! What a node does in a round when it, or another one, is going to be taken away.

use std::time::{Duration, SystemTime};

use rallypoint_core::round::What;
use rallypoint_core::time::bounded;
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::board::Board;
use super::files::{Files, all};
use super::plan::{Given, Times};
use super::record::{Heard, Preempted, notice};
use crate::agent::Agent;
use crate::decision::Event;
use crate::group::Group;
use crate::signals::name_of;
use crate::stop::{Stop, StopListener, Warning};
use crate::timeline::Keep;

/// How often it is looked whether workers have saved. Nothing tells of it on every file system.
const LOOK: Duration = Duration::from_millis(50);
/// Workers that have saved and ended may know of a preemption that their node is told of so much later.
const TO_BE_TOLD: Duration = Duration::from_secs(10);

/// The workers of a round, as this node knows them.
#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) round: u64,
    /// This node's place, and its name.
    pub(crate) node: usize,
    pub(crate) host: String,
    pub(crate) nodes: usize,
    pub(crate) ranks: Vec<usize>,
    /// None where they cannot be told.
    pub(crate) files: Option<Files>,
    pub(crate) board: Board,
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
    /// When its workers are told to end, and when they are killed; none if nobody knows.
    deadline: Option<(Instant, Instant)>,
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
    own: Option<Own>,
    saved: Saved,
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
            own: None,
            saved: Saved::NotAsked,
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
        if !self.heard.is_empty() {
            let _ = self.tell.send(News::SavedHere);
        }
    }

    /// This node goes, because it is taken away.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Until when workers may be saving, if that is known. Who wants to get in waits for as long: the nodes meet again anyway.
    pub(crate) fn saves_until(&self) -> Option<SystemTime> {
        self.heard.iter().filter_map(|heard| heard.deadline).max()
    }

    /// Waits for the next thing that happens, and acts on it; the signal by which this node is to end, if it is. May be
    /// dropped and called again.
    pub(crate) async fn turn(&mut self, stop: &mut StopListener) -> Option<Signal> {
        let deadline = self.own.and_then(|own| own.deadline).map(|(save, _)| save);
        let over = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at).await,
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
                }
            }
            Some(news) = self.news.recv() => self.take(news),
            () = over => self.deadline(),
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
        let (settings, shutdown) = (&self.agent.spec().preemption, self.agent.spec().grace);
        let until = |at: SystemTime| at.duration_since(SystemTime::now()).ok();
        let given = Given {
            since: warning.at.elapsed().unwrap_or_default(),
            ends: warning.ends,
            grace: settings.grace,
            shutdown,
            job_end: settings.job_end.and_then(until),
        };
        let times = given.times();
        let now = Instant::now();
        let deadline = times.map(|Times { save, gone }| (now + bounded(save), now + bounded(gone)));
        let who = Preempted {
            node: crew.node,
            host: crew.host.clone(),
            ranks: crew.ranks.clone(),
            signal: name_of(warning.signal),
            left_ms: times.map(|times| whole_millis(times.save)),
        };
        let what = What::Preempted { rank: who.node, signal: who.signal.clone(), left_ms: who.left_ms };
        self.agent.timeline().note(Keep::Run, crew.round, what);
        if crew.nodes > 1 {
            let (board, who) = (crew.board.clone(), who.clone());
            self.tasks.spawn(async move {
                let left = || deadline.map(|(save, _)| whole_millis(save - Instant::now().min(save)));
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
        self.hear(who, settings.notify.filter(|notify| warning.ends || *notify != warning.signal));
        None
    }

    /// Whether a worker wants the time to save.
    fn is_listened_to(&self) -> bool {
        let settings = &self.agent.spec().preemption;
        let files = self.crew.as_ref().and_then(|crew| crew.files.as_ref());
        settings.grace.is_some()
            || settings.notify.is_some_and(|signal| self.agent.workers().handle(signal))
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
        let Some(crew) = &self.crew else { return };
        self.agent.workers().save(true);
        info!("{}", who.in_short());
        let heard = Heard::now(who);
        // One that was warned before has less time now.
        self.heard.retain(|known| known.who.node != heard.who.node);
        self.heard.push(heard);
        if let Some(files) = &crew.files {
            files.write(notice(&self.heard, crew.node, SystemTime::now()));
            if self.saved == Saved::NotAsked {
                self.tasks.spawn(look(files.clone(), self.tell.clone()));
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
        let board = crew.board.clone();
        self.tasks.spawn(async move { board.saved().await });
        None
    }

    /// The time to save is over.
    fn deadline(&mut self) -> Option<Signal> {
        let own = self.own?;
        if !own.warning.ends && !self.is_listened_to() {
            // As it would be without: the program has its own way, or the scheduler's.
            self.own = Some(Own { deadline: None, ..own });
            return None;
        }
        let who = if self.saved == Saved::Told {
            "those of other nodes have not all said"
        } else {
            "not all workers have said"
        };
        warn!("the time to save is over, and {who} that they have; this node leaves");
        Some(own.warning.signal)
    }

    /// What it means that workers have ended: whoever has saved may, whatever its exit code, and has not finished its work
    /// by that. None: the round goes on.
    pub(crate) fn ended(&mut self, group: &mut Group, event: Event) -> Option<Event> {
        let files = self.crew.as_ref().and_then(|crew| crew.files.as_ref());
        let saved = files.map(Files::saved_by_now).unwrap_or_default();
        if !self.heard.is_empty() {
            group.forgive(&saved);
        }
        if group.has_failed() {
            // Slurm signals every process there is; and a node that goes has nothing to settle with the others.
            let goes = self.own.filter(|own| own.warning.ends || self.is_listened_to());
            if goes.is_some() {
                warn!("a worker has failed before all had saved: this node leaves");
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
        if self.heard.is_empty() && self.saved == Saved::Told && !silent {
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
                let left = own.deadline.map(|(_, gone)| gone.saturating_duration_since(Instant::now()));
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

/// Waits until all workers have saved.
async fn look(files: Files, tell: mpsc::UnboundedSender<News>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let files = files.clone();
        let saved = tokio::task::spawn_blocking(move || files.saved()).await;
        if saved.is_ok_and(|saved| all(&saved)) {
            let _ = tell.send(News::SavedHere);
            return;
        }
    }
}

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
