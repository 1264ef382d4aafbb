//! The world of one seed: its clock, what will happen in it and when, and who lives there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use fastrand::Rng;
use rallypoint_core::round::{
    Event, Failure, Keys, NodeConfig, Reply, Request, RoundRecord, RunSettings, WatchId, WhenExcluded,
};

use crate::check::{Check, Violation};
use crate::etcd::{Etcd, key_of};
use crate::keeper::{Keeper, host_of, rack_of};
use crate::network::Weather;
use crate::operator::Operator;
use crate::planted::Planted;
use crate::process::{Phase, Process};

pub(crate) const RUN: &str = "/rallypoint/sim/";

/// What all nodes of a world are started with.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) settings: RunSettings,
    pub(crate) lease: Duration,
    pub(crate) last_call: Duration,
    pub(crate) replacement: Duration,
    pub(crate) run_ttl: Duration,
    pub(crate) closed_ttl: Duration,
    /// How many places a leader writes at once: one of these, so that a group is small to some and large to others.
    pub(crate) places: &'static [usize],
    /// In so many racks, by the nodes' names; none: by the order in which they are started, in three.
    pub(crate) racks: Option<usize>,
    /// What a node does that is kept out, one or the other.
    pub(crate) when_excluded: &'static [WhenExcluded],
}

/// Something that happens at a moment.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A request reaches etcd.
    Arrive {
        from: usize,
        id: u64,
        request: Request,
        history: u64,
    },
    /// A refresh of a lease reaches etcd.
    Refresh {
        from: usize,
        lease: i64,
        history: u64,
    },
    /// etcd looks for leases whose time is over.
    Tick,
    /// etcd ends a lease, unless it was refreshed since.
    Expire {
        lease: i64,
    },
    /// etcd is back.
    Resume {
        restarted: bool,
    },
    /// A reply reaches a process, or it waits no longer.
    Answer {
        to: usize,
        id: u64,
        reply: Result<Reply, Failure>,
    },
    /// The answer to a refresh reaches a process.
    Refreshed {
        to: usize,
        lease: i64,
        lives: Result<(), Failure>,
    },
    /// It is time to refresh a kept lease.
    Keep {
        of: usize,
        lease: i64,
    },
    /// A watch has something to say.
    Deliver {
        to: usize,
        watch: WatchId,
        generation: u64,
    },
    Open {
        to: usize,
        watch: WatchId,
        generation: u64,
    },
    /// The machine asked to be called.
    Timer {
        of: usize,
    },
    /// The program above the machine calls for the round after this one.
    Join {
        of: usize,
        round: u64,
    },
    /// The program above the machine leaves.
    Leave {
        of: usize,
    },
    /// It has left, and calls for a round again.
    Return {
        of: usize,
    },
    /// A request of the operator's reaches etcd.
    OperatorAsks {
        request: Request,
        history: u64,
    },
    /// The operator has an answer to that request, or waits no longer.
    OperatorHears {
        number: u64,
        reply: Result<Reply, Failure>,
    },
    /// The same of the one who keeps nodes out.
    KeeperAsks {
        number: u64,
        request: Request,
        history: u64,
    },
    KeeperHears {
        number: u64,
        reply: Result<Reply, Failure>,
    },
}

impl Step {
    /// The process that must be awake for it.
    fn process(&self) -> Option<usize> {
        match self {
            Step::Answer { to: of, .. }
            | Step::Refreshed { to: of, .. }
            | Step::Deliver { to: of, .. }
            | Step::Keep { of, .. }
            | Step::Timer { of }
            | Step::Join { of, .. }
            | Step::Leave { of }
            | Step::Return { of } => Some(*of),
            Step::Arrive { .. }
            | Step::Open { .. }
            | Step::Refresh { .. }
            | Step::Tick
            | Step::Expire { .. }
            | Step::OperatorAsks { .. }
            | Step::OperatorHears { .. }
            | Step::KeeperAsks { .. }
            | Step::KeeperHears { .. }
            | Step::Resume { .. } => None,
        }
    }
}

pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) rng: Rng,
    pub(crate) etcd: Etcd,
    /// etcd answers nothing before this.
    pub(crate) etcd_away_until: Duration,
    /// From when to when it was away so far.
    pub(crate) outages: Vec<(Duration, Duration)>,
    /// What comes to etcd meanwhile is lost.
    pub(crate) etcd_restarts: bool,
    /// etcd refuses everybody until then, as a user whose role is gone.
    pub(crate) denied_until: Duration,
    /// It refreshes their leases all the same, as etcd 3.4 does.
    pub(crate) lax: bool,
    /// etcd has no space for anything new before this.
    pub(crate) full_until: Duration,
    /// What etcd was when somebody took a snapshot of it.
    pub(crate) backup: Option<Etcd>,
    pub(crate) operator: Operator,
    pub(crate) keeper: Keeper,
    /// Requests were carried out late in this world.
    pub(crate) was_late: bool,
    /// Messages are lost or late, or may be until then.
    pub(crate) rough_until: Duration,
    /// Since then the group is whole, and nothing has happened that it may meet again for.
    pub(crate) steady_since: Option<Duration>,
    pub(crate) weather: Weather,
    pub(crate) setup: Setup,
    pub(crate) keys: Keys,
    pub(crate) processes: Vec<Process>,
    pub(crate) check: Check,
    pub(crate) planted: Planted,
    /// The watches on each key and on each prefix.
    pub(crate) watchers: [BTreeMap<String, Vec<(usize, WatchId)>>; 2],
    pub(crate) next_port: u16,
    /// How often a process was told of a round, or of its end.
    pub(crate) news: u64,
    /// How often a leader was told who is there, and not what had happened.
    pub(crate) overlooked: u64,
    /// Prints what happens.
    pub(crate) traced: bool,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    /// Steps without time passing: a machine that spins is a bug.
    steps_now: u32,
}

impl World {
    pub(crate) fn new(seed: u64, setup: Setup, weather: Weather) -> Self {
        let mut world = World {
            now: Duration::ZERO,
            rng: Rng::with_seed(seed),
            etcd: Etcd::new(),
            etcd_away_until: Duration::ZERO,
            outages: Vec::new(),
            etcd_restarts: false,
            denied_until: Duration::ZERO,
            lax: false,
            full_until: Duration::ZERO,
            backup: None,
            operator: Operator::default(),
            keeper: Keeper::default(),
            was_late: weather.is_rough(),
            rough_until: if weather.is_rough() { Duration::MAX } else { Duration::ZERO },
            steady_since: None,
            weather,
            check: Check::new(RUN, setup.settings, setup.racks, setup.closed_ttl),
            setup,
            keys: Keys::new(RUN),
            processes: Vec::new(),
            planted: Planted::None,
            watchers: [BTreeMap::new(), BTreeMap::new()],
            next_port: 20_000,
            news: 0,
            overlooked: 0,
            traced: false,
            queue: BinaryHeap::new(),
            scheduled: 0,
            steps_now: 0,
        };
        world.after(Duration::from_millis(500), Step::Tick);
        world
    }

    /// Starts a process by this name, which calls for a round at once.
    pub(crate) fn start(&mut self, id: &str) -> Result<usize, Violation> {
        self.start_with(id, self.setup.settings)
    }

    pub(crate) fn start_with(&mut self, id: &str, settings: RunSettings) -> Result<usize, Violation> {
        let index = self.processes.len();
        let before = self.processes.iter().filter(|process| process.id == id).count() as u64;
        let incarnation = 1 + before;
        let seed = self.rng.u64(..);
        let config = NodeConfig {
            incarnation,
            address: format!("{id}-{incarnation}.sim"),
            host: host_of(id),
            rack: self.setup.racks.map_or_else(|| format!("rack{}", index % 3), |racks| rack_of(id, racks)),
            when_excluded: self.setup.when_excluded[index % self.setup.when_excluded.len()],
            hint: id.to_owned(),
            since: self.now.as_secs(),
            settings,
            lease_ttl: self.setup.lease,
            run_ttl: self.setup.run_ttl,
            closed_ttl: self.setup.closed_ttl,
            last_call: self.setup.last_call,
            replacement: self.setup.replacement,
            places_per_request: self.setup.places[(seed % self.setup.places.len() as u64) as usize],
            ..NodeConfig::new(RUN, id, settings)
        };
        self.trace(|| format!("{id} starts, incarnation {incarnation}"));
        let mut process = Process::new(config, seed);
        // In some worlds, some programs are busy, and do not react at once.
        if self.weather.busy && seed >> 62 == 0 {
            process.reaction = Duration::from_millis(seed % 5_000);
        }
        self.planted.prepare(self.now, self.setup.lease, &mut process.node);
        self.processes.push(process);
        self.join(index)?;
        Ok(index)
    }

    /// Lets the world go on for a while.
    pub(crate) fn run_for(&mut self, time: Duration) -> Result<(), Violation> {
        let end = self.now + time;
        self.run_while(end, |_| true).map(|_| ())
    }

    /// Lets the world go on for as long as `more` holds, but not beyond `end`. Whether it stopped holding.
    pub(crate) fn run_while(
        &mut self,
        end: Duration,
        more: impl Fn(&World) -> bool,
    ) -> Result<bool, Violation> {
        loop {
            if !more(self) {
                return Ok(true);
            }
            match self.queue.peek() {
                Some(Reverse(next)) if next.at <= end => {}
                _ => break,
            }
            let Some(Reverse(next)) = self.queue.pop() else { break };
            self.steps_now = if next.at > self.now { 0 } else { self.steps_now + 1 };
            assert!(self.steps_now < 100_000, "no time passes any more: {:?}", next.step);
            self.now = self.now.max(next.at);
            self.step(next.step)?;
        }
        self.now = self.now.max(end);
        Ok(false)
    }

    pub(crate) fn after(&mut self, delay: Duration, step: Step) {
        self.at(self.now + delay, step);
    }

    pub(crate) fn at(&mut self, at: Duration, step: Step) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled { at, order: self.scheduled, step }));
    }

    fn step(&mut self, step: Step) -> Result<(), Violation> {
        if let Some(process) = step.process().map(|index| &mut self.processes[index]) {
            if !process.alive {
                return Ok(());
            }
            // What a program does, or the whole process.
            let acts = matches!(step, Step::Join { .. } | Step::Leave { .. } | Step::Return { .. });
            let until = process.stalled_until.max(if acts { process.hung_until } else { Duration::ZERO });
            if self.now < until {
                // It may end sooner.
                let at = until.min(self.now + Duration::from_secs(1));
                self.at(at, step);
                return Ok(());
            }
        }
        match step {
            Step::Arrive { from, id, request, history } => self.arrive(from, id, request, history),
            Step::Refresh { from, lease, history } => {
                self.refresh(from, lease, history);
                Ok(())
            }
            Step::OperatorAsks { request, history } => self.operator_asks(&request, history),
            Step::OperatorHears { number, reply } => {
                self.operator_hears(number, reply);
                Ok(())
            }
            Step::KeeperAsks { number, request, history } => self.keeper_asks(number, &request, history),
            Step::KeeperHears { number, reply } => {
                self.keeper_hears(number, reply);
                Ok(())
            }
            Step::Tick => {
                self.tick();
                Ok(())
            }
            Step::Expire { lease } => self.expire(lease),
            Step::Resume { restarted } => self.resume(restarted),
            Step::Answer { to, id, reply } => self.answer(to, id, reply),
            Step::Refreshed { to, lease, lives } => self.refreshed(to, lease, lives),
            Step::Keep { of, lease } => {
                self.keep(of, lease);
                Ok(())
            }
            Step::Deliver { to, watch, generation } => self.deliver(to, watch, generation),
            Step::Open { to, watch, generation } => self.open(to, watch, generation),
            Step::Timer { of } => self.timer(of),
            Step::Join { of, round } => match &self.processes[of].phase {
                Phase::In(joined) if joined.round == round => self.join(of),
                _ => Ok(()),
            },
            Step::Leave { of } => self.leave(of),
            Step::Return { of } => self.join(of),
        }
    }

    /// Shows what etcd has done to the checks and to the watches.
    pub(crate) fn publish(&mut self) -> Result<(), Violation> {
        self.check.now = self.now;
        for change in self.etcd.take_fresh() {
            self.trace(|| describe(&change.events, change.revision));
            let is_round = change.events.iter().any(|event| key_of(event) == self.keys.round());
            let before = if is_round { Some(self.check.round().clone()) } else { None };
            self.check.change(&self.etcd, &change)?;
            if let Some(before) = before {
                self.what_is_written_is_true(&before)?;
            }
            let mut woken = Vec::new();
            for event in &change.events {
                let key = key_of(event);
                woken.extend(self.watchers[0].get(key).into_iter().flatten().copied());
                let prefixes = self.watchers[1].iter().filter(|(prefix, _)| key.starts_with(prefix.as_str()));
                woken.extend(prefixes.flat_map(|(_, watchers)| watchers).copied());
            }
            for (index, watch) in woken {
                self.wake(index, watch);
            }
        }
        Ok(())
    }

    /// The group's record.
    pub(crate) fn round(&self) -> Option<RoundRecord> {
        let entry = self.etcd.get(&self.keys.round())?;
        Some(serde_json::from_str(&entry.value).expect("the record was checked when it was written"))
    }

    /// The living processes that have not been refused.
    pub(crate) fn living(&self) -> impl Iterator<Item = usize> {
        (0..self.processes.len()).filter(|index| self.processes[*index].alive)
    }

    /// The living members of the group's round.
    pub(crate) fn members(&self) -> Vec<usize> {
        let round = self.round().map_or(0, |record| record.round);
        self.living()
            .filter(
                |index| matches!(&self.processes[*index].phase, Phase::In(joined) if joined.round == round),
            )
            .collect()
    }

    /// The process that leads, as etcd has it.
    pub(crate) fn leader(&self) -> Option<usize> {
        let leader = self.etcd.get(&self.keys.leader())?;
        self.living().find(|index| self.processes[*index].kept == Some(leader.lease))
    }

    /// A time up to `most`.
    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.rng.u64(0..=u64::try_from(most.as_micros()).unwrap_or(u64::MAX)))
    }

    pub(crate) fn trace(&self, line: impl FnOnce() -> String) {
        if self.traced {
            println!("{:>11.6} {}", self.now.as_secs_f64(), line());
        }
    }
}

fn describe(events: &[Event], revision: i64) -> String {
    let mut text = format!("  etcd {revision}:");
    for event in events {
        match event {
            Event::Put(entry) => {
                text += &format!(" put {} = {} ({})", entry.key, entry.value, entry.lease);
            }
            Event::Delete { key, .. } => text += &format!(" delete {key}"),
        }
    }
    text.replace(RUN, "")
}

/// A step in the queue. The order in which steps were made decides between those of one moment.
struct Scheduled {
    at: Duration,
    order: u64,
    step: Step,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
