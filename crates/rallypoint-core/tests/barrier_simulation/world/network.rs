//! The way of a request to the server and back, and of what happens there to those who watch it.

use std::time::Duration;

use rallypoint_core::barrier::{Ending, Failure, Reply, Request, Status, Update, WatchId, Watched};

use super::{Brain, Event, Fault, LONG_POLL, Life, Message, PATIENCE, SPIN, Seen, Times, Watch, World};
use crate::plan::Bug;

impl World {
    pub(super) fn send(&mut self, node: usize, id: u64, message: Message) -> Result<(), String> {
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
        // After a loss two of PyTorch's nodes can wait out the last call of one version. Each writes the record whenever it
        // changes, and so whenever the other has.
        let outdone = self.truth.history() > 0 && matches!(process.brain, Brain::Torch(_));
        if process.second.1 > SPIN && self.plan.max <= 12 && !outdone {
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
        let at = self.now + PATIENCE;
        let seen = Seen { at, ..self.seen() };
        self.schedule(at, Event::Answer { node, id, reply: in_vain, seen });
        if let Some((_, _, still_arrives)) =
            self.plan.crash_at.filter(|(who, when, _)| *who == node && *when == sent)
        {
            (arrives, heard) = (still_arrives, false);
            self.kill(node);
            self.schedule(self.now + Duration::from_secs(1), Event::Fault(Fault::Start { torch: false }));
        }
        let life = self.lives;
        if arrives {
            let sent = self.now;
            self.schedule(self.now + travels, Event::Arrive { node, id, message, heard, times, sent, life });
        }
        Ok(())
    }

    pub(super) fn arrive(
        &mut self,
        node: usize,
        id: u64,
        message: Message,
        heard: bool,
        times: Times,
        sent: Duration,
    ) -> Result<(), String> {
        if !self.is_up() {
            return Ok(());
        }
        self.truth.decided(sent);
        let name = self.nodes[node].name.clone();
        let name = matches!(self.nodes[node].brain, Brain::Ours(_)).then_some(name.as_str());
        let request = match &message {
            Message::Request(request) => Some(request.clone()),
            Message::Compare { old, .. } if self.server.record() != Some(old) => None,
            Message::Compare { new, ttl, .. } => {
                let Ok(Reply::Record(view)) = self.server.serve(self.now, None, &Request::ReadRecord) else {
                    return Ok(());
                };
                let Some(over) = view.record else { return Ok(()) };
                Some(match new {
                    Some(record) => Request::SwapRecord { record: record.clone(), over, ttl: *ttl },
                    None => Request::DeleteRecord { over },
                })
            }
        };
        let reply = match request {
            None => Ok(Reply::Refused),
            Some(request) => {
                self.acts = Some(node);
                let unseen = match &request {
                    Request::SwapRecord { over, .. } => {
                        self.server.record().filter(|there| **there != over.0)
                    }
                    _ => None,
                };
                let unseen = unseen.cloned();
                let sets_up = matches!(&request, Request::CreateRecord { record, .. } if record.status == Status::Setup);
                let publishes = matches!(&request, Request::SwapRecord { record, over, .. }
                    if record.status == Status::Joinable && over.0.status == Status::Setup);
                let reply = self.carry_out(name, request);
                if let Ok(Reply::Done { .. }) = &reply {
                    if let Some(unseen) = unseen {
                        return Err(format!(
                            "node {node} wrote over a record that it had not seen: {unseen:?}"
                        ));
                    }
                    if sets_up {
                        self.set_up_by = Some(node);
                    }
                    if publishes {
                        self.check_publication(node)?;
                    }
                }
                reply
            }
        };
        let reply = match (times, reply) {
            (Times::Again, Ok(Reply::Refused)) => Err(Failure::Unknown),
            (_, reply) => reply,
        };
        if times == Times::Twice {
            // The first try's reply was lost, and of a refusal nobody knows what it means.
            let life = self.lives;
            let again = self.now + self.random_time(Duration::from_secs(2));
            self.schedule(again, Event::Arrive { node, id, message, heard, times: Times::Again, sent, life });
            return Ok(());
        }
        if heard && self.nodes[node].cut_until <= self.now {
            let travels = Duration::from_micros(self.random.u64(200..5_000));
            let seen = self.seen();
            self.schedule(self.now + travels, Event::Answer { node, id, reply, seen });
        }
        Ok(())
    }

    /// What a node of ours sets up no other one publishes. A late write of one of PyTorch's nodes would bring back the number
    /// of a version that is over.
    fn check_publication(&self, node: usize) -> Result<(), String> {
        let ours = |other: &usize| *other != node && matches!(self.nodes[*other].brain, Brain::Ours(_));
        match self.set_up_by.filter(ours) {
            Some(other) => {
                Err(format!("node {node} published its version over what node {other} had set up"))
            }
            None => Ok(()),
        }
    }

    fn seen(&self) -> Seen {
        Seen { at: self.now, history: self.truth.history(), folder: self.server.has_run() }
    }

    pub(super) fn carry_out(&mut self, name: Option<&str>, request: Request) -> Result<Reply, Failure> {
        let request = match (self.plan.bug, request) {
            (Some(Bug::ForgetsToRenew), Request::RenewKeepAlive(_)) => {
                return Ok(Reply::Done { index: 0 });
            }
            (Some(Bug::OverlooksTheEndOfTheFolder), Request::FindRun) => return Ok(Reply::Run(true)),
            (Some(Bug::DoesNotCompare), Request::SwapRecord { record, ttl, over }) => {
                let Ok(Reply::Record(view)) = self.server.serve(self.now, None, &Request::ReadRecord) else {
                    return Err(Failure::Unknown);
                };
                Request::SwapRecord { record, ttl, over: view.record.unwrap_or(over) }
            }
            (_, request) => request,
        };
        let renews = matches!(request, Request::RenewKeepAlive(_));
        let name = name.filter(|_| self.plan.bug != Some(Bug::RenewsAnothers) || !renews);
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

    pub(super) fn watch(&mut self, node: usize, which: WatchId, keys: Watched, from: u64) {
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

    pub(super) fn tell_watches(&mut self) {
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
                (Some(Bug::MissesClears), Update::Cleared)
                | (Some(Bug::MissesTheEndOfTheFolder), Update::FolderGone) => continue,
                (Some(Bug::TakesExpiryForLeaving), Update::Gone { ending, .. }) => *ending = Ending::Deleted,
                _ => {}
            }
            let repeats = self.plan.bug == Some(Bug::RepeatsUpdates);
            let (node, id, next) = (watch.node, watch.id, if repeats { watch.from } else { next });
            self.watches[at].busy = true;
            let travels = Duration::from_micros(self.random.u64(200..5_000));
            let at = self.now;
            self.schedule(at + travels, Event::Tell { node, watch: id, update, next, at });
        }
    }

    pub(super) fn tell(&mut self, node: usize, watch: u64, update: Update, next: u64) -> Result<(), String> {
        let Some(at) = self.watches.iter().position(|one| one.id == watch) else { return Ok(()) };
        if self.nodes[node].life == Life::Dead {
            self.watches.remove(at);
            return Ok(());
        }
        let again = Event::Tell { node, watch, update: update.clone(), next, at: self.learned };
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
        match &update {
            Update::Record(view) => self.saw(node, view),
            Update::FolderGone => self.nodes[node].folder_gone_in = self.truth.history(),
            _ => {}
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
}
