//! Nodes, a network that delays, loses and reorders, and what must hold whatever it does.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use rallypoint_core::barrier::{
    Change, Ending, Failure, KEEP_ALIVE_TTL, Node, NodeEvent, Output, Place, Record, Reply, Request,
    Settings, Status, Update, WatchId, Watched,
};

use crate::plan::{Bug, Plan};
use crate::server::{Deed, Server};
use crate::torch::{self, Ask, Torch};
use crate::truth::Truth;

/// When a node gives up on a reply.
const PATIENCE: Duration = Duration::from_millis(3_300);
/// When a watch is told that its index has not come about.
const LONG_POLL: Duration = Duration::from_secs(20);
/// How long all must have been well at the end: longer than what is forgotten shows.
const WELL: Duration = Duration::from_secs(14);
/// No node sends more requests in a second.
const SPIN: u32 = 60;
/// A shorter outage ends no keep-alive by itself.
const SILENCE: Duration = Duration::from_millis(4_500);
/// By then everybody has seen that the server lost its data.
const LOSS_SHOWS: Duration = Duration::from_secs(30);
/// When the program of a node that does not meet after a loss of data gives up.
const GIVES_UP: Duration = Duration::from_secs(60);
const ROOT: &str = "/p/run_r";

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Life {
    Going,
    Met(Place),
    /// Its program does not come back.
    Hung,
    Over,
    Dead,
}

#[allow(clippy::large_enum_variant, reason = "a few of them in a test")]
enum Brain {
    Ours(Node),
    Torch(Torch),
}

struct Process {
    brain: Brain,
    name: String,
    life: Life,
    /// Requests that are not answered.
    open: BTreeSet<u64>,
    wake: u64,
    wakes_at: Option<Duration>,
    stalled_until: Duration,
    cut_until: Duration,
    sent: u32,
    second: (u64, u32),
    leaves: bool,
    /// It was told that its group is not as it was.
    told: bool,
}

#[derive(Debug, Clone)]
enum Message {
    Request(Request),
    Compare { old: Record, new: Option<Record>, ttl: Option<Duration> },
}

/// How often a request is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Times {
    Once,
    Twice,
    /// The second time.
    Again,
}

#[derive(Debug)]
enum Event {
    Wake {
        node: usize,
        wake: u64,
    },
    Arrive {
        node: usize,
        id: u64,
        message: Message,
        heard: bool,
        times: Times,
        /// Which life of the server it was sent in: what is on its way ends with it.
        life: u32,
    },
    Answer {
        node: usize,
        id: u64,
        reply: Result<Reply, Failure>,
    },
    Tell {
        node: usize,
        watch: u64,
        update: Update,
        next: u64,
    },
    /// A watch cannot be answered, as the server is away or behind.
    Unanswered {
        watch: u64,
    },
    Program {
        node: usize,
        place: Place,
    },
    Renew {
        node: usize,
        place: Place,
    },
    Fault(Fault),
    Second,
    Tick,
    Cause,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    Start {
        torch: bool,
    },
    Crash(usize),
    Stall(usize),
    Cut(usize),
    Leave(usize),
    Outage(Duration),
    Refuse,
    RefuseNoMore,
    Snapshot,
    Lose {
        restored: bool,
    },
    /// Who waits in vain gives up, and is started again.
    GiveUp,
    Close,
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

struct Watch {
    id: u64,
    node: usize,
    which: WatchId,
    keys: Watched,
    from: u64,
    /// It is being told something.
    busy: bool,
}

pub(crate) struct World {
    plan: Plan,
    random: fastrand::Rng,
    pub(crate) now: Duration,
    queue: BinaryHeap<Reverse<Scheduled>>,
    count: u64,
    server: Server,
    down_until: Duration,
    up_since: Duration,
    down_for: Duration,
    lost_at: Option<Duration>,
    folder_ended: bool,
    /// How often the server was started.
    lives: u32,
    watches: Vec<Watch>,
    seen_index: u64,
    nodes: Vec<Process>,
    truth: Truth,
    pub(crate) requests: u64,
    /// When the last node met.
    pub(crate) met_at: Duration,
    /// What was told, for stories.
    pub(crate) told: Vec<(Duration, usize, NodeEvent)>,
    /// All is as it should be.
    well_since: Option<Duration>,
    ticks_at: Option<Duration>,
    loud: bool,
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let mut world = World {
            random: fastrand::Rng::with_seed(seed),
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            count: 0,
            server: Server::new(plan.history, plan.run_ttl),
            down_until: Duration::ZERO,
            up_since: Duration::ZERO,
            down_for: Duration::ZERO,
            lost_at: None,
            folder_ended: false,
            lives: 0,
            watches: Vec::new(),
            seen_index: 0,
            nodes: Vec::new(),
            truth: Truth::default(),
            requests: 0,
            met_at: Duration::ZERO,
            told: Vec::new(),
            well_since: None,
            ticks_at: None,
            loud: std::env::var_os("BARRIER_LOG").is_some(),
            plan,
        };
        let _ = world.server.serve(Duration::ZERO, None, &Request::MakeRun { counter: 0 });
        for at in 0..world.plan.nodes + world.plan.torch {
            let after = world.random_time(Duration::from_millis(500));
            world.schedule(after, Event::Fault(Fault::Start { torch: at >= world.plan.nodes }));
        }
        world.draw_faults();
        world.schedule(Duration::from_secs(1), Event::Second);
        world
    }

    fn draw_faults(&mut self) {
        let plan = self.plan.clone();
        let all = plan.nodes + plan.torch;
        let faults = |world: &mut World, times: usize, fault: &dyn Fn(usize) -> Fault| {
            for _ in 0..times {
                let (node, at) = (world.random.usize(..all), world.random_time(plan.faults_until));
                // Everybody is there by then.
                let at = at + Duration::from_secs(1);
                world.schedule(at, Event::Fault(fault(node)));
            }
        };
        faults(self, plan.crashes, &Fault::Crash);
        faults(self, plan.stalls, &Fault::Stall);
        faults(self, plan.cuts, &Fault::Cut);
        faults(self, plan.leaves, &Fault::Leave);
        faults(self, plan.newcomers, &|_| Fault::Start { torch: false });
        let time = Duration::from_secs(1) + self.random_time(Duration::from_secs(20));
        faults(self, plan.outages, &|_| Fault::Outage(time));
        faults(self, plan.refusals, &|_| Fault::Refuse);
        faults(self, plan.losses, &|_| Fault::Snapshot);
        let restored = self.random.bool();
        faults(self, plan.losses, &|_| Fault::Lose { restored });
        faults(self, usize::from(plan.close), &|_| Fault::Close);
    }

    /// Lets this happen at that time, in a story.
    pub(crate) fn fault_at(&mut self, seconds: u64, fault: Fault) {
        self.schedule(Duration::from_secs(seconds), Event::Fault(fault));
    }

    /// Runs it to its end; what was wrong, if something was.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        while let Some(Reverse(Scheduled(at, _, event))) = self.queue.pop() {
            if at > self.plan.end {
                break;
            }
            self.now = at;
            if self.is_up() {
                self.server.advance(at);
                self.check_deeds()?;
            }
            let second = matches!(event, Event::Second);
            self.happen(event)?;
            self.check_deeds()?;
            self.tell_watches();
            let well = self.well_since.is_some_and(|since| at >= since + WELL);
            if second && well && at > self.plan.faults_until + WELL {
                return Ok(());
            }
        }
        self.judge_the_end()
    }

    fn check_deeds(&mut self) -> Result<(), String> {
        for deed in self.server.deeds() {
            if matches!(deed, Deed::FolderEnded) {
                self.folder_ended = true;
            }
            if matches!(&deed, Deed::RecordWritten(record) if record.status == Status::Joinable)
                && self.folder_ended
            {
                self.lost_at = Some(self.now);
            }
            if self.loud {
                println!("{:>9.3} server: {deed:?}", self.now.as_secs_f64());
            }
            // Whoever could reach the server for the last ten seconds, had it been there.
            let (now, nodes) = (self.now, &self.nodes);
            let was_down = now < self.up_since + KEEP_ALIVE_TTL && self.down_for > SILENCE;
            let reached = |until: Duration| until + KEEP_ALIVE_TTL < now;
            let blameless = |node: usize| {
                was_down && reached(nodes[node].stalled_until) && reached(nodes[node].cut_until)
            };
            self.truth.deed(now, self.up_since, deed, blameless)?;
        }
        Ok(())
    }

    fn is_up(&self) -> bool {
        self.now >= self.down_until
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Tick => self.ticks_at = None,
            Event::Cause => self.truth.cause(),
            Event::Second => {
                self.truth.seen_steady(self.now, self.is_steady());
                self.well_since = self.is_well().then(|| self.well_since.unwrap_or(self.now));
                self.schedule(self.now + Duration::from_secs(1), Event::Second);
            }
            Event::Wake { node, wake } => {
                if self.nodes[node].wake == wake && !self.stalled(node, Event::Wake { node, wake }) {
                    self.nodes[node].wakes_at = None;
                    let now = self.now;
                    match &mut self.nodes[node].brain {
                        Brain::Ours(machine) => machine.handle_timeout(now),
                        Brain::Torch(torch) => {
                            let ask = torch.wake();
                            self.watches.retain(|watch| watch.node != node);
                            return self.torch(node, ask);
                        }
                    }
                    self.drain(node)?;
                }
            }
            Event::Arrive { life, .. } if life != self.lives => {}
            Event::Arrive { node, id, message, heard, times, .. } => {
                self.arrive(node, id, message, heard, times);
            }
            Event::Answer { node, id, reply } => {
                if self.nodes[node].life == Life::Dead || !self.nodes[node].open.contains(&id) {
                    return Ok(());
                }
                if self.stalled(node, Event::Answer { node, id, reply: reply.clone() }) {
                    return Ok(());
                }
                self.nodes[node].open.remove(&id);
                let now = self.now;
                match &mut self.nodes[node].brain {
                    Brain::Ours(machine) => machine.handle_reply(now, id, reply),
                    Brain::Torch(torch) => {
                        let ask = torch.answer(now, reply.ok());
                        return self.torch(node, ask);
                    }
                }
                self.drain(node)?;
            }
            Event::Tell { node, watch, update, next } => return self.tell(node, watch, update, next),
            Event::Unanswered { watch } => {
                if let Some(watch) = self.watches.iter().find(|one| one.id == watch && !one.busy) {
                    let (node, id, next) = (watch.node, watch.id, watch.from);
                    if !self.is_up() || self.nodes[node].cut_until > self.now {
                        return self.tell(node, id, Update::Failed, next);
                    }
                    if next > self.server.index() + 1 {
                        return self.tell(node, id, Update::Cleared, next);
                    }
                }
            }
            Event::Program { node, place } => {
                if self.nodes[node].life == Life::Met(place)
                    && !self.stalled(node, Event::Program { node, place })
                {
                    self.nodes[node].life = Life::Going;
                    let now = self.now;
                    if let Brain::Ours(machine) = &mut self.nodes[node].brain {
                        machine.join(now);
                    }
                    self.drain(node)?;
                }
            }
            Event::Renew { node, place } => self.renew(node, place),
            Event::Fault(fault) => return self.fault(fault),
        }
        Ok(())
    }

    fn fault(&mut self, fault: Fault) -> Result<(), String> {
        if self.loud {
            println!("{:>9.3} {fault:?}", self.now.as_secs_f64());
        }
        match fault {
            Fault::Start { torch } => return self.start(torch),
            Fault::Crash(node) => {
                if self.nodes[node].life == Life::Hung {
                    self.kill(node);
                } else if self.is_living(node) {
                    let torch = matches!(self.nodes[node].brain, Brain::Torch(_));
                    self.kill(node);
                    let back = self.now + self.random_time(Duration::from_secs(20));
                    if !self.nodes[node].leaves {
                        self.schedule(back, Event::Fault(Fault::Start { torch }));
                    }
                }
            }
            Fault::Stall(node) => {
                self.truth.cause();
                let time = Duration::from_secs(1) + self.random_time(Duration::from_secs(25));
                self.nodes[node].stalled_until = self.now + time;
            }
            Fault::Cut(node) => {
                let time = Duration::from_secs(1) + self.random_time(Duration::from_secs(20));
                self.nodes[node].cut_until = self.now + time;
                self.schedule(self.now + time, Event::Tick);
                let fails = self.now + PATIENCE + self.random_time(Duration::from_secs(2));
                for watch in self
                    .watches
                    .iter()
                    .filter(|watch| watch.node == node)
                    .map(|watch| watch.id)
                    .collect::<Vec<_>>()
                {
                    self.schedule(fails, Event::Unanswered { watch });
                }
            }
            Fault::Leave(node) => {
                let now = self.now;
                let lives = self.is_living(node) && !self.nodes[node].leaves;
                if let Brain::Ours(machine) = &mut self.nodes[node].brain
                    && lives
                {
                    self.truth.cause();
                    machine.leave(now);
                    (self.nodes[node].life, self.nodes[node].leaves) = (Life::Going, true);
                    self.drain(node)?;
                    // The place is for somebody else to take.
                    self.schedule(now + Duration::from_secs(1), Event::Fault(Fault::Start { torch: false }));
                }
            }
            Fault::Outage(time) => self.go_down(time),
            Fault::Refuse => {
                self.server.refuses = true;
                let until = self.now + self.random_time(Duration::from_secs(15));
                // A keep-alive that cannot be renewed ends.
                self.truth.cause();
                self.schedule(until, Event::Fault(Fault::RefuseNoMore));
            }
            Fault::RefuseNoMore => self.server.refuses = false,
            Fault::Snapshot => self.server.take_snapshot(),
            Fault::Lose { restored } => {
                self.server.lose(restored);
                self.truth.lost(self.now);
                self.lost_at = Some(self.now);
                self.lives += 1;
                self.schedule(self.now + GIVES_UP, Event::Fault(Fault::GiveUp));
                self.go_down(Duration::from_millis(500));
                let behind = self.now + LONG_POLL;
                for watch in self.watches.iter().map(|watch| watch.id).collect::<Vec<_>>() {
                    self.schedule(behind, Event::Unanswered { watch });
                }
            }
            Fault::GiveUp => {
                for node in 0..self.nodes.len() {
                    if self.nodes[node].life == Life::Going && !self.is_well() {
                        self.fault(Fault::Leave(node))?;
                    }
                }
            }
            Fault::Close => {
                self.truth.cause();
                let at = self.random.usize(..self.nodes.len());
                let now = self.now;
                if let Brain::Ours(machine) = &mut self.nodes[at].brain {
                    machine.close(now);
                    self.drain(at)?;
                }
            }
        }
        Ok(())
    }

    fn go_down(&mut self, time: Duration) {
        let begins = if self.is_up() { self.now } else { self.up_since.saturating_sub(self.down_for) };
        self.down_until = self.down_until.max(self.now + time);
        self.down_for = self.down_until.saturating_sub(begins);
        self.up_since = self.down_until;
        self.seen_index = 0;
        self.schedule(self.down_until, Event::Tick);
        let fails = self.now + PATIENCE + self.random_time(Duration::from_secs(2));
        for watch in self.watches.iter().map(|watch| watch.id).collect::<Vec<_>>() {
            self.schedule(fails, Event::Unanswered { watch });
        }
    }

    fn start(&mut self, torch: bool) -> Result<(), String> {
        self.truth.cause();
        let Plan { min, max, last_call, .. } = self.plan;
        let name = format!("n{}", self.nodes.len());
        let settings = Settings { node: name.clone(), min, max, last_call, root: ROOT.to_owned() };
        let brain = if torch {
            Brain::Torch(Torch::new(min, max, last_call, ROOT))
        } else {
            Brain::Ours(Node::new(settings, self.random.u64(..)))
        };
        let node = self.nodes.len();
        self.nodes.push(Process {
            brain,
            name,
            life: Life::Going,
            open: BTreeSet::new(),
            wake: 0,
            wakes_at: None,
            stalled_until: Duration::ZERO,
            cut_until: Duration::ZERO,
            sent: 0,
            second: (0, 0),
            leaves: false,
            told: false,
        });
        let now = self.now;
        match &mut self.nodes[node].brain {
            Brain::Ours(machine) => machine.join(now),
            Brain::Torch(torch) => {
                let ask = torch.start();
                return self.torch(node, ask);
            }
        }
        self.drain(node)
    }

    fn drain(&mut self, node: usize) -> Result<(), String> {
        loop {
            if self.nodes[node].life == Life::Dead {
                return Ok(());
            }
            let Brain::Ours(machine) = &mut self.nodes[node].brain else { return Ok(()) };
            match machine.poll_output() {
                None => break,
                Some(Output::Request { id, request }) => {
                    self.nodes[node].open.insert(id);
                    self.send(node, id, Message::Request(request))?;
                }
                Some(Output::Watch { id, keys, from }) => self.watch(node, id, keys, from),
                Some(Output::Unwatch(which)) => {
                    self.watches.retain(|watch| watch.node != node || watch.which != which);
                }
                Some(Output::Event(event)) => self.event(node, event)?,
            }
        }
        let Brain::Ours(machine) = &self.nodes[node].brain else { return Ok(()) };
        if let Some(at) = machine.poll_timeout() {
            self.wake_at(node, at);
        }
        Ok(())
    }

    fn wake_at(&mut self, node: usize, at: Duration) {
        if self.nodes[node].wakes_at != Some(at) {
            self.nodes[node].wakes_at = Some(at);
            self.nodes[node].wake += 1;
            let wake = self.nodes[node].wake;
            self.schedule(at.max(self.now), Event::Wake { node, wake });
        }
    }

    fn event(&mut self, node: usize, event: NodeEvent) -> Result<(), String> {
        if self.loud {
            println!("{:>9.3} {node}: {event:?}", self.now.as_secs_f64());
        }
        if !matches!(event, NodeEvent::Progress { .. }) {
            self.told.push((self.now, node, event.clone()));
        }
        match event {
            NodeEvent::Joined { place, world } => {
                let allowed = self.plan.min..=self.plan.max;
                self.truth.meets(node, place, world, allowed)?;
                (self.nodes[node].life, self.nodes[node].told) = (Life::Met(place), false);
                self.met_at = self.now;
            }
            NodeEvent::Changed(change) => {
                let Life::Met(place) = self.nodes[node].life else { return Ok(()) };
                let lives = |node: usize| matches!(self.nodes[node].life, Life::Met(_) | Life::Going);
                self.truth.told(self.now, place, &change, self.server.has_run(), lives)?;
                self.nodes[node].told = true;
                if change == Change::Closed {
                    self.nodes[node].life = Life::Over;
                    if let Brain::Ours(machine) = &mut self.nodes[node].brain {
                        machine.leave(self.now);
                    }
                    return Ok(());
                }
                let draw = self.random.f64();
                if draw < self.plan.hung {
                    self.truth.cause();
                    self.nodes[node].life = Life::Hung;
                    // Until somebody sees that.
                    let at = self.now + self.random_time(Duration::from_secs(60));
                    self.schedule(at, Event::Fault(Fault::Crash(node)));
                    return Ok(());
                }
                let slow = draw < self.plan.hung + self.plan.slow;
                let most = if slow { Duration::from_secs(8) } else { Duration::from_millis(100) };
                let at = self.now + self.random_time(most);
                self.schedule(at, Event::Program { node, place });
            }
            NodeEvent::Refused | NodeEvent::Left => self.nodes[node].life = Life::Over,
            NodeEvent::Recovered(_) | NodeEvent::Progress { .. } | NodeEvent::Closed => {}
        }
        Ok(())
    }

    fn send(&mut self, node: usize, id: u64, message: Message) -> Result<(), String> {
        if self.loud {
            println!("{:>9.3} {node} asks {id}: {message:?}", self.now.as_secs_f64());
        }
        self.requests += 1;
        let process = &mut self.nodes[node];
        process.sent += 1;
        let sent = process.sent;
        let second = self.now.as_secs();
        process.second =
            if process.second.0 == second { (second, process.second.1 + 1) } else { (second, 1) };
        if process.second.1 > SPIN && self.plan.max <= 12 {
            return Err(format!("node {node} sends more than {SPIN} requests in a second: {message:?}"));
        }
        let cut = process.cut_until > self.now;
        let faults = self.now < self.plan.faults_until;
        let (loss, late, twice) =
            if faults { (self.plan.loss, self.plan.late, self.plan.twice) } else { (0.0, 0.0, 0.0) };
        let mut arrives = !cut && self.random.f64() >= loss;
        let mut heard = self.random.f64() >= loss;
        let mut travels = Duration::from_micros(self.random.u64(200..5_000));
        if self.random.f64() < late {
            travels += self.random_time(Duration::from_secs(15));
        }
        let times = if self.random.f64() < twice { Times::Twice } else { Times::Once };
        let bug = self.plan.bug == Some(Bug::TrustsLostReplies)
            && matches!(message, Message::Request(Request::SwapRecord { .. }));
        let in_vain =
            if bug { Ok(Reply::Done { index: self.server.index() + 1 }) } else { Err(Failure::Unknown) };
        self.schedule(self.now + PATIENCE, Event::Answer { node, id, reply: in_vain });
        if let Some((_, _, still_arrives)) =
            self.plan.crash_at.filter(|(who, when, _)| *who == node && *when == sent)
        {
            (arrives, heard) = (still_arrives, false);
            self.kill(node);
            self.schedule(self.now + Duration::from_secs(1), Event::Fault(Fault::Start { torch: false }));
        }
        let life = self.lives;
        if arrives {
            if travels > Duration::from_secs(1) {
                // What it brings about was decided long ago.
                self.schedule(self.now + travels, Event::Cause);
            }
            self.schedule(self.now + travels, Event::Arrive { node, id, message, heard, times, life });
        }
        Ok(())
    }

    fn arrive(&mut self, node: usize, id: u64, message: Message, heard: bool, times: Times) {
        if !self.is_up() {
            return;
        }
        let name = self.nodes[node].name.clone();
        let name = matches!(self.nodes[node].brain, Brain::Ours(_)).then_some(name.as_str());
        let request = match &message {
            Message::Request(request) => Some(request.clone()),
            Message::Compare { old, .. } if self.server.record() != Some(old) => None,
            Message::Compare { new, ttl, .. } => {
                let Ok(Reply::Record(view)) = self.server.serve(self.now, None, &Request::ReadRecord) else {
                    return;
                };
                let over = view.record.map_or(0, |(_, index)| index);
                Some(match new {
                    Some(record) => Request::SwapRecord { record: record.clone(), over, ttl: *ttl },
                    None => Request::DeleteRecord { over },
                })
            }
        };
        let reply = match request {
            None => Ok(Reply::Refused),
            Some(request) => self.carry_out(name, request),
        };
        let reply = match (times, reply) {
            (Times::Again, Ok(Reply::Refused)) => Err(Failure::Unknown),
            (_, reply) => reply,
        };
        if times == Times::Twice {
            // The first try's reply was lost, and of a refusal nobody knows what it means.
            let life = self.lives;
            let again = self.now + self.random_time(Duration::from_secs(2));
            self.schedule(again, Event::Arrive { node, id, message, heard, times: Times::Again, life });
            return;
        }
        if heard && self.nodes[node].cut_until <= self.now {
            let travels = Duration::from_micros(self.random.u64(200..5_000));
            self.schedule(self.now + travels, Event::Answer { node, id, reply });
        }
    }

    fn carry_out(&mut self, name: Option<&str>, request: Request) -> Result<Reply, Failure> {
        let request = match (self.plan.bug, request) {
            (Some(Bug::ForgetsToRenew), Request::RenewKeepAlive(_)) => {
                return Ok(Reply::Done { index: 0 });
            }
            (Some(Bug::OverlooksTheEndOfTheFolder), Request::FindRun) => return Ok(Reply::Run(true)),
            (Some(Bug::DoesNotCompare), Request::SwapRecord { record, ttl, over }) => {
                let Ok(Reply::Record(view)) = self.server.serve(self.now, None, &Request::ReadRecord) else {
                    return Err(Failure::Unknown);
                };
                let over = view.record.map_or(over, |(_, index)| index);
                Request::SwapRecord { record, ttl, over }
            }
            (_, request) => request,
        };
        let mut reply = self.server.serve(self.now, name, &request);
        match (self.plan.bug, &mut reply) {
            (Some(Bug::OverlooksAMember), Ok(Reply::Members { members, .. })) if members.len() > 1 => {
                members.pop();
            }
            (Some(Bug::TakesExpiryForLeaving), Ok(Reply::Ending(ending))) => *ending = Ending::Deleted,
            _ => {}
        }
        reply
    }

    fn watch(&mut self, node: usize, which: WatchId, keys: Watched, from: u64) {
        self.watches.retain(|watch| watch.node != node || watch.which != which);
        self.count += 1;
        let id = self.count;
        self.watches.push(Watch { id, node, which, keys, from, busy: false });
        let process = &self.nodes[node];
        if !self.is_up() || process.cut_until > self.now {
            self.schedule(self.now + PATIENCE, Event::Unanswered { watch: id });
        } else if from > self.server.index() + 1 {
            self.schedule(self.now + LONG_POLL, Event::Unanswered { watch: id });
        }
        self.seen_index = 0;
    }

    fn tell_watches(&mut self) {
        if !self.is_up() {
            return;
        }
        if let Some(end) = self.server.next_end()
            && self.ticks_at.is_none_or(|at| end < at)
        {
            self.ticks_at = Some(end);
            self.schedule(end.max(self.now), Event::Tick);
        }
        if self.seen_index == self.server.index() {
            return;
        }
        self.seen_index = self.server.index();
        for at in 0..self.watches.len() {
            let watch = &self.watches[at];
            if self.nodes[watch.node].cut_until > self.now {
                // It is told later.
                self.seen_index = 0;
                continue;
            }
            if watch.busy {
                continue;
            }
            let Some((mut update, next)) = self.server.told(&watch.keys, watch.from) else { continue };
            match (self.plan.bug, &mut update) {
                (Some(Bug::MissesClears), Update::Cleared) => continue,
                (Some(Bug::TakesExpiryForLeaving), Update::Gone { ending, .. }) => *ending = Ending::Deleted,
                _ => {}
            }
            let repeats = self.plan.bug == Some(Bug::RepeatsUpdates);
            let (node, id, next) = (watch.node, watch.id, if repeats { watch.from } else { next });
            self.watches[at].busy = true;
            let travels = Duration::from_micros(self.random.u64(200..5_000));
            self.schedule(self.now + travels, Event::Tell { node, watch: id, update, next });
        }
    }

    fn tell(&mut self, node: usize, watch: u64, update: Update, next: u64) -> Result<(), String> {
        let Some(at) = self.watches.iter().position(|one| one.id == watch) else { return Ok(()) };
        if self.nodes[node].life == Life::Dead {
            self.watches.remove(at);
            return Ok(());
        }
        let again = Event::Tell { node, watch, update: update.clone(), next };
        if self.stalled(node, again) {
            self.watches[at].busy = true;
            return Ok(());
        }
        let which = self.watches[at].which;
        (self.watches[at].from, self.watches[at].busy) = (next, false);
        self.seen_index = 0;
        let torch = matches!(self.nodes[node].brain, Brain::Torch(_));
        if torch || matches!(update, Update::Failed | Update::Cleared) {
            self.watches.remove(at);
        }
        if self.loud {
            println!("{:>9.3} {node} sees {update:?}", self.now.as_secs_f64());
        }
        let now = self.now;
        let process = &mut self.nodes[node];
        match &mut process.brain {
            Brain::Ours(machine) => machine.handle_update(now, which, update),
            Brain::Torch(torch) => {
                process.wake += 1;
                process.wakes_at = None;
                let ask = torch.wake();
                return self.torch(node, ask);
            }
        }
        self.drain(node)
    }

    /// Does what a node of PyTorch's asks for.
    fn torch(&mut self, node: usize, ask: Ask) -> Result<(), String> {
        self.count += 1;
        let id = self.count;
        match ask {
            Ask::Send(request) => {
                if matches!(request, Request::CreateRecord { .. }) {
                    self.truth.cause();
                }
                self.nodes[node].open.insert(id);
                let keeps = match (&request, &self.nodes[node].brain) {
                    (Request::WriteKeepAlive(place), Brain::Torch(_)) => Some(*place),
                    _ => None,
                };
                if let Some(place) = keeps {
                    self.schedule(self.now + torch::RENEWS, Event::Renew { node, place });
                }
                return self.send(node, id, Message::Request(request));
            }
            Ask::Compare { old, new, ttl } => {
                self.nodes[node].open.insert(id);
                return self.send(node, id, Message::Compare { old, new, ttl });
            }
            Ask::Watch { keys, from, until } => {
                self.watch(node, WatchId::Record, keys, from);
                if let Some(until) = until {
                    self.wake_at(node, until);
                }
            }
            Ask::Sleep(time) => self.wake_at(node, self.now + time.max(Duration::from_millis(100))),
            Ask::Met { place, world } => {
                self.truth.meets(node, place, world, self.plan.min..=self.plan.max)?;
                self.nodes[node].life = Life::Met(place);
                self.wake_at(node, self.now + Duration::from_secs(1));
            }
            Ask::Closed => self.nodes[node].life = Life::Over,
            Ask::Dies => {
                self.kill(node);
                let back = self.now + self.random_time(Duration::from_secs(3));
                self.schedule(back, Event::Fault(Fault::Start { torch: true }));
            }
        }
        Ok(())
    }

    /// The thread of a node of PyTorch's, which ends with the first error.
    fn renew(&mut self, node: usize, place: Place) {
        if self.nodes[node].life == Life::Dead || self.stalled(node, Event::Renew { node, place }) {
            return;
        }
        let Brain::Torch(torch) = &mut self.nodes[node].brain else { return };
        if torch.keeps != Some(place) {
            return;
        }
        let reaches = self.now >= self.down_until && self.nodes[node].cut_until <= self.now;
        let request = Request::RenewKeepAlive(place);
        let renewed =
            reaches && matches!(self.server.serve(self.now, None, &request), Ok(Reply::Done { .. }));
        if renewed {
            self.schedule(self.now + torch::RENEWS, Event::Renew { node, place });
        } else {
            self.truth.cause();
        }
    }

    fn kill(&mut self, node: usize) {
        self.truth.cause();
        self.nodes[node].life = Life::Dead;
        self.nodes[node].open.clear();
        self.nodes[node].wake += 1;
        self.watches.retain(|watch| watch.node != node);
    }

    fn is_living(&self, node: usize) -> bool {
        matches!(self.nodes[node].life, Life::Going | Life::Met(_))
    }

    /// Those who live and can be expected to meet. A node of PyTorch's that works on in a version that is over never
    /// learns it.
    fn living(&self) -> Vec<&Process> {
        let version = self.server.record().filter(|record| record.status == Status::Final);
        let version = version.and_then(|record| record.version);
        let zombie = |node: &Process| match (&node.brain, node.life) {
            (Brain::Torch(_), Life::Met(place)) => Some(place.version) != version,
            _ => false,
        };
        let nodes = self.nodes.iter();
        nodes.filter(|node| matches!(node.life, Life::Going | Life::Met(_)) && !zombie(node)).collect()
    }

    /// Whether all is as it should be.
    fn is_well(&self) -> bool {
        let living = self.living();
        if self.server.record().is_some_and(|record| record.status == Status::Closed) {
            return living.is_empty();
        }
        // Too few to meet wait for more.
        let waits = |node: &&Process| node.life == Life::Going;
        self.is_steady() || living.len() < self.plan.min && living.iter().all(waits)
    }

    /// Whether a group is whole, and everybody in it who can.
    fn is_steady(&self) -> bool {
        let away = |node: &Process| node.stalled_until > self.now || node.cut_until > self.now;
        // Versions of two histories have the same numbers for a while.
        let two_histories = self.lost_at.is_some_and(|at| self.now < at + LOSS_SHOWS);
        if !self.is_up() || two_histories || self.nodes.iter().any(away) {
            return false;
        }
        let Some(record) = self.server.record() else { return false };
        let Some(version) = record.version else { return false };
        let living = self.living();
        let met = living.iter().filter_map(|node| match node.life {
            Life::Met(place) => Some(place),
            _ => None,
        });
        let kept = (0..record.joined()).all(|rank| self.server.is_kept(Place { version, rank }));
        record.status == Status::Final
            && record.waiting == Some(0)
            && kept
            && !living.iter().any(|node| node.told && node.life != Life::Going)
            && met.clone().all(|place| place.version == version)
            && met.count() == living.len().min(self.plan.max)
            && record.joined() == living.len().min(self.plan.max)
    }

    /// Once nothing goes wrong any more, those who live meet.
    fn judge_the_end(&self) -> Result<(), String> {
        if self.is_well() {
            return Ok(());
        }
        let living = self.living();
        let at_work = living.iter().filter(|node| matches!(node.life, Life::Met(_))).count();
        let record = self.server.record();
        Err(format!("{at_work} of {} living nodes are at work; record: {record:?}", living.len()))
    }

    /// Puts an event off while its node is stalled.
    fn stalled(&mut self, node: usize, event: Event) -> bool {
        let until = self.nodes[node].stalled_until;
        if until > self.now && self.nodes[node].life != Life::Dead {
            self.schedule(until, event);
            return true;
        }
        false
    }

    fn random_time(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.random.f64())
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.count += 1;
        self.queue.push(Reverse(Scheduled(at, self.count, event)));
    }
}
