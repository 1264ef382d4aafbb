//! One process: the machine, what its driver keeps for it, and the program above it.

use std::collections::BTreeSet;
use std::time::Duration;

use rallypoint_core::round::{
    Change, Condition, Entry, Failure, Joined, Node, NodeConfig, NodeEvent, Op, Output, Refusal, Reply,
    Request, RunSettings, Txn, Update, WatchId, Watched, WhenExcluded,
};

use crate::check::{Violation, promise};
use crate::world::{Step, World};

pub(crate) struct Process {
    pub(crate) id: String,
    pub(crate) incarnation: u64,
    pub(crate) address: String,
    pub(crate) node: Node,
    /// Crashed, gone in good order, or refused, if not.
    pub(crate) alive: bool,
    pub(crate) phase: Phase,
    /// When it is kept out, it waits.
    pub(crate) waits_out: bool,
    /// Once it has left, it comes back.
    pub(crate) returns: bool,
    /// What it was started with.
    pub(crate) settings: RunSettings,
    /// The second in which it was started.
    pub(crate) since: u64,
    /// Until then something happens to it for which it may be taken for dead.
    pub(crate) harmed_until: Duration,
    /// The plan of the round after which its program asked for another, or left.
    pub(crate) moved_on: String,
    /// Its program does nothing before this.
    pub(crate) hung_until: Duration,
    /// What its watches tell comes so much later.
    pub(crate) lag: Duration,
    /// How long it takes to reach etcd again after that was away.
    pub(crate) reconnect: Duration,
    /// etcd refuses what it asks for until then.
    pub(crate) denied_until: Duration,
    /// It was, at some time.
    pub(crate) was_denied: bool,
    /// The requests of the second that it is.
    pub(crate) this_second: (u64, u32),
    /// A planted bug has kept something from its program, which hears nothing any more.
    pub(crate) deceived: bool,
    /// When it left, the last time. It may have come back since.
    pub(crate) left_at: Option<Duration>,
    /// Since when etcd refuses it each of its watches.
    pub(crate) refused_since: [Option<Duration>; 3],
    /// When it was last in contact with etcd, by its own word.
    pub(crate) contact: Option<Duration>,
    /// How it ended, where the machine ended it.
    pub(crate) refusal: Option<Refusal>,
    /// What it was told first of its last round.
    pub(crate) told: Option<(u64, Change)>,
    /// What the last watch on its place said.
    pub(crate) rank: Option<Entry>,
    /// The port that was given with the last join.
    pub(crate) port: u16,
    pub(crate) joined_at: Duration,
    /// How long the program takes to call for a round after a change, at most.
    pub(crate) reaction: Duration,
    /// Nothing is handled before this.
    pub(crate) stalled_until: Duration,
    /// No message passes before this.
    pub(crate) cut_until: Duration,
    /// The lease that the driver refreshes.
    pub(crate) kept: Option<i64>,
    /// The last refresh has no answer yet.
    pub(crate) unanswered: bool,
    /// Requests without an answer.
    pub(crate) pending: BTreeSet<u64>,
    pub(crate) watches: [Option<Watch>; 3],
    pub(crate) generations: u64,
    timer: Option<Duration>,
    /// Requests made so far, refreshes not counted.
    pub(crate) requests: u64,
    /// The bytes of what it was sent.
    pub(crate) received: usize,
    pub(crate) crash: Option<Crash>,
}

/// How long a program takes to call for a round after a change, at most, unless it is busy.
pub(crate) const REACTION: Duration = Duration::from_millis(100);

/// What the program above the machine is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It waits for a round.
    Joining,
    /// It has one.
    In(Joined),
    /// It waits to be gone.
    Leaving,
    /// It is gone, or was refused.
    Over,
}

/// A death at a request: before it goes out, or right after it was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crash {
    pub(crate) request: u64,
    pub(crate) lost: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Watch {
    pub(crate) generation: u64,
    pub(crate) keys: Watched,
    /// Where it goes on; none until etcd has heard of one that begins now.
    pub(crate) next: Option<i64>,
    /// The process knows that it has begun.
    pub(crate) begun: bool,
    /// A delivery is under way.
    pub(crate) scheduled: bool,
    /// The history that it follows.
    pub(crate) history: u64,
    /// Its stream was cut: it reads afresh.
    pub(crate) broken: bool,
}

impl Process {
    pub(crate) fn new(config: NodeConfig, seed: u64) -> Self {
        Process {
            id: config.id.clone(),
            incarnation: config.incarnation,
            address: config.address.clone(),
            alive: true,
            phase: Phase::Joining,
            waits_out: config.when_excluded == WhenExcluded::Wait,
            returns: false,
            settings: config.settings,
            since: config.since,
            harmed_until: Duration::ZERO,
            moved_on: String::new(),
            deceived: false,
            left_at: None,
            refused_since: [None; 3],
            contact: None,
            hung_until: Duration::ZERO,
            lag: Duration::ZERO,
            reconnect: Duration::ZERO,
            denied_until: Duration::ZERO,
            was_denied: false,
            this_second: (0, 0),
            refusal: None,
            told: None,
            rank: None,
            port: 0,
            joined_at: Duration::ZERO,
            reaction: REACTION,
            stalled_until: Duration::ZERO,
            cut_until: Duration::ZERO,
            kept: None,
            unanswered: false,
            pending: BTreeSet::new(),
            watches: [None, None, None],
            generations: 0,
            timer: None,
            requests: 0,
            received: 0,
            crash: None,
            node: Node::new(config, seed),
        }
    }

    /// Its program does not stay in the round it has.
    fn moves_on(&mut self) {
        if let Phase::In(joined) = &self.phase {
            self.moved_on = joined.plan.clone();
        }
    }

    pub(crate) fn watch(&mut self, id: WatchId) -> &mut Option<Watch> {
        &mut self.watches[slot(id)]
    }

    pub(crate) fn is_in(&self) -> Option<&Joined> {
        if let Phase::In(joined) = &self.phase { Some(joined) } else { None }
    }
}

pub(crate) fn slot(id: WatchId) -> usize {
    match id {
        WatchId::Group => 0,
        WatchId::Rank => 1,
        WatchId::Nodes => 2,
    }
}

impl World {
    /// The program calls for a round.
    pub(crate) fn join(&mut self, index: usize) -> Result<(), Violation> {
        self.next_port = if self.next_port < 60_000 { self.next_port + 1 } else { 20_000 };
        let port = self.next_port;
        self.trace(|| format!("{} joins with port {port}", self.name(index)));
        self.cause();
        let (now, process) = (self.now, &mut self.processes[index]);
        process.moves_on();
        process.phase = Phase::Joining;
        process.port = port;
        process.joined_at = now;
        process.node.join(now, port);
        self.drain(index)
    }

    /// The program leaves in good order.
    pub(crate) fn leave(&mut self, index: usize) -> Result<(), Violation> {
        if matches!(self.processes[index].phase, Phase::Leaving | Phase::Over) {
            return Ok(());
        }
        self.trace(|| format!("{} leaves", self.name(index)));
        self.cause();
        let (now, process) = (self.now, &mut self.processes[index]);
        process.moves_on();
        process.phase = Phase::Leaving;
        process.left_at = Some(now);
        process.node.leave(now);
        self.drain(index)
    }

    /// The program closes the run.
    pub(crate) fn close(&mut self, index: usize, reason: &str) -> Result<(), Violation> {
        if matches!(self.processes[index].phase, Phase::Leaving | Phase::Over) {
            return Ok(());
        }
        self.trace(|| format!("{} closes the run: {reason}", self.name(index)));
        self.cause();
        let (now, process) = (self.now, &mut self.processes[index]);
        self.check.called_close(&process.id, process.incarnation);
        process.node.close(now, reason);
        self.drain(index)
    }

    pub(crate) fn answer(
        &mut self,
        to: usize,
        id: u64,
        mut reply: Result<Reply, Failure>,
    ) -> Result<(), Violation> {
        if !self.processes[to].pending.remove(&id) {
            return Ok(());
        }
        if let Ok(reply) = &mut reply {
            self.planted.alter_reply(reply, self.processes[to].is_in());
        }
        self.trace(|| format!("{} < #{id} {}", self.name(to), short(&reply)));
        self.processes[to].node.handle_reply(self.now, id, reply);
        self.drain(to)
    }

    pub(crate) fn refreshed(
        &mut self,
        to: usize,
        lease: i64,
        lives: Result<(), Failure>,
    ) -> Result<(), Violation> {
        let (now, process) = (self.now, &mut self.processes[to]);
        if process.kept != Some(lease) {
            return Ok(());
        }
        process.unanswered = false;
        match lives {
            Ok(()) => process.node.handle_renewed(now, lease),
            Err(Failure::LeaseGone) => {
                process.kept = None;
                process.node.handle_lease_lost(now, lease);
                self.trace(|| format!("{} learns that its lease {lease} is gone", self.name(to)));
            }
            Err(_) => process.node.handle_refused(now),
        }
        self.drain(to)
    }

    pub(crate) fn timer(&mut self, of: usize) -> Result<(), Violation> {
        let (now, process) = (self.now, &mut self.processes[of]);
        process.timer = None;
        if process.node.poll_timeout().is_some_and(|at| at <= now) {
            process.node.handle_timeout(now);
        }
        self.drain(of)
    }

    pub(crate) fn update(&mut self, to: usize, watch: WatchId, update: Update) -> Result<(), Violation> {
        self.trace(|| format!("{} < {watch:?} {}", self.name(to), short(&update)));
        self.processes[to].refused_since[slot(watch)] = None;
        self.processes[to].node.handle_update(self.now, watch, update);
        self.drain(to)
    }

    /// etcd does not let a process watch.
    pub(crate) fn watch_refused(&mut self, to: usize, watch: WatchId) -> Result<(), Violation> {
        self.trace(|| format!("{} is refused the watch {watch:?}", self.name(to)));
        let (now, process) = (self.now, &mut self.processes[to]);
        if now < process.stalled_until {
            return Ok(());
        }
        process.refused_since[slot(watch)].get_or_insert(now);
        if self.planted.tells_refused_watches() {
            process.node.handle_watch_refused(now, watch);
        }
        self.drain(to)
    }

    /// Carries out what the machine wants.
    fn drain(&mut self, index: usize) -> Result<(), Violation> {
        while let Some(output) = self.processes[index].node.poll_output() {
            match output {
                Output::Request { id, request } => self.send(index, id, request)?,
                Output::Watch { id, keys, from } => self.begin_watch(index, id, keys, from),
                Output::Unwatch(id) => *self.processes[index].watch(id) = None,
                Output::Keep(lease) => {
                    let process = &mut self.processes[index];
                    assert_eq!(process.kept, None, "one lease is kept at a time");
                    process.kept = Some(lease);
                    process.unanswered = false;
                    self.keep_later(index, lease);
                }
                Output::Forget(lease) => {
                    let process = &mut self.processes[index];
                    if process.kept == Some(lease) {
                        process.kept = None;
                    }
                }
                Output::Event(event) => self.event(index, event)?,
            }
            if !self.processes[index].alive {
                return Ok(());
            }
        }
        self.contact_is_true(index)?;
        // What it would do now it has done: nothing may wait for the next word of somebody else.
        self.processes[index].node.handle_timeout(self.now);
        if let Some(output) = self.processes[index].node.poll_output() {
            promise!(10, false, "{} would have waited with {}", self.name(index), short(&output));
        }
        let process = &mut self.processes[index];
        let timeout = process.node.poll_timeout();
        if let Some(at) = timeout
            && process.timer.is_none_or(|timer| at < timer)
        {
            assert!(
                at < self.now + Duration::from_secs(86_400),
                "a timeout that a clock cannot hold: {at:?}"
            );
            process.timer = Some(at);
            let at = at.max(self.now);
            self.at(at, Step::Timer { of: index });
        }
        Ok(())
    }

    /// What the program makes of the machine's news.
    fn event(&mut self, index: usize, event: NodeEvent) -> Result<(), Violation> {
        self.trace(|| format!("{} ** {event:?}", self.name(index)));
        let process = &mut self.processes[index];
        process.deceived |= self.planted.conceals(&event);
        if process.deceived {
            return Ok(());
        }
        self.check.now = self.now;
        let process = &self.processes[index];
        self.check.event(&self.etcd, process, &event)?;
        self.is_true(index, &event)?;
        self.news += u64::from(matches!(event, NodeEvent::Joined(_) | NodeEvent::Changed(_)));
        let process = &mut self.processes[index];
        match event {
            NodeEvent::Joined(joined) => {
                if process.phase == Phase::Joining {
                    process.phase = Phase::In(joined.clone());
                    self.share(index, &joined)?;
                }
            }
            NodeEvent::Changed(change) => {
                let Some(round) = process.is_in().map(|joined| joined.round) else { return Ok(()) };
                let over = matches!(change, Change::Closed(_) | Change::Replaced { .. });
                if process.told.as_ref().is_none_or(|(told, _)| *told < round) {
                    process.told = Some((round, change));
                }
                let reaction = process.reaction;
                let delay = self.up_to(reaction);
                self.after(
                    delay,
                    if over { Step::Leave { of: index } } else { Step::Join { of: index, round } },
                );
            }
            NodeEvent::Progress { .. } | NodeEvent::KeptOut(_) => {}
            NodeEvent::Refused(refusal) => {
                if self.planted.revokes_marks(&refusal) {
                    let mark = self.etcd.get(&self.keys.round()).map(|entry| entry.lease);
                    mark.into_iter().for_each(|lease| self.etcd.revoke(lease));
                    self.publish()?;
                }
                let process = &mut self.processes[index];
                process.refusal = Some(refusal);
                process.phase = Phase::Over;
                // Whom the machine refuses, it lets go.
                process.left_at = Some(self.now);
            }
            NodeEvent::Closed(_) => self.after(Duration::ZERO, Step::Leave { of: index }),
            NodeEvent::Left => {
                let returns = std::mem::take(&mut process.returns) && process.refusal.is_none();
                process.phase = Phase::Over;
                process.alive = returns;
                if returns {
                    let delay = self.up_to(Duration::from_secs(1));
                    self.after(delay, Step::Return { of: index });
                }
            }
        }
        Ok(())
    }

    /// The program puts something into the round's store.
    fn share(&mut self, index: usize, joined: &Joined) -> Result<(), Violation> {
        let key = format!("{}{}", self.keys.store(joined.round, &joined.plan), self.processes[index].id);
        let put = Op::Put { key, value: "here".to_owned(), lease: joined.lease };
        let round = self.keys.round();
        let current = self.etcd.get(&round).map_or(0, |entry| entry.mod_revision);
        if self.check.round().plan == joined.plan && self.now >= self.etcd_away_until {
            let when = vec![Condition::ModifiedAt(round, current)];
            let txn = Request::Txn(Txn { when, then: vec![put], ..Txn::default() });
            // The run's lease may be over by now.
            let _ = self.etcd.apply(self.now, &txn);
            self.publish()?;
        }
        Ok(())
    }

    pub(crate) fn name(&self, index: usize) -> String {
        let process = &self.processes[index];
        format!("{}.{}", process.id, process.incarnation)
    }
}

pub(crate) fn short(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}").replace(crate::world::RUN, "").replace("\\\"", "'")
}
