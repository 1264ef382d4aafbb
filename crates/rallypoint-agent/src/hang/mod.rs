//! Workers that hang: they run, and make no progress.
//!
//! Each node looks for its workers' signs of progress (`progress`). When one has shown none for too long, its node asks all
//! nodes of the round (`inquiry`): first for the signs of theirs, which costs little and is the end of it where others still
//! make progress; then also for what their workers do (`autopsy`), and from that it is found who stopped first (`judge`). That
//! is written once, and is the same for all. The node of that worker has a worker that failed; the others hear of it as of any
//! other failure, and pay nothing.
//!
//! An operator's `rallypoint stacks` is an inquiry too.

mod autopsy;
mod first;
mod inquiry;
mod judge;
mod limits;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rallypoint_core::time::bounded;
use rallypoint_stacks::{Folded, fold, numbered};
use rallypoint_store::{Store, StoreError};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{debug, info, warn};

pub(crate) use self::autopsy::Subject;
use self::autopsy::{Look, runs};
pub use self::inquiry::{Answer, Worker, WorkerState, ask_stacks};
use self::inquiry::{Asked, Hung, Inquiries, Verdict};
use self::judge::{Finding, judge};
use self::limits::Limits;
use crate::failure::{ErrorRecord, Exit};
use crate::progress::{Heartbeats, Progress, Sample, sample};
use crate::workers::Workers;

/// For a look at all workers of a node, where an operator waits for what comes out.
const LOOK: Duration = Duration::from_secs(2);
/// The same before workers are stopped because one failed or hangs: the next round waits for it.
const LOOK_BEFORE_STOP: Duration = Duration::from_secs(1);
/// The same while it was seen of no worker of a node what it does, where all nodes have just answered: who hangs may be among them, and
/// a machine may be that busy.
const LOOK_LONGER: Duration = Duration::from_secs(2);
/// For all nodes to answer.
const TO_ANSWER: Duration = Duration::from_secs(4);
/// What is left of that for those who have just not answered, while the others look at their workers.
const TO_ANSWER_AGAIN: Duration = Duration::from_millis(1400);
/// For their signs, where the timeout is short.
const SHORTEST_TO_ANSWER: Duration = Duration::from_millis(500);
/// For whoever asked who hangs to say so. Then another node does.
const TO_CONCLUDE: Duration = Duration::from_secs(10);
/// How often workers are looked at, at most and at least.
const SELDOM: Duration = Duration::from_millis(250);
const OFTEN: Duration = Duration::from_millis(50);
/// For the verdict, which may come after the failure that follows from it.
const TO_BE_TOLD: Duration = Duration::from_secs(1);
/// So many stacks are told in the log, and in the report of a failure.
const MOST_TOLD: usize = 8;

/// When it is looked at what workers do, before they are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum LookBefore {
    /// Never.
    Nothing,
    /// When one of the run hangs.
    Hangs,
    /// Also when one of the run has failed.
    #[default]
    Failures,
}

/// What is done about workers that make no progress.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct HangSpec {
    /// How long a worker may show no progress after its first sign of it; none: for ever.
    pub timeout: Option<Duration>,
    /// With a timeout: how long it may take to that; none: as long as it likes.
    pub start_timeout: Option<Duration>,
    /// With a timeout: how long it may take to end, once others have; none: as long as it likes.
    pub end_timeout: Option<Duration>,
    /// When it is looked at what workers do.
    pub look_before: LookBefore,
    /// Where workers beat; none: nowhere.
    pub heartbeats: Option<Arc<Heartbeats>>,
}

impl HangSpec {
    fn limits(&self) -> Option<Limits> {
        self.timeout.map(|timeout| Limits { timeout, start: self.start_timeout, end: self.end_timeout })
    }
}

/// A worker that was found to hang.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hanging {
    /// Its rank.
    pub rank: usize,
    /// When it stopped.
    pub since: SystemTime,
    seconds: u64,
    why: String,
    stacks: String,
}

impl Hanging {
    /// As an end of its process, which it has not had.
    pub(crate) fn exit(&self) -> Exit {
        Exit::Hung(self.seconds)
    }

    /// In the place of what a worker that fails writes of its error.
    pub(crate) fn error(&self) -> ErrorRecord {
        let stacks = Some(self.stacks.clone()).filter(|stacks| !stacks.is_empty());
        ErrorRecord { time: Some(self.since), ..ErrorRecord::new(self.why.clone(), stacks) }
    }
}

/// Watches over the workers of a round on one node, and answers for them. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct HangWatch {
    task: JoinHandle<()>,
    found: mpsc::Receiver<Hanging>,
    /// Whether it was said here who hangs.
    told: watch::Receiver<bool>,
    subjects: Vec<Subject>,
    look_before: LookBefore,
}

impl Drop for HangWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HangWatch {
    /// For the workers of node `node` of so many, called `host`.
    pub(crate) fn start(
        spec: &HangSpec,
        subjects: Vec<Subject>,
        store: &dyn Store,
        (node, nodes, host): (usize, usize, &str),
        workers: &Workers,
    ) -> Self {
        let limits = spec.limits();
        let shortest = limits.map_or(SELDOM, Limits::shortest);
        let every = (shortest / 8).clamp(OFTEN, SELDOM);
        let sources = subjects.iter().map(|subject| subject.progress.clone()).collect();
        let signs = limits.and_then(|_| {
            let workers = workers.clone();
            let sampled = sample(sources, every, move || workers.are_paused());
            sampled.inspect_err(|error| warn!("--hang-timeout has no effect: {error}")).ok()
        });
        let (send, found) = mpsc::channel(1);
        let (tell, told) = watch::channel(false);
        let watching = Watching {
            inquiries: Inquiries::new(store, nodes),
            node,
            host: host.to_owned(),
            limits: limits.filter(|_| signs.is_some()),
            look_before: spec.look_before,
            progress: subjects.iter().map(|_| Progress::new()).collect(),
            subjects: subjects.clone(),
            workers: workers.clone(),
            ran: Duration::ZERO,
            stood: Duration::ZERO,
            wants: None,
            others_wait: None,
            not_before: Instant::now(),
            is_said: None,
            found: send,
            told: tell,
        };
        let task = tokio::spawn(watching.run(signs));
        HangWatch { task, found, told, subjects, look_before: spec.look_before }
    }

    /// Waits until a worker of this node is found to hang.
    pub(crate) async fn found(&mut self) -> Hanging {
        match self.found.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }

    /// Another node's worker hangs: waits, not for long, until this one has said so, and what all do.
    pub(crate) async fn is_told(&self) {
        let mut told = self.told.clone();
        let told = tokio::time::timeout(TO_BE_TOLD, told.wait_for(|told| *told)).await.is_ok();
        debug!(told, "another node has found who hangs");
    }

    /// Looks at the workers before they are stopped because one failed, here or elsewhere, and says what they do.
    pub(crate) async fn before_stop(&self, why: &str) {
        if self.look_before < LookBefore::Failures {
            return;
        }
        let folded = autopsy::look(&self.subjects, LOOK_BEFORE_STOP.into(), why).await;
        for stack in folded.iter().filter(|stack| stack.unseen.is_none()).take(MOST_TOLD) {
            let who = if stack.ranks.len() == 1 { "it was" } else { "they were" };
            info!("when {who} stopped, {}", stack.line());
        }
    }
}

/// What a node wants to know of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    Signs,
    Stacks,
}

#[derive(Debug)]
struct Watching {
    inquiries: Inquiries,
    node: usize,
    host: String,
    limits: Option<Limits>,
    look_before: LookBefore,
    subjects: Vec<Subject>,
    progress: Vec<Progress>,
    workers: Workers,
    /// The time that the workers have had, as of the last sample, and that which did not count.
    ran: Duration,
    stood: Duration,
    wants: Option<Wants>,
    /// The nodes were asked before the timeout, and nobody makes progress: for how long all of them are waited for next time.
    others_wait: Option<Duration>,
    /// Nobody is suspected before.
    not_before: Instant,
    /// The last thing that was said of why nobody is found.
    is_said: Option<String>,
    found: mpsc::Sender<Hanging>,
    told: watch::Sender<bool>,
}

impl Watching {
    async fn run(mut self, mut samples: Option<watch::Receiver<Sample>>) {
        for number in 1.. {
            let inquiries = self.inquiries.clone();
            let asked = inquiries.asked(number);
            tokio::pin!(asked);
            let asked = loop {
                tokio::select! {
                    biased;
                    asked = &mut asked => break asked,
                    sample = next(&mut samples) => self.note(sample),
                }
                if self.wants.is_none() && Instant::now() >= self.not_before {
                    self.wants = self.suspects();
                }
                if let Some(wants) = self.wants {
                    self.open(number, wants).await;
                }
            };
            self.take_part(number, &asked).await;
        }
    }

    fn note(&mut self, sample: Sample) {
        let passed = sample.ran.saturating_sub(std::mem::replace(&mut self.ran, sample.ran));
        let stood = sample.stood.saturating_sub(std::mem::replace(&mut self.stood, sample.stood));
        for (progress, signs) in self.progress.iter_mut().zip(sample.signs) {
            progress.note(signs, passed, stood);
        }
    }

    /// What to ask: whether one of this node's workers has been silent for too long, and none of them tells that others need not
    /// wait. The nodes are asked for their signs a little earlier, so that none that does not answer is waited for after the timeout.
    fn suspects(&mut self) -> Option<Wants> {
        let limits = self.limits?;
        let answer = [self.answer(Vec::new())];
        let suspects = |limits| matches!(judge(&answer, limits), Finding::Hung { .. });
        if !suspects(limits.early()) {
            self.others_wait = None;
            return None;
        }
        match self.others_wait {
            None => Some(Wants::Signs),
            Some(_) => suspects(limits).then_some(Wants::Stacks),
        }
    }

    /// What this node says of its workers.
    fn answer(&self, stacks: Vec<Folded>) -> Answer {
        // Who has saved may wait for the others to.
        let paused = self.workers.are_paused() || self.workers.are_saving();
        let worker = |(subject, progress): (&Subject, &Progress)| {
            let state = match () {
                () if subject.has_ended() => WorkerState::Ended,
                () if paused || !subject.judged => WorkerState::Paused,
                () if subject.is_ending() || progress.ends().is_some_and(runs) => WorkerState::Ending,
                () => WorkerState::Running,
            };
            let watched = self.limits.is_some();
            Worker {
                rank: subject.rank,
                beats: progress.beats(),
                sign: progress.sign(),
                silent_ms: progress.silent().map(millis),
                starts_ms: progress.starts().filter(|_| watched).map(millis),
                stood_ms: millis(progress.stood()),
                state,
            }
        };
        let workers = self.subjects.iter().zip(&self.progress).map(worker).collect();
        Answer { node: self.node, host: self.host.clone(), workers, stacks }
    }

    async fn open(&mut self, number: u64, wants: Wants) {
        let patient = self.others_wait.is_some_and(|time| time >= TO_ANSWER);
        let asked = Asked { patient, ..Asked::new(Some(self.node), wants == Wants::Stacks) };
        // Whoever was quicker asks the same, or is an operator; then the next one is this node's.
        if let Err(error) = self.inquiries.open(number, &asked).await {
            self.cannot_agree(&error);
        }
    }

    fn cannot_agree(&mut self, error: &StoreError) {
        debug!(%error, "the nodes cannot agree on who hangs");
        self.say("workers make no progress, and etcd does not let the nodes agree on who stopped first; they are waited for".to_owned());
    }

    /// Says something at most once in a row.
    fn say(&mut self, words: String) {
        if self.is_said.as_ref() != Some(&words) {
            warn!("{words}");
            self.is_said = Some(words);
        }
    }

    /// Answers an inquiry, and sees it through where it is about a hang.
    async fn take_part(&mut self, number: u64, asked: &Asked) {
        let began = Instant::now();
        // As it is now: to look at the stacks takes a while.
        let mut answer = self.answer(Vec::new());
        if asked.node.is_some() && self.limits.is_none() {
            let is_there = |state: WorkerState| matches!(state, WorkerState::Running | WorkerState::Ending);
            let running = answer.workers.iter_mut().filter(|worker| is_there(worker.state));
            running.for_each(|worker| worker.state = WorkerState::Unwatched);
        }
        let looks = asked.node.is_none() || self.look_before >= LookBefore::Hangs;
        if asked.stacks && looks {
            let why =
                if asked.node.is_some() { "when the run made no progress" } else { "as an operator asked" };
            let look = match asked.node {
                None => Look::from(LOOK),
                Some(_) if asked.patient => Look { time: LOOK_BEFORE_STOP, at_most: LOOK_LONGER },
                Some(_) => Look::from(LOOK_BEFORE_STOP),
            };
            answer.stacks = autopsy::look(&self.subjects, look, why).await;
            // Nothing was seen of who has ended meanwhile.
            for (worker, subject) in answer.workers.iter_mut().zip(&self.subjects) {
                match () {
                    () if subject.has_ended() => worker.state = WorkerState::Ended,
                    () if subject.is_ending() && worker.state == WorkerState::Running => {
                        worker.state = WorkerState::Ending;
                    }
                    () => {}
                }
            }
        }
        if let Err(error) = self.inquiries.answer(number, answer).await {
            debug!(%error, "an inquiry cannot be answered");
        }
        let Some(opener) = asked.node else { return };
        let ours = opener == self.node;
        match (asked.stacks, ours) {
            (false, false) => {
                // It goes on where it has to.
                self.wants = None;
                self.not_before = Instant::now() + TO_ANSWER;
            }
            (false, true) => self.weigh(number, began).await,
            (true, _) => self.conclude(number, ours, began).await,
        }
    }

    /// Whether others still make progress.
    async fn weigh(&mut self, number: u64, began: Instant) {
        self.wants = None;
        let Some(limits) = self.limits else { return };
        let time = limits.lead().max(SHORTEST_TO_ANSWER);
        match self.inquiries.answers(number, left(time, began)).await {
            Ok(answers) => {
                let (answers, unheard) = heard(answers);
                match judge(&answers, limits.early()) {
                    Finding::Hung { .. } => {
                        let time = if unheard.is_empty() { TO_ANSWER } else { TO_ANSWER_AGAIN };
                        self.others_wait = Some(time);
                    }
                    nobody => self.nobody(nobody),
                }
            }
            Err(error) => self.cannot_agree(&error),
        }
    }

    fn nobody(&mut self, finding: Finding) {
        if let Finding::Nobody { why, again, told } = finding {
            debug!(why, "a worker makes no progress");
            if told {
                self.say(format!("workers make no progress, and nobody is found to hang: {why}"));
            }
            self.not_before = Instant::now() + bounded(again);
        }
    }

    /// Finds out who stopped first, or waits for the node that does.
    async fn conclude(&mut self, number: u64, ours: bool, began: Instant) {
        self.wants = None;
        let time = self.others_wait.take().unwrap_or(TO_ANSWER);
        let told = match ours {
            true => None,
            false => self.inquiries.verdict(number, TO_CONCLUDE).await.ok(),
        };
        let verdict = match (told, self.limits) {
            (Some(verdict), _) => verdict,
            (None, Some(limits)) => match self.verdict(number, limits, left(time, began)).await {
                Ok(verdict) => verdict,
                Err(error) => return self.cannot_agree(&error),
            },
            (None, None) => return,
        };
        let Some(hung) = &verdict.hung else {
            let again = verdict.again_ms.map_or(TO_ANSWER, Duration::from_millis);
            self.nobody(Finding::Nobody { why: verdict.why, again, told: verdict.told });
            return;
        };
        let hanging = hanging(hung, &verdict);
        let Hanging { rank, seconds, why, .. } = &hanging;
        warn!("rank {rank} on {} hung: no progress for {seconds} s; {why}", hung.host);
        for stack in verdict.stacks.iter().take(MOST_TOLD) {
            warn!("{}", stack.line());
        }
        self.told.send_replace(true);
        let has_ended = |subject: &Subject| subject.rank == hung.rank && subject.has_ended();
        if hung.node == self.node && !self.subjects.iter().any(has_ended) {
            // The round may be over.
            let _ = self.found.send(hanging).await;
        }
        // It ends soon, for all.
        self.not_before = Instant::now() + TO_CONCLUDE;
    }

    async fn verdict(&self, number: u64, limits: Limits, time: Duration) -> Result<Verdict, StoreError> {
        let (answers, unheard) = heard(self.inquiries.answers(number, time).await?);
        let finding = judge(&answers, limits);
        let mut stacks = fold(answers.into_iter().flat_map(|answer| answer.stacks));
        let verdict = match finding {
            Finding::Hung { rank, node, host, silent, seconds, why } => {
                // The one that stopped comes before those that are as odd.
                stacks.sort_by_key(|stack| !stack.ranks.contains(&rank));
                stacks.truncate(MOST_TOLD);
                Verdict {
                    hung: Some(Hung { rank, node, host, silent_ms: millis(silent), seconds: Some(seconds) }),
                    why,
                    stacks,
                    unheard,
                    ..Verdict::default()
                }
            }
            Finding::Nobody { why, again, told } => {
                Verdict { why, told, again_ms: Some(millis(again)), unheard, ..Verdict::default() }
            }
        };
        self.inquiries.conclude(number, &verdict).await
    }
}

/// What a verdict says of the one that stopped first.
fn hanging(hung: &Hung, verdict: &Verdict) -> Hanging {
    let silent = Duration::from_millis(hung.silent_ms);
    let since = SystemTime::now().checked_sub(silent).unwrap_or(SystemTime::UNIX_EPOCH);
    let stacks = verdict.stacks.iter().map(Folded::text).collect();
    let unheard = match &verdict.unheard[..] {
        [] => String::new(),
        [node] => format!("; node {node} has not answered"),
        nodes => format!("; {} have not answered", numbered("node", nodes)),
    };
    let seconds = hung.seconds.unwrap_or(silent.as_secs());
    Hanging { rank: hung.rank, since, seconds, why: format!("{}{unheard}", verdict.why), stacks }
}

/// Those who have answered, and who has not.
fn heard(answers: Vec<Option<Answer>>) -> (Vec<Answer>, Vec<usize>) {
    let unheard =
        answers.iter().enumerate().filter(|(_, answer)| answer.is_none()).map(|(node, _)| node).collect();
    (answers.into_iter().flatten().collect(), unheard)
}

/// What is left of a time to answer.
fn left(time: Duration, began: Instant) -> Duration {
    time.saturating_sub(began.elapsed()).max(SELDOM)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The next sample; never, where nobody takes any.
async fn next(samples: &mut Option<watch::Receiver<Sample>>) -> Sample {
    if let Some(samples) = samples
        && samples.changed().await.is_ok()
    {
        return samples.borrow_and_update().clone();
    }
    std::future::pending().await
}
