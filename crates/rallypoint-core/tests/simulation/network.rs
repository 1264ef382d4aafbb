//! What lies between the processes and etcd: messages that are slow, late or lost, and streams that are cut.

use std::time::Duration;

use rallypoint_core::round::{Entry, Event, Failure, Op, Request, Txn, Update, WatchId, Watched};

use crate::check::{Violation, promise};
use crate::process::{Watch, short};
use crate::world::{Step, World};

/// A process waits this long for a reply.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3);
/// A late request is carried out up to this long after it was sent.
pub(crate) const LATEST: Duration = Duration::from_secs(15);

/// A slow message takes up to this long.
pub(crate) const SLOW: Duration = Duration::from_secs(1);

/// How likely it is that something happens to a message.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weather {
    /// It takes up to a second.
    pub(crate) slow: f64,
    /// It is lost.
    pub(crate) lost: f64,
    /// It is carried out when the process has given up on it.
    pub(crate) late: f64,
    /// What a watch would have told is no longer to be had, and it tells how things are.
    pub(crate) snapshot: f64,
    /// It is carried out twice, and only the second answer is heard.
    pub(crate) twice: f64,
    /// Some programs are slow.
    pub(crate) busy: bool,
}

impl Weather {
    /// Whether messages are lost or late.
    pub(crate) fn is_rough(&self) -> bool {
        self.slow + self.lost + self.late > 0.0
    }
}

/// A process that makes more requests than this in a second spins.
const SPIN: u32 = 120;
/// Requests with which a node, or a leader, looks afresh.
const LOOKS_AFRESH: u32 = 4;
/// A watch that etcd refuses is asked for again after this long, at most.
const REFUSED: Duration = Duration::from_secs(1);

impl World {
    fn chance(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.rng.f64() < chance
    }

    fn delay(&mut self) -> Duration {
        if self.chance(self.weather.slow) {
            return self.up_to(SLOW);
        }
        Duration::from_micros(200 + self.rng.u64(0..5_000))
    }

    /// A process sends a request.
    pub(crate) fn send(&mut self, from: usize, id: u64, request: Request) -> Result<(), Violation> {
        self.processes[from].requests += 1;
        let second = self.now.as_secs();
        let (window, count) = &mut self.processes[from].this_second;
        *count = if *window == second { *count + 1 } else { 1 };
        *window = second;
        let count = *count;
        promise!(10, count <= SPIN, "{} makes {count} requests in a second: {request:?}", self.name(from));
        if let Some(crash) = self.processes[from].crash
            && crash.lost
            && self.processes[from].requests == crash.request
        {
            self.trace(|| format!("{} dies before request #{id}: {request:?}", self.name(from)));
            self.crash(from);
            return Ok(());
        }
        self.trace(|| format!("{} > #{id} {}", self.name(from), short(&request)));
        self.processes[from].pending.insert(id);
        let Some(request) = self.planted.alter_request(request) else { return Ok(()) };
        self.after(TIMEOUT, Step::Answer { to: from, id, reply: Err(Failure::Unknown) });
        let cut = self.processes[from].cut_until;
        let mut at = self.now + self.delay();
        if self.now < cut {
            if self.chance(0.5) {
                return Ok(());
            }
            at = cut + self.delay();
        } else if self.chance(self.weather.lost) {
            self.trace(|| format!("{} #{id} is lost", self.name(from)));
            return Ok(());
        } else if self.chance(self.weather.late) {
            at += self.up_to(LATEST);
        }
        let history = self.etcd.history;
        self.at(at, Step::Arrive { from, id, request, history });
        for _ in 1..self.planted.sends() {
            self.processes[from].this_second.1 += 1;
        }
        Ok(())
    }

    pub(crate) fn arrive(
        &mut self,
        from: usize,
        id: u64,
        request: Request,
        history: u64,
    ) -> Result<(), Violation> {
        let at = self.now.max(self.reached_again(from)) + self.delay();
        if history != self.etcd.history || (self.now < self.etcd_away_until && self.etcd_restarts) {
            // No connection outlives the server, and its end is noticed once there is another.
            self.at(at, Step::Answer { to: from, id, reply: Err(Failure::Unknown) });
            return Ok(());
        }
        if self.now < self.reached_again(from) {
            self.at(at, Step::Arrive { from, id, request, history });
            return Ok(());
        }
        let reply = if let Some(refusal) = self.refuses(from, &request) {
            self.trace(|| format!("  etcd refuses #{id} of {}", self.name(from)));
            if !self.planted.answers_refusals() {
                self.processes[from].pending.remove(&id);
                return Ok(());
            }
            Err(refusal)
        } else {
            self.trace(|| format!("  etcd carries out #{id} of {}", self.name(from)));
            let first = self.etcd.apply(self.now, &request);
            if self.chance(self.weather.twice) { self.etcd.apply(self.now, &request) } else { first }
        };
        let process = &self.processes[from];
        let dies = process.crash.is_some_and(|crash| !crash.lost && id >= crash.request);
        self.publish()?;
        if dies && self.processes[from].alive {
            self.trace(|| format!("{} dies after request #{id}", self.name(from)));
            self.crash(from);
        }
        if self.passes(from) {
            let delay = self.delay();
            self.after(delay, Step::Answer { to: from, id, reply });
        } else {
            self.trace(|| format!("{} the reply to #{id} is lost", self.name(from)));
        }
        Ok(())
    }

    /// When a process has a connection again after etcd was away: it may have waited for the next try.
    fn reached_again(&self, from: usize) -> Duration {
        self.etcd_away_until + self.processes[from].reconnect
    }

    /// Whether etcd refuses a request, for want of space or of a permission.
    fn refuses(&self, from: usize, request: &Request) -> Option<Failure> {
        let writes = |txn: &Txn| txn.then.iter().any(|op| !matches!(op, Op::Get(_) | Op::Range(_)));
        let full = match request {
            Request::Grant(_) => true,
            Request::Txn(txn) => writes(txn),
            Request::Renew(_) | Request::Revoke(_) | Request::Range(_) => false,
        };
        let asks = matches!(request, Request::Txn(_) | Request::Range(_));
        if asks && self.now < self.denied_until(from) {
            return Some(Failure::Denied);
        }
        (full && self.now < self.full_until).then_some(Failure::Refused)
    }

    /// Until when etcd refuses what a process asks for.
    pub(crate) fn denied_until(&self, of: usize) -> Duration {
        self.processes[of].denied_until.max(self.denied_until)
    }

    fn passes(&mut self, of: usize) -> bool {
        self.now >= self.processes[of].cut_until && !self.chance(self.weather.lost)
    }

    /// A process refreshes its lease.
    pub(crate) fn keep(&mut self, of: usize, lease: i64) {
        if self.processes[of].kept != Some(lease) {
            return;
        }
        if self.passes(of) {
            let delay = self.delay();
            let history = self.etcd.history;
            self.after(delay, Step::Refresh { from: of, lease, history });
        }
        self.keep_later(of, lease);
        self.processes[of].unanswered = true;
    }

    /// Three refreshes fit into a lease; one without an answer is tried again sooner.
    pub(crate) fn keep_later(&mut self, of: usize, lease: i64) {
        let third = self.setup.lease / 3;
        let most = if self.processes[of].unanswered { third.min(Duration::from_millis(500)) } else { third };
        let pause = most.mul_f64(0.9 + 0.1 * self.rng.f64());
        self.after(pause, Step::Keep { of, lease });
    }

    pub(crate) fn refresh(&mut self, from: usize, lease: i64, history: u64) {
        if history != self.etcd.history {
            return;
        }
        let at = self.reached_again(from);
        if self.now < at {
            if self.now >= self.etcd_away_until || !self.etcd_restarts {
                let delay = self.delay();
                self.at(at + delay, Step::Refresh { from, lease, history });
            }
            return;
        }
        // Who may not write the keys of a lease may not refresh it; one without keys he may. etcd 3.4 lets anybody.
        let denied = self.now < self.denied_until(from) && self.etcd.has_keys(lease) && !self.lax;
        let lives = if denied { Err(Failure::Denied) } else { self.etcd.renew(self.now, lease) };
        if self.passes(from) {
            let delay = self.delay();
            self.after(delay, Step::Refreshed { to: from, lease, lives });
        }
    }

    pub(crate) fn begin_watch(&mut self, index: usize, id: WatchId, keys: Watched, from: Option<i64>) {
        self.trace(|| format!("{} watches {keys:?} from {from:?}", self.name(index)));
        let (kind, key) = match &keys {
            Watched::Key(key) => (0, key),
            Watched::Prefix(prefix) => (1, prefix),
        };
        let watchers = self.watchers[kind].entry(key.clone()).or_default();
        if !watchers.contains(&(index, id)) {
            watchers.push((index, id));
        }
        let process = &mut self.processes[index];
        process.generations += 1;
        let generation = process.generations;
        let begun = from.is_some();
        let (scheduled, history, broken) = (false, self.etcd.history, false);
        *process.watch(id) = Some(Watch { generation, keys, next: from, begun, scheduled, history, broken });
        if begun {
            self.wake(index, id);
        } else {
            let delay = self.delay();
            self.after(delay, Step::Open { to: index, watch: id, generation });
        }
    }

    /// etcd hears of a watch that begins now.
    pub(crate) fn open(&mut self, to: usize, id: WatchId, generation: u64) -> Result<(), Violation> {
        let away = self.etcd_away_until.max(self.processes[to].cut_until);
        if self.now < away {
            let at = away + self.delay();
            self.at(at, Step::Open { to, watch: id, generation });
            return Ok(());
        }
        if self.now < self.denied_until(to) && self.has_watch(to, id, generation) {
            let at = self.denied_until(to).min(self.now + REFUSED) + self.delay();
            self.at(at, Step::Open { to, watch: id, generation });
            return self.watch_refused(to, id);
        }
        let (next, history) = (self.etcd.revision() + 1, self.etcd.history);
        let watch = self.processes[to].watch(id).as_mut();
        if let Some(watch) = watch.filter(|watch| watch.generation == generation) {
            (watch.next, watch.history) = (Some(next), history);
            self.wake(to, id);
        }
        Ok(())
    }

    fn has_watch(&mut self, of: usize, id: WatchId, generation: u64) -> bool {
        let process = &mut self.processes[of];
        process.alive && process.watch(id).as_ref().is_some_and(|watch| watch.generation == generation)
    }

    /// The streams of a process are cut: once it reaches etcd again, each watch reads afresh.
    pub(crate) fn break_streams(&mut self, index: usize) {
        for id in [WatchId::Group, WatchId::Rank, WatchId::Nodes] {
            if let Some(watch) = self.processes[index].watch(id).as_mut().filter(|watch| watch.next.is_some())
            {
                watch.broken = true;
                self.wake(index, id);
            }
        }
    }

    /// A watch may have something to say.
    pub(crate) fn wake(&mut self, index: usize, id: WatchId) {
        let lag = self.processes[index].lag;
        let delay = self.delay() + lag;
        let at = (self.now + delay).max(self.etcd_away_until).max(self.processes[index].cut_until);
        let process = &mut self.processes[index];
        if !process.alive {
            return;
        }
        let Some(watch) = process.watch(id) else { return };
        if !watch.scheduled && watch.next.is_some() {
            watch.scheduled = true;
            let generation = watch.generation;
            self.at(at, Step::Deliver { to: index, watch: id, generation });
        }
    }

    pub(crate) fn deliver(&mut self, to: usize, id: WatchId, generation: u64) -> Result<(), Violation> {
        let away = self.etcd_away_until.max(self.processes[to].cut_until);
        if self.now < away {
            let at = away + self.delay();
            self.at(at, Step::Deliver { to, watch: id, generation });
            return Ok(());
        }
        // A watch that was begun goes on telling whom it was for, whatever he may do by now. A new one is refused.
        let broken = self.processes[to].watch(id).as_ref().is_some_and(|watch| watch.broken);
        if broken && self.now < self.denied_until(to) && self.has_watch(to, id, generation) {
            let at = self.denied_until(to).min(self.now + REFUSED) + self.delay();
            self.at(at, Step::Deliver { to, watch: id, generation });
            return self.watch_refused(to, id);
        }
        let Some(mut watch) = self.processes[to].watch(id).take_if(|watch| watch.generation == generation)
        else {
            return Ok(());
        };
        watch.scheduled = false;
        let Some(next) = watch.next.filter(|_| watch.begun) else {
            watch.begun = true;
            *self.processes[to].watch(id) = Some(watch);
            self.wake(to, id);
            return self.update(to, id, Update::Events(Vec::new()));
        };
        // Mostly all there is, sometimes a part of it.
        let mut up_to = self.etcd.revision();
        if next < up_to && self.chance(0.2) {
            up_to = self.rng.i64(next..=up_to);
        }
        let cut = std::mem::take(&mut watch.broken) || watch.history != self.etcd.history;
        let afresh = cut && !self.planted.trusts_every_history();
        watch.history = self.etcd.history;
        let (update, next) = if afresh || self.chance(self.weather.snapshot) {
            (Some(self.etcd.snapshot(&watch.keys)), self.etcd.revision() + 1)
        } else {
            self.etcd.watch(&watch.keys, next, up_to)
        };
        watch.next = Some(next);
        *self.processes[to].watch(id) = Some(watch);
        if next <= self.etcd.revision() {
            self.wake(to, id);
        }
        let Some(update) = update else { return Ok(()) };
        let update = self.planted.alter_update(update, self.processes[to].is_in());
        if self.planted.loses_update(&mut self.rng) {
            self.trace(|| format!("{} is not told {update:?}", self.name(to)));
            return Ok(());
        }
        let process = &mut self.processes[to];
        process.received += size(&update);
        if matches!(update, Update::Snapshot { .. }) {
            // A stream that was cut makes its owner look afresh at everything.
            let (_, count) = &mut process.this_second;
            *count = count.saturating_sub(LOOKS_AFRESH);
        }
        match id {
            WatchId::Group => {
                if let Some(stale) = self.planted.stale_rank(process.rank.as_ref(), &update) {
                    self.update(to, WatchId::Rank, stale)?;
                }
            }
            WatchId::Rank => process.rank = last_of(&update),
            WatchId::Nodes => self.overlooked += u64::from(matches!(update, Update::Snapshot { .. })),
        }
        self.update(to, id, update)
    }
}

/// The key of a watch on one key, after this update.
fn last_of(update: &Update) -> Option<Entry> {
    match update {
        Update::Events(events) => match events.last() {
            Some(Event::Put(entry)) => Some(entry.clone()),
            _ => None,
        },
        Update::Snapshot { entries, .. } => entries.first().cloned(),
    }
}

fn size(update: &Update) -> usize {
    let entry = |entry: &Entry| entry.key.len() + entry.value.len();
    match update {
        Update::Events(events) => events
            .iter()
            .map(|event| match event {
                Event::Put(put) => entry(put),
                Event::Delete { key, .. } => key.len(),
            })
            .sum(),
        Update::Snapshot { entries, .. } => entries.iter().map(entry).sum(),
    }
}
