//! Nodes, a network that delays, loses and reorders, and what must hold whatever it does.

mod events;
mod faults;
mod network;
mod pytorch;
mod state;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use rallypoint_core::barrier::{
    Change, KEEP_ALIVE_TTL, Node, NodeEvent, Output, Reply, Request, Settings, Status, Update, VersionRank,
    View, WatchId, Watched,
};

pub(crate) use events::Fault;
use events::{Event, Message, Seen, Times};

use crate::plan::Plan;
use crate::server::{Deed, Server};
use crate::torch::Torch;
use crate::truth::{Looked, Truth, Who};

/// When a node gives up on a reply.
const PATIENCE: Duration = Duration::from_millis(3_300);
/// When a watch is told that its index has not come about.
const LONG_POLL: Duration = Duration::from_secs(20);
/// How long all must have been well at the end: longer than what is forgotten shows.
const WELL: Duration = Duration::from_secs(14);
/// No node sends more requests in a second: a version takes a node about twenty, and two can follow each other.
const SPIN: u32 = 90;
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
    Met(VersionRank),
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
    /// The latest version that it has seen.
    seen: Option<u64>,
    /// In which history it met.
    met_in: u32,
    /// In which history it first saw the members of the group it met.
    listed_in: Option<u32>,
    /// In which history it was told that the folder ended.
    folder_gone_in: u32,
    /// When the folder was there, as it was told last; nothing if it was not.
    folder_at: Option<Duration>,
    /// The keep-alives that a node of PyTorch's has written, and in which history.
    wrote: Vec<(VersionRank, u32)>,
}

/// When something happens, in which order, and where it is kept: what is sorted is small.
type Scheduled = (Duration, u64, usize);

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
    events: Vec<Option<Event>>,
    /// Places among the events that are free.
    free: Vec<usize>,
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
    /// Whose request is being carried out.
    acts: Option<usize>,
    /// Who set up a version last, if that is known.
    set_up_by: Option<usize>,
    /// Of which history the reply is that was heard last.
    hears: u32,
    /// When that was so which a node does something about.
    learned: Duration,
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
    /// Says what happens.
    pub(crate) loud: bool,
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let mut world = World {
            random: fastrand::Rng::with_seed(seed),
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            count: 0,
            server: Server::new(plan.history, plan.run_ttl),
            down_until: Duration::ZERO,
            up_since: Duration::ZERO,
            down_for: Duration::ZERO,
            lost_at: None,
            folder_ended: false,
            lives: 0,
            watches: Vec::new(),
            acts: None,
            set_up_by: None,
            hears: 0,
            learned: Duration::ZERO,
            seen_index: 0,
            nodes: Vec::new(),
            truth: Truth::default(),
            requests: 0,
            met_at: Duration::ZERO,
            told: Vec::new(),
            well_since: None,
            ticks_at: None,
            loud: false,
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

    /// Lets this happen at that time, in a story.
    pub(crate) fn fault_at(&mut self, seconds: u64, fault: Fault) {
        self.schedule(Duration::from_secs(seconds), Event::Fault(fault));
    }

    /// Runs it to its end; what was wrong, if something was.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        while let Some(Reverse((at, _, place))) = self.queue.pop() {
            if at > self.plan.end {
                break;
            }
            self.free.push(place);
            let Some(event) = self.events[place].take() else { continue };
            (self.now, self.learned) = (at, at);
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
        let by = self.acts.take();
        let seen = by.and_then(|node| self.nodes[node].seen);
        for deed in self.server.deeds() {
            if matches!(deed, Deed::FolderEnded(_)) {
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
            self.truth.deed(now, self.up_since, deed, seen, blameless)?;
        }
        Ok(())
    }

    fn is_up(&self) -> bool {
        self.now >= self.down_until
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Tick => self.ticks_at = None,
            Event::Second => {
                let version = self.server.record().and_then(|record| record.version);
                self.truth.seen_steady(self.now, version.filter(|_| self.is_steady()));
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
            Event::Arrive { node, id, message, heard, times, sent, .. } => {
                return self.arrive(node, id, message, heard, times, sent);
            }
            Event::Answer { node, id, reply, seen } => {
                if self.nodes[node].life == Life::Dead || !self.nodes[node].open.contains(&id) {
                    return Ok(());
                }
                if self.stalled(node, Event::Answer { node, id, reply: reply.clone(), seen }) {
                    return Ok(());
                }
                self.nodes[node].open.remove(&id);
                (self.hears, self.learned) = (seen.history, seen.at);
                match &reply {
                    Ok(Reply::Record(view)) => self.saw(node, view),
                    Ok(Reply::Members { .. }) => {
                        self.nodes[node].listed_in.get_or_insert(seen.history);
                    }
                    Ok(Reply::Run(_)) => self.nodes[node].folder_at = seen.folder.then_some(seen.at),
                    _ => {}
                }
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
            Event::Tell { node, watch, update, next, at } => {
                self.learned = at;
                return self.tell(node, watch, update, next);
            }
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
                    let (now, time) = (self.now, self.plan.patience);
                    if let Brain::Ours(machine) = &mut self.nodes[node].brain {
                        machine.join(now, time);
                    }
                    self.drain(node)?;
                }
            }
            Event::Renew { node, place } => self.renew(node, place),
            Event::Fault(fault) => return self.fault(fault),
        }
        Ok(())
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
            seen: None,
            met_in: 0,
            listed_in: None,
            folder_gone_in: 0,
            folder_at: None,
            wrote: Vec::new(),
        });
        let (now, time) = (self.now, self.plan.patience);
        match &mut self.nodes[node].brain {
            Brain::Ours(machine) => machine.join(now, time),
            Brain::Torch(torch) => {
                let ask = torch.begin();
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
                    self.send(node, id, Message::Request(*request))?;
                }
                Some(Output::Watch { id, keys, from }) => self.watch(node, id, keys, from),
                Some(Output::Unwatch(which)) => {
                    self.watches.retain(|watch| watch.node != node || watch.which != which);
                }
                Some(Output::Event(event)) => self.event(node, event)?,
            }
        }
        let now = self.now;
        let Brain::Ours(machine) = &mut self.nodes[node].brain else { return Ok(()) };
        // What it would do now it has done: nothing may wait for the next word of somebody else.
        if machine.poll_timeout().is_none_or(|at| at > now) {
            machine.handle_timeout(now);
            while let Some(output) = machine.poll_output() {
                if !matches!(output, Output::Event(NodeEvent::Progress { .. })) {
                    return Err(format!("node {node} would have waited with {output:?}"));
                }
            }
        }
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
                self.truth.meets(self.who(node), place, world, allowed)?;
                (self.nodes[node].life, self.nodes[node].told) = (Life::Met(place), false);
                self.nodes[node].listed_in = None;
                self.met_at = self.now;
            }
            NodeEvent::Changed(change) => {
                let Life::Met(place) = self.nodes[node].life else { return Ok(()) };
                let lives = |node: usize| matches!(self.nodes[node].life, Life::Met(_) | Life::Going);
                let taken = self.server.is_taken(place, &self.nodes[node].name);
                let looked = Looked { at: self.learned, folder_at: self.nodes[node].folder_at };
                self.truth.told(self.now, looked, place, &change, taken, lives)?;
                self.nodes[node].told = true;
                if matches!(change, Change::Closed { .. }) {
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
            NodeEvent::OutOfTime { .. } => {
                self.truth.cause();
                if let Brain::Ours(machine) = &mut self.nodes[node].brain {
                    machine.leave(self.now);
                }
                self.nodes[node].leaves = true;
            }
            NodeEvent::Refused { .. } | NodeEvent::Left => self.nodes[node].life = Life::Over,
            NodeEvent::Recovered(_) | NodeEvent::Progress { .. } | NodeEvent::Closed => {}
        }
        Ok(())
    }

    fn who(&self, node: usize) -> Who {
        Who { node, torch: matches!(self.nodes[node].brain, Brain::Torch(_)), history: self.hears }
    }

    fn saw(&mut self, node: usize, view: &View) {
        let seen = view.record.as_ref().and_then(|(record, _)| record.version);
        self.nodes[node].seen = self.nodes[node].seen.max(seen);
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
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.queue.push(Reverse((at, self.count, place)));
    }
}
