//! One node's part in a run: what goes in, what comes out, and which part it is for. Nothing is decided here.

use std::time::Duration;

use super::closing::Closing;
use super::context::Context;
use super::departure::Departure;
use super::etcd::{Failure, Reply, Update};
use super::group::{Doubt, Group};
use super::keep_alive::{Keeper, Verdict};
use super::outbox::{Outbox, Part};
use super::output::{Loss, NodeEvent, Output, WatchId};
use super::patience::Patience;
use super::run_folder::RunFolder;
use super::settings::Settings;
use super::silence::Silence;
use super::way::{Outcome, Way};

/// One node's part in a run.
///
/// After each call of `join`, `leave`, `close` or `handle_*`, drain [`poll_output`](Node::poll_output), then
/// call [`handle_timeout`](Node::handle_timeout) when the time of [`poll_timeout`](Node::poll_timeout) has
/// come. `now` is the time since any one moment.
#[derive(Debug)]
pub struct Node {
    cx: Context,
    way: Way,
    keeper: Keeper,
    presence: Presence,
    closing: Closing,
    run_folder: RunFolder,
    patience: Patience,
    progress: Option<NodeEvent>,
}

/// Where a node is, and where it wants to be.
///
/// ```text
///          join             met                join
/// Out ───────────► OnTheWay ────► Member ─────────────► OnTheWay
///  ▲                  └──────┬──────┘ leave
///  └──────────── Leaving ◄───┘
///                   └── joined again meanwhile ──► OnTheWay
/// ```
#[derive(Debug)]
enum Presence {
    Out,
    OnTheWay,
    Member(Box<Group>),
    Leaving { departure: Box<Departure>, rejoin: bool },
}

impl Node {
    /// A node that is not in the run yet.
    #[must_use]
    pub fn new(settings: Settings, seed: u64) -> Self {
        Node {
            cx: Context { out: Outbox::new(seed), settings, silence: Silence::default() },
            way: Way::default(),
            keeper: Keeper::default(),
            presence: Presence::Out,
            closing: Closing::default(),
            run_folder: RunFolder::default(),
            patience: Patience::default(),
            progress: None,
        }
    }

    /// Asks for a version after the last one this node was in. It has this time; where it finds the group full, as long as
    /// the run lives.
    pub fn join(&mut self, now: Duration, time: Duration) {
        self.cx.out.now = now;
        self.patience.begin(now, time);
        self.run_folder.start(&mut self.cx);
        match &mut self.presence {
            Presence::Leaving { rejoin, .. } => *rejoin = true,
            Presence::OnTheWay => {}
            Presence::Out | Presence::Member(_) => self.set_out(),
        }
    }

    /// Leaves: the others are told at once.
    pub fn leave(&mut self, now: Duration) {
        self.cx.out.now = now;
        self.patience.end();
        match &mut self.presence {
            Presence::Leaving { rejoin, .. } => *rejoin = false,
            presence => {
                let departure = Box::new(Departure::new(now, self.patience.was_in_vain()));
                let leaving = Presence::Leaving { departure, rejoin: false };
                if let Presence::Member(group) = std::mem::replace(presence, leaving) {
                    group.end(&mut self.cx);
                }
            }
        }
        self.settle();
    }

    /// Closes the run for all nodes, for this reason.
    pub fn close(&mut self, now: Duration, reason: &str) {
        self.cx.out.now = now;
        self.closing.close(&mut self.cx, reason);
    }

    /// What came of a request.
    pub fn handle_reply(&mut self, now: Duration, id: u64, reply: Result<Reply, Failure>) {
        self.cx.out.now = now;
        let (part, known) = self.cx.out.whose(id).unzip();
        let went_back = match &reply {
            Ok(reply) => self.heard(reply, known.unwrap_or_default()),
            Err(Failure::Unknown) => {
                self.cx.silence.failed();
                false
            }
        };
        match part {
            Some(Part::Way) => {
                let outcome = self.way.handle_reply(&mut self.cx, id, reply);
                self.came_to(outcome);
            }
            Some(Part::KeepAlive) => {
                let verdict = self.keeper.handle_reply(&mut self.cx, id, reply);
                self.decided(verdict);
            }
            Some(Part::Group) => {
                if let Presence::Member(group) = &mut self.presence {
                    let in_doubt = self.keeper.is_in_doubt();
                    let doubt = group.handle_reply(&mut self.cx, id, reply, in_doubt);
                    self.doubt(doubt);
                }
            }
            Some(Part::Departure) => {
                if let Presence::Leaving { departure, .. } = &mut self.presence {
                    departure.handle_reply(&mut self.cx, id, reply);
                }
            }
            Some(Part::Closing) => self.closing.handle_reply(&mut self.cx, id, reply),
            Some(Part::RunFolder) => self.run_folder.handle_reply(&mut self.cx, id, &reply),
            Some(Part::Patience) => self.patience.handle_reply(id),
            None => {}
        }
        if went_back {
            self.keeper.doubt(&mut self.cx, Some(Loss::Latest));
        }
        self.settle();
    }

    /// What happened to what is watched.
    pub fn handle_update(&mut self, now: Duration, watch: WatchId, update: Update) {
        self.cx.out.now = now;
        match update {
            Update::Failed => self.cx.silence.failed(),
            _ => {
                self.cx.silence.heard(now, self.keeper.is_on());
                self.cx.out.heard();
            }
        }
        if update == Update::FolderGone {
            // All keep-alives are gone with it, and their owners live.
            self.cx.silence.excuse(now);
        }
        match &mut self.presence {
            Presence::Member(group) => {
                let doubt = group.handle_update(&mut self.cx, watch, update);
                self.doubt(doubt);
            }
            _ if watch == WatchId::Record => {
                let outcome = self.way.handle_update(&mut self.cx, update);
                self.came_to(outcome);
            }
            _ => {}
        }
        self.settle();
    }

    /// The time of [`poll_timeout`](Node::poll_timeout) has come.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.cx.out.now = now;
        let outcome = self.way.handle_timeout(&mut self.cx);
        self.came_to(outcome);
        self.keeper.handle_timeout(&mut self.cx);
        match &mut self.presence {
            Presence::Member(group) => group.handle_timeout(&mut self.cx),
            Presence::Leaving { departure, .. } => departure.handle_timeout(&mut self.cx),
            Presence::Out | Presence::OnTheWay => {}
        }
        self.closing.handle_timeout(&mut self.cx);
        self.run_folder.handle_timeout(&mut self.cx);
        self.patience.handle_timeout(&mut self.cx);
        self.settle();
    }

    /// What to do next; none if there is nothing.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.cx.out.poll()
    }

    /// When to call [`handle_timeout`](Node::handle_timeout), unless something else happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let presence = match &self.presence {
            Presence::Member(group) => group.timeout(),
            Presence::Leaving { departure, .. } => departure.timeout(),
            Presence::Out | Presence::OnTheWay => None,
        };
        let way = self.way.timeout();
        let others = [self.keeper.timeout(), self.closing.timeout(), self.run_folder.timeout()];
        [way, presence, self.patience.timeout(&self.cx)].into_iter().chain(others).flatten().min()
    }

    /// Etcd has replied to a request that was sent when this index was known. A write comes after whatever was
    /// known before it; says whether this one has not, so that the server holds an earlier state.
    fn heard(&mut self, reply: &Reply, known: u64) -> bool {
        self.cx.silence.heard(self.cx.out.now, self.keeper.is_on());
        self.cx.out.heard();
        match *reply {
            Reply::Done { index: 0 } => false,
            Reply::Done { index } if index <= known => {
                self.cx.out.index_went_back(index);
                self.cx.silence.excuse(self.cx.out.now);
                true
            }
            Reply::Done { index } => {
                self.cx.out.saw_index(index);
                false
            }
            _ => false,
        }
    }

    fn set_out(&mut self) {
        if let Presence::Member(group) = std::mem::replace(&mut self.presence, Presence::OnTheWay) {
            group.end(&mut self.cx);
        }
        self.way.start(&mut self.cx);
    }

    fn came_to(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Going => {}
            Outcome::Met { place, record, index } => {
                // Who has been told to leave meanwhile leaves from there.
                if matches!(self.presence, Presence::OnTheWay) {
                    self.cx.out.event(NodeEvent::Joined { place, world: record.joined() });
                    self.progress = None;
                    self.patience.end();
                    self.cx.silence.met();
                    self.keeper.keep(self.cx.out.now, self.way.kept());
                    self.keeper.group_is(&mut self.cx, Some(&record));
                    let group = Group::new(&mut self.cx, place, &record, index);
                    self.presence = Presence::Member(Box::new(group));
                }
            }
            Outcome::Closed { reason } => {
                if matches!(self.presence, Presence::OnTheWay) {
                    self.presence = Presence::Out;
                    self.patience.end();
                    self.cx.out.event(NodeEvent::Refused { reason });
                }
            }
        }
    }

    fn doubt(&mut self, doubt: Doubt) {
        match doubt {
            Doubt::None => {}
            Doubt::Record => self.keeper.doubt(&mut self.cx, None),
            Doubt::Unreachable => self.keeper.doubt_soon(&mut self.cx),
        }
    }

    fn decided(&mut self, verdict: Verdict) {
        match (verdict, &mut self.presence) {
            (Verdict::None, _) => {}
            (Verdict::Recovered(lost, view, torch), Presence::Member(group)) => {
                if let Some(lost) = lost {
                    self.cx.out.event(NodeEvent::Recovered(lost));
                    self.cx.silence.excuse(self.cx.out.now);
                }
                group.recovered(&mut self.cx, &view, torch, lost == Some(Loss::Everything));
            }
            (Verdict::Superseded(view), Presence::Member(group)) => {
                self.way.keep_alive_lost();
                group.superseded(&mut self.cx, &view);
            }
            (Verdict::Superseded(_), _) => self.way.keep_alive_lost(),
            (Verdict::Recovered(..), _) => {}
        }
    }

    /// Hands on what one part's state means for another's.
    fn settle(&mut self) {
        if let Presence::Leaving { departure, .. } = &mut self.presence
            && departure.is_held()
            && (!self.way.is_asking() || departure.is_over(self.cx.out.now))
        {
            let footing = self.way.stop(&mut self.cx);
            departure.leave(&mut self.cx, footing);
        }
        self.keeper.keep(self.cx.out.now, self.way.kept());
        if let Presence::Member(group) = &self.presence {
            self.keeper.group_is(&mut self.cx, group.record());
        }
        if let Presence::Leaving { departure, rejoin } = &self.presence
            && departure.is_over(self.cx.out.now)
        {
            let rejoin = *rejoin;
            self.presence = Presence::Out;
            self.cx.out.event(NodeEvent::Left);
            if rejoin {
                self.set_out();
            }
        }
        if self.way.is_on() && matches!(self.presence, Presence::OnTheWay) {
            let progress = self.way.progress(self.cx.out.now, self.cx.settings.max);
            if let NodeEvent::Progress { spare, .. } = progress {
                self.patience.stands_by(self.cx.out.now, spare);
            }
            if !self.progress.as_ref().is_some_and(|before| same_progress(before, &progress)) {
                self.cx.out.event(progress.clone());
                self.progress = Some(progress);
            }
        }
    }
}

/// The same but for the time that is left.
fn same_progress(one: &NodeEvent, other: &NodeEvent) -> bool {
    let without_time = |event: &NodeEvent| match event {
        NodeEvent::Progress { version, joined, last_call, spare } => {
            Some((*version, *joined, last_call.is_some(), *spare))
        }
        _ => None,
    };
    without_time(one) == without_time(other)
}
