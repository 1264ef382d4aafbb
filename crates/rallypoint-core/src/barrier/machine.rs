//! One node's way through the barrier: what it asks for, what it is told, and what comes next.

use std::time::Duration;

use super::{Record, Status};

/// About what it takes a server to carry out one write of the record while others want to write it too.
pub(super) const SLOT: Duration = Duration::from_millis(4);

/// From so many nodes on, they keep out of each other's way.
pub(super) const CROWD: usize = 8;

/// The longest a node looks away from a record that many change.
const LOOK_AWAY: Duration = Duration::from_secs(1);

/// What a node wants.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Nodes that a version needs.
    pub min: usize,
    /// Nodes that it takes.
    pub max: usize,
    /// How long the way may take in all.
    pub timeout: Duration,
    /// How long a version with enough nodes stays open.
    pub last_call: Duration,
    /// The folder of the run, as it begins the names of keep-alives.
    pub root: String,
}

/// A node's place in a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The version.
    pub version: u64,
    /// The rank in it.
    pub rank: usize,
}

/// What the machine wants to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Read the record.
    ReadState,
    /// Wait for the next change of the record, from this index on, for this time at most.
    WatchState {
        /// The first index that counts.
        from: u64,
        /// How long.
        time: Duration,
    },
    /// As [`Request::WatchState`], and for a keep-alive of this version to go.
    WatchVersion {
        /// The version.
        version: u64,
        /// The first index that counts.
        from: u64,
        /// How long.
        time: Duration,
    },
    /// Write a record where none is.
    CreateState {
        /// The record.
        record: Record,
        /// When it goes by itself.
        ttl: Duration,
    },
    /// Write a record over the one of this index.
    SwapState {
        /// The record.
        record: Record,
        /// The index of the one it is to replace.
        over: u64,
        /// When it goes by itself; if not, it stays.
        ttl: Option<Duration>,
    },
    /// Remove the record of this index.
    DeleteState {
        /// The index.
        over: u64,
    },
    /// Make the folder of the run and its version counter, where they are missing.
    MakeRun,
    /// Read the version counter.
    ReadCounter,
    /// Write the version counter over the one of this index.
    SwapCounter {
        /// The number.
        version: u64,
        /// The index of the one it is to replace.
        over: u64,
    },
    /// Make the folder of a version where none is.
    MakeVersion {
        /// The version.
        version: u64,
    },
    /// The keep-alives that are in the folder of a version.
    ListVersion {
        /// The version.
        version: u64,
    },
    /// Write this node's keep-alive, and keep it.
    Hold(Place),
    /// Remove this node's keep-alive.
    Release(Place),
    /// Keep this node's keep-alive no longer, and see to it that it is gone after [`GRACE`](super::GRACE).
    RunOut(Place),
}

/// What became of a [`Request`].
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The record, to a read or as it is after a change.
    State(View),
    /// Nothing changed in that time.
    Quiet,
    /// A keep-alive is gone, or may be: look.
    Gone,
    /// It was carried out, at this index.
    Done {
        /// The index.
        index: u64,
    },
    /// It was not carried out, because what it is about is not as the request wants it.
    Refused,
    /// The version counter.
    Counter {
        /// Its number.
        version: u64,
        /// Its index.
        index: u64,
    },
    /// There is no version counter.
    NoCounter,
    /// The keep-alives of a version.
    Members(Vec<KeepAlive>),
    /// Nobody knows whether it was carried out, or ever will be.
    Lost,
}

/// The record, if there is one, with its index; and the index from which on its next change counts.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// The record and its index.
    pub record: Option<(Record, u64)>,
    /// Where to watch from.
    pub next: u64,
}

/// A node's keep-alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// The node's rank.
    pub rank: usize,
    /// Whether the node runs this code: then it is told of every change, and need not see a number waiting.
    pub ours: bool,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Send this, and [`handle`](Machine::handle) the reply.
    Send(Request),
    /// Poll again at that time.
    Wait(Duration),
    /// It is over.
    End(Outcome),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The version is final, and this node in it.
    Met {
        /// Where.
        place: Place,
        /// With how many.
        world: usize,
    },
    /// The run is closed.
    Closed,
    /// The time was over. The node may be in a version that is not final: let it leave.
    TimedOut,
    /// The node has left, as it was told to.
    Left,
}

/// What the node is about to reach.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Goal {
    /// A place in a version that takes nodes; `paced` after it kept out of the others' way.
    Enter { paced: bool },
    /// A version of its own, whose setup was written at this index.
    Create { over: u64, version: Option<u64> },
    /// To find out whether it has joined this version, which had so many nodes before.
    Doubt { version: u64, joined: usize },
    /// The version frozen, by others.
    Peers(Place),
    /// The version frozen, by others or by this node.
    LastCall(super::last_call::LastCall),
    /// Its confirmation in the record; `held` once its keep-alive is there.
    Confirm { place: Place, held: bool },
    /// The version final.
    Complete(Place),
    /// The end of a final version.
    Free(super::waiting::Free),
    /// To be gone.
    Leave(super::leaving::Leave),
}

#[derive(Debug)]
enum Next {
    Nothing,
    Ask(Request),
    Pause { until: Duration, then: Request },
}

/// One node's way through the barrier.
///
/// [`start`](Machine::start) it, then [`poll`](Machine::poll): do what it says, give the reply to
/// [`handle`](Machine::handle), and poll again, until it ends. Times count from any moment that stays the same;
/// `random` is the caller's, from 0 up to 1.
///
/// Whoever stops in between goes on by starting again; a request whose reply did not come is
/// [`Reply::Lost`].
#[derive(Debug)]
pub struct Machine {
    pub(super) settings: Settings,
    pub(super) goal: Goal,
    /// The record as it was seen last.
    pub(super) view: View,
    /// Whether it was seen because it changed: then others change it, too.
    pub(super) woken: bool,
    /// Races lost in a row.
    pub(super) losses: u32,
    /// The place in the last final version, until the node has another or has given it up.
    pub(super) past: Option<Place>,
    /// The version whose end this node has seen.
    pub(super) came_from: Option<u64>,
    /// The last version that was seen to have members of PyTorch's.
    pub(super) mixed: Option<u64>,
    next: Next,
    asked: Option<Request>,
    deadline: Duration,
    outcome: Option<Outcome>,
}

impl Machine {
    /// A node that has not begun.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Machine {
            settings,
            goal: Goal::Enter { paced: false },
            view: View { record: None, next: 0 },
            woken: false,
            losses: 0,
            past: None,
            came_from: None,
            mixed: None,
            next: Next::Nothing,
            asked: None,
            deadline: Duration::ZERO,
            outcome: None,
        }
    }

    /// Begins the way to the next version, or goes on with it. A member asks for a new version with it.
    pub fn start(&mut self, now: Duration) {
        self.deadline = now.saturating_add(self.settings.timeout);
        self.came_from = self.past.map(|past| past.version).or(self.came_from);
        if self.outcome.take().is_some() || matches!(self.goal, Goal::Leave(_)) {
            self.goal = Goal::Enter { paced: false };
            self.losses = 0;
            self.look();
        } else if matches!(self.next, Next::Nothing) && self.asked.is_none() {
            self.look();
        }
    }

    /// What to do next.
    pub fn poll(&mut self, now: Duration) -> Step {
        if let Some(outcome) = self.outcome {
            return Step::End(outcome);
        }
        if now >= self.deadline {
            return self.end(Outcome::TimedOut);
        }
        match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::Pause { until, then } if now < until => {
                self.next = Next::Pause { until, then };
                Step::Wait(until.min(self.deadline))
            }
            Next::Ask(mut request) | Next::Pause { then: mut request, .. } => {
                if let Request::WatchState { time, .. } | Request::WatchVersion { time, .. } = &mut request {
                    *time = (*time).min(self.deadline.saturating_sub(now));
                }
                self.asked = Some(request.clone());
                Step::Send(request)
            }
            // Nothing else is left to do but to look.
            Next::Nothing => {
                self.asked = Some(Request::ReadState);
                Step::Send(Request::ReadState)
            }
        }
    }

    /// Takes the reply to what was sent last.
    pub fn handle(&mut self, now: Duration, random: f64, reply: Reply) {
        let Some(asked) = self.asked.take() else { return };
        match (asked, reply) {
            (request, Reply::State(view)) => {
                self.woken = !matches!(request, Request::ReadState);
                if let (Request::WatchVersion { .. }, Goal::Free(free)) = (request, &mut self.goal) {
                    free.listed = view.next;
                }
                self.judge(now, random, view);
            }
            (Request::WatchState { .. } | Request::WatchVersion { .. }, Reply::Quiet) => {
                self.woken = false;
                self.judge(now, random, self.view.clone());
            }
            (Request::WatchVersion { .. }, Reply::Gone) => self.keep_alive_gone(),
            (Request::CreateState { record, .. }, reply) => self.created(now, random, record, &reply),
            (Request::SwapState { record, ttl, .. }, reply) => {
                self.swapped(now, random, &record, ttl, &reply);
            }
            (Request::DeleteState { .. }, reply) => self.deleted(now, random, &reply),
            (
                request @ (Request::MakeRun
                | Request::ReadCounter
                | Request::SwapCounter { .. }
                | Request::MakeVersion { .. }),
                reply,
            ) => self.setting_up(now, random, &request, &reply),
            (Request::ListVersion { version }, Reply::Members(members)) => {
                self.listed(now, random, version, members);
            }
            (Request::Hold(_), reply) => self.held(now, random, &reply),
            (Request::Release(place), _) => {
                // Whatever became of it: what is left of the key runs out.
                self.past = self.past.filter(|past| *past != place);
                self.judge(now, random, self.view.clone());
            }
            (Request::RunOut(_), _) => self.runs_out(now, random),
            _ => self.look_again(now, random),
        }
    }

    /// The record as this node saw it last.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.view.record.as_ref().map(|(record, _)| record)
    }

    /// The index right after that record's: from there on, all that happened to it counts.
    #[must_use]
    pub fn since_record(&self) -> u64 {
        self.view.record.as_ref().map_or(self.view.next, |(_, index)| index + 1)
    }

    /// The place this node holds in a final version.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.past
    }

    /// Whether a request was sent whose reply has not come.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// When the last call that this node waits out ends.
    #[must_use]
    pub fn last_call_until(&self) -> Option<Duration> {
        match &self.goal {
            Goal::LastCall(last_call) => Some(last_call.until),
            _ => None,
        }
    }

    /// Whether this node waits beside a group that is full.
    #[must_use]
    pub fn is_spare(&self) -> bool {
        matches!(&self.goal, Goal::Free(free) if free.place.is_none())
            && self.record().is_some_and(|record| record.joined() >= self.settings.max)
    }

    /// Goes on with the record as it is now.
    pub(super) fn judge(&mut self, now: Duration, random: f64, view: View) {
        self.view = view;
        match self.goal.clone() {
            Goal::Enter { paced } => self.enter(now, random, paced),
            Goal::Create { .. } => self.restart(now, random),
            Goal::Doubt { version, joined } => self.doubt(now, random, version, joined),
            Goal::Peers(place) => self.peers(now, random, place),
            Goal::LastCall(last_call) => self.last_call(now, random, last_call),
            Goal::Confirm { place, held } => self.confirm(now, random, place, held),
            Goal::Complete(place) => self.complete(now, random, place),
            Goal::Free(free) => self.free(now, random, free),
            Goal::Leave(leave) => self.go(&leave),
        }
    }

    /// Goes back to the beginning, with the record as it was seen last.
    pub(super) fn restart(&mut self, now: Duration, random: f64) {
        self.goal = Goal::Enter { paced: false };
        self.enter(now, random, false);
    }

    pub(super) fn ask(&mut self, request: Request) {
        self.next = Next::Ask(request);
    }

    pub(super) fn look(&mut self) {
        self.ask(Request::ReadState);
    }

    pub(super) fn look_after(&mut self, now: Duration, pause: Duration) {
        self.next = Next::Pause { until: now + pause, then: Request::ReadState };
    }

    /// After something failed that may go better soon.
    pub(super) fn look_again(&mut self, now: Duration, random: f64) {
        self.losses += 1;
        let ceiling = Duration::from_millis(50) * (1 << self.losses.min(5));
        self.look_after(now, ceiling.mul_f64(0.25 + 0.75 * random));
    }

    /// After a race lost to others, of whom there may be `rivals`.
    pub(super) fn lost_race(&mut self, now: Duration, random: f64, rivals: usize) {
        self.losses += 1;
        let crowd = u32::try_from(rivals.max(1)).unwrap_or(u32::MAX);
        let window = SLOT * (1 << self.losses.min(10)).min(crowd);
        self.look_after(now, window.mul_f64(random));
    }

    /// Waits for the next change, until `until` at most. Where `crowd` nodes are about to change the record,
    /// it looks away for a while first: each look costs the server as much as a change does.
    pub(super) fn wait(&mut self, now: Duration, random: f64, crowd: usize, until: Option<Duration>) {
        let time = until.unwrap_or(Duration::MAX).saturating_sub(now);
        if self.woken && crowd >= CROWD {
            let away = SLOT * u32::try_from(crowd).unwrap_or(u32::MAX);
            let away = away.mul_f64(0.5 + 0.5 * random).min(LOOK_AWAY).min(time);
            return self.look_after(now, away);
        }
        self.ask(Request::WatchState { from: self.view.next, time });
    }

    pub(super) fn end(&mut self, outcome: Outcome) -> Step {
        if let Outcome::Met { place, .. } = outcome {
            self.past = Some(place);
        }
        self.next = Next::Nothing;
        self.outcome = Some(outcome);
        Step::End(outcome)
    }

    /// Begins something that may take so long.
    pub(super) fn begin(&mut self, now: Duration, goal: Goal, time: Duration) {
        self.outcome = None;
        self.deadline = now + time;
        self.goal = goal;
        self.losses = 0;
        self.look();
    }

    /// The name of the keep-alive of a place.
    #[must_use]
    pub fn keep_alive(&self, place: Place) -> String {
        let Place { version, rank } = place;
        format!("{}/rdzv/v_{version}/rank_{rank}", self.settings.root)
    }

    /// The record seen last with its index, where it is of this version and status.
    pub(super) fn seen(&self, status: Status, version: u64) -> Option<(Record, u64)> {
        self.view.record.clone().filter(|(record, _)| record.is(status, version))
    }

    fn keep_alive_gone(&mut self) {
        match &mut self.goal {
            Goal::Free(free) => free.members = None,
            Goal::LastCall(last_call) => last_call.all_back = None,
            _ => {}
        }
        self.woken = false;
        self.look();
    }

    fn listed(&mut self, now: Duration, random: f64, version: u64, members: Vec<KeepAlive>) {
        if members.iter().any(|member| !member.ours) {
            self.mixed = Some(version);
        }
        match &mut self.goal {
            Goal::Free(free) if free.version == version => {
                (free.members, free.listed) = (Some(members), self.view.next);
            }
            Goal::LastCall(last_call) => last_call.all_back = Some(members.is_empty()),
            _ => {}
        }
        self.judge(now, random, self.view.clone());
    }
}
