//! Nodes, a network that delays, loses and reorders, and what must hold whatever it does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use rallypoint_core::barrier::{
    KEEP_ALIVE_TTL, Machine, Outcome, Place, Reply, Request, Settings, Status, Step,
};

use crate::server::Server;

/// When a node gives up on a reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a run is about.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) last_call: Duration,
    /// Faults happen up to this time.
    pub(crate) faults_until: Duration,
    /// It is looked at what has become of it at this time.
    pub(crate) end: Duration,
    /// How likely a message is lost, and how likely it is late.
    pub(crate) loss: f64,
    pub(crate) late: f64,
    /// How many crashes, stalls and leaves there are, at random times.
    pub(crate) crashes: usize,
    pub(crate) stalls: usize,
    pub(crate) leaves: usize,
    pub(crate) close: bool,
    /// The node that dies when it sends its n-th request, and whether that request still arrives.
    pub(crate) crash_at: Option<(usize, u32, bool)>,
    pub(crate) bug: Option<Bug>,
}

/// A mistake, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A write whose reply was lost counts as carried out.
    TrustsLostReplies,
    /// A record is written without looking at what is there.
    DoesNotCompare,
}

#[derive(Debug, PartialEq, Eq)]
enum Life {
    Going,
    Met(Place),
    Over,
    Dead,
}

struct Node {
    machine: Machine,
    life: Life,
    /// The request that it waits for a reply to.
    waits_for: Option<u64>,
    /// When it is asked again.
    wake: u64,
    keeps: Option<Place>,
    stalled_until: Duration,
    sent: u32,
}

#[derive(Debug)]
enum Event {
    Wake { node: usize, wake: u64 },
    Arrive { node: usize, id: u64, request: Request, heard: bool },
    Answer { node: usize, id: u64, reply: Reply },
    Renew { node: usize, place: Place },
    Look { node: usize },
    Crash { node: usize },
    Stall { node: usize },
    Leave { node: usize },
    Restart,
    Close,
    Tick,
}

struct Scheduled(Duration, u64, Event);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
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
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

pub(crate) struct World {
    plan: Plan,
    random: fastrand::Rng,
    now: Duration,
    queue: BinaryHeap<Reverse<Scheduled>>,
    count: u64,
    server: Server,
    watches: Vec<(usize, u64, Request)>,
    seen_changes: usize,
    nodes: Vec<Node>,
    /// Who had which rank in a version, and with how many.
    met: BTreeMap<u64, (usize, BTreeMap<usize, usize>)>,
    pub(crate) requests: u64,
    /// When the last node met.
    pub(crate) met_at: Duration,
    ticks_at: Option<Duration>,
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let mut world = World {
            random: fastrand::Rng::with_seed(seed),
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            count: 0,
            server: Server::new(plan.bug == Some(Bug::DoesNotCompare)),
            watches: Vec::new(),
            seen_changes: 0,
            nodes: Vec::new(),
            met: BTreeMap::new(),
            requests: 0,
            met_at: Duration::ZERO,
            ticks_at: None,
            plan,
        };
        for _ in 0..world.plan.nodes {
            let after = world.random_time(Duration::from_millis(500));
            world.add_node(after);
        }
        let until = world.plan.faults_until;
        for _ in 0..world.plan.crashes {
            let (node, at) = (world.random.usize(..world.plan.nodes), world.random_time(until));
            world.schedule(at, Event::Crash { node });
            let back = at + world.random_time(Duration::from_secs(20));
            world.schedule(back, Event::Restart);
        }
        for _ in 0..world.plan.stalls {
            let (node, at) = (world.random.usize(..world.plan.nodes), world.random_time(until));
            world.schedule(at, Event::Stall { node });
        }
        for _ in 0..world.plan.leaves {
            let (node, at) = (world.random.usize(..world.plan.nodes), world.random_time(until));
            world.schedule(at, Event::Leave { node });
        }
        if world.plan.close {
            let at = world.random_time(until);
            world.schedule(at, Event::Close);
        }
        world
    }

    /// Runs it to its end; what was wrong, if something was.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        while let Some(Reverse(Scheduled(at, _, event))) = self.queue.pop() {
            if at > self.plan.end {
                break;
            }
            self.now = at;
            self.server.advance(at);
            self.happen(event)?;
            self.tell_watches();
            if let Some(violation) = self.server.violation.take() {
                return Err(violation);
            }
        }
        self.judge_the_end()
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Tick => self.ticks_at = None,
            Event::Wake { node, wake } => {
                if self.nodes[node].wake == wake && !self.stalled(node, |node| Event::Wake { node, wake }) {
                    self.step(node)?;
                }
            }
            Event::Arrive { node, id, request, heard } => self.arrive(node, id, request, heard),
            Event::Answer { node, id, reply } => {
                if self.nodes[node].waits_for != Some(id) || self.nodes[node].life == Life::Dead {
                    return Ok(());
                }
                let again = reply.clone();
                if self.stalled(node, |node| Event::Answer { node, id, reply: again }) {
                    return Ok(());
                }
                self.nodes[node].waits_for = None;
                let (now, random) = (self.now, self.random.f64());
                self.nodes[node].machine.handle(now, random, reply);
                self.step(node)?;
            }
            Event::Renew { node, place } => {
                if self.nodes[node].keeps == Some(place)
                    && self.nodes[node].life != Life::Dead
                    && !self.stalled(node, |node| Event::Renew { node, place })
                    && self.server.renew(self.now, place)
                {
                    self.schedule(self.now + KEEP_ALIVE_TTL / 2, Event::Renew { node, place });
                }
            }
            Event::Look { node } => self.look(node)?,
            Event::Crash { node } => self.kill(node),
            Event::Stall { node } => {
                let time = Duration::from_secs(1) + self.random_time(Duration::from_secs(25));
                self.nodes[node].stalled_until = self.now + time;
            }
            Event::Leave { node } => {
                if matches!(self.nodes[node].life, Life::Going | Life::Met(_)) {
                    let now = self.now;
                    if self.nodes[node].waits_for.take().is_some() {
                        self.nodes[node].machine.handle(now, 0.5, Reply::Lost);
                    }
                    self.nodes[node].machine.leave(now);
                    self.nodes[node].life = Life::Going;
                    self.step(node)?;
                    // The place is for somebody else to take.
                    self.schedule(now + Duration::from_secs(1), Event::Restart);
                }
            }
            Event::Restart => self.add_node(Duration::ZERO),
            Event::Close => self.server.close(),
        }
        Ok(())
    }

    fn add_node(&mut self, after: Duration) {
        let Plan { min, max, last_call, .. } = self.plan;
        let timeout = Duration::from_secs(1_000_000);
        let mut machine = Machine::new(Settings { min, max, timeout, last_call, root: "/p/run_r".into() });
        machine.start(self.now + after);
        self.nodes.push(Node {
            machine,
            life: Life::Going,
            waits_for: None,
            wake: 0,
            keeps: None,
            stalled_until: Duration::ZERO,
            sent: 0,
        });
        let node = self.nodes.len() - 1;
        self.schedule(self.now + after, Event::Wake { node, wake: 0 });
    }

    fn step(&mut self, node: usize) -> Result<(), String> {
        if self.nodes[node].life == Life::Dead || self.nodes[node].waits_for.is_some() {
            return Ok(());
        }
        match self.nodes[node].machine.poll(self.now) {
            Step::Wait(until) => {
                self.nodes[node].wake += 1;
                let wake = self.nodes[node].wake;
                self.schedule(until.max(self.now), Event::Wake { node, wake });
            }
            Step::Send(request) => self.send(node, request),
            Step::End(Outcome::Met { place, world }) => {
                self.nodes[node].life = Life::Met(place);
                self.met_at = self.now;
                self.record_meeting(node, place, world)?;
                self.schedule(self.now, Event::Look { node });
            }
            Step::End(_) => {
                self.nodes[node].life = Life::Over;
                self.nodes[node].keeps = None;
            }
        }
        Ok(())
    }

    fn send(&mut self, node: usize, request: Request) {
        self.requests += 1;
        self.count += 1;
        let id = self.count;
        self.nodes[node].waits_for = Some(id);
        self.nodes[node].sent += 1;
        let sent = self.nodes[node].sent;
        match &request {
            Request::Hold(place) => self.nodes[node].keeps = Some(*place),
            Request::Release(place) | Request::RunOut(place) if self.nodes[node].keeps == Some(*place) => {
                self.nodes[node].keeps = None;
            }
            _ => {}
        }
        let faults = self.now < self.plan.faults_until;
        let (loss, late) = if faults { (self.plan.loss, self.plan.late) } else { (0.0, 0.0) };
        let lost_on_the_way = self.random.f64() < loss;
        let mut heard = self.random.f64() >= loss;
        let mut travels = Duration::from_micros(self.random.u64(200..5_000));
        if self.random.f64() < late {
            travels += self.random_time(Duration::from_secs(15));
        }
        let gives_up = match &request {
            // Long polls are asked again and again.
            Request::WatchState { time, .. } | Request::WatchVersion { time, .. } => {
                (*time).min(Duration::from_secs(60))
            }
            _ => PATIENCE,
        };
        let in_vain = match &request {
            Request::WatchState { .. } | Request::WatchVersion { .. } => Reply::Quiet,
            Request::SwapState { .. } if self.plan.bug == Some(Bug::TrustsLostReplies) => {
                Reply::Done { index: u64::MAX / 2 }
            }
            _ => Reply::Lost,
        };
        self.schedule(self.now + gives_up, Event::Answer { node, id, reply: in_vain });
        let mut arrives = !lost_on_the_way;
        if let Some((_, _, still_arrives)) =
            self.plan.crash_at.filter(|(who, when, _)| *who == node && *when == sent)
        {
            (arrives, heard) = (still_arrives, false);
            self.schedule(self.now, Event::Crash { node });
            self.schedule(self.now + Duration::from_secs(1), Event::Restart);
        }
        if arrives {
            self.schedule(self.now + travels, Event::Arrive { node, id, request, heard });
        }
    }

    fn arrive(&mut self, node: usize, id: u64, request: Request, heard: bool) {
        if matches!(request, Request::WatchState { .. } | Request::WatchVersion { .. }) {
            if heard {
                match self.server.told(&request) {
                    Some(reply) => self.answer(node, id, reply),
                    None => self.watches.push((node, id, request)),
                }
            }
            return;
        }
        let reply = self.server.serve(self.now, &request);
        if let (Request::Hold(place), Reply::Done { .. }) = (&request, &reply) {
            self.schedule(self.now + KEEP_ALIVE_TTL / 2, Event::Renew { node, place: *place });
        }
        if heard {
            self.answer(node, id, reply);
        }
    }

    fn answer(&mut self, node: usize, id: u64, reply: Reply) {
        let travels = Duration::from_micros(self.random.u64(200..5_000));
        self.schedule(self.now + travels, Event::Answer { node, id, reply });
    }

    fn tell_watches(&mut self) {
        if let Some(end) = self.server.next_end()
            && self.ticks_at.is_none_or(|at| end < at)
        {
            self.ticks_at = Some(end);
            self.schedule(end, Event::Tick);
        }
        if self.seen_changes == self.server.changes() {
            return;
        }
        self.seen_changes = self.server.changes();
        for (node, id, request) in std::mem::take(&mut self.watches) {
            if self.nodes[node].waits_for != Some(id) {
                continue;
            }
            match self.server.told(&request) {
                Some(reply) => self.answer(node, id, reply),
                None => self.watches.push((node, id, request)),
            }
        }
        for node in 0..self.nodes.len() {
            if matches!(self.nodes[node].life, Life::Met(_)) {
                let after = self.random_time(Duration::from_millis(100));
                self.schedule(self.now + after, Event::Look { node });
            }
        }
    }

    /// A member that learns that its group is not whole comes back.
    fn look(&mut self, node: usize) -> Result<(), String> {
        let Life::Met(place) = self.nodes[node].life else { return Ok(()) };
        if self.server.is_whole(place.version) || self.stalled(node, |node| Event::Look { node }) {
            return Ok(());
        }
        self.nodes[node].life = Life::Going;
        let now = self.now;
        self.nodes[node].machine.start(now);
        self.step(node)
    }

    fn kill(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.life = Life::Dead;
        node.keeps = None;
        node.waits_for = None;
    }

    fn record_meeting(&mut self, node: usize, place: Place, world: usize) -> Result<(), String> {
        let Place { version, rank } = place;
        let Plan { min, max, .. } = self.plan;
        let (size, ranks) = self.met.entry(version).or_insert((world, BTreeMap::new()));
        if !(min..=max).contains(&world) {
            return Err(format!("version {version} has {world} nodes, not {min} to {max}"));
        }
        if *size != world || rank >= world {
            return Err(format!("version {version}: {world} nodes and rank {rank}; others say {size}"));
        }
        if let Some(other) = ranks.insert(rank, node).filter(|other| *other != node) {
            return Err(format!("version {version}: nodes {other} and {node} both have rank {rank}"));
        }
        Ok(())
    }

    /// Once nothing goes wrong any more, those who live meet.
    fn judge_the_end(&self) -> Result<(), String> {
        let living: Vec<_> =
            self.nodes.iter().filter(|node| matches!(node.life, Life::Going | Life::Met(_))).collect();
        let record = self.server.record();
        if record.is_some_and(|record| record.status == Status::Closed) {
            let going = living.iter().filter(|node| node.life == Life::Going).count();
            return if going == 0 {
                Ok(())
            } else {
                Err(format!("{going} nodes do not see that it is closed"))
            };
        }
        if living.len() < self.plan.min {
            return Ok(());
        }
        let version = record.and_then(|record| record.version).unwrap_or(0);
        let met = living
            .iter()
            .filter(|node| matches!(node.life, Life::Met(place) if place.version == version))
            .count();
        let wanted = living.len().min(self.plan.max);
        if met == wanted && self.server.is_whole(version) {
            return Ok(());
        }
        Err(format!("{met} of {} living nodes are together, not {wanted}; record: {record:?}", living.len()))
    }

    /// Puts an event off while its node is stalled.
    fn stalled(&mut self, node: usize, event: impl FnOnce(usize) -> Event) -> bool {
        let until = self.nodes[node].stalled_until;
        if until > self.now {
            self.schedule(until, event(node));
        }
        until > self.now
    }

    fn random_time(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.random.f64())
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.count += 1;
        self.queue.push(Reverse(Scheduled(at, self.count, event)));
    }
}
