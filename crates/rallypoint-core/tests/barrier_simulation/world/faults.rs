//! What goes wrong, and what it does.

use std::time::Duration;

use super::{Brain, Event, Fault, GIVES_UP, LONG_POLL, Life, PATIENCE, World};

impl World {
    pub(super) fn draw_faults(&mut self) {
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
        for _ in 0..plan.losses {
            self.draw_loss(all);
        }
        faults(self, usize::from(plan.close), &|_| Fault::Close);
    }

    /// Half of the earlier states are of seconds before, so that the histories run side by side; and now and then a
    /// node sleeps through it, and goes by the history that it knew.
    fn draw_loss(&mut self, nodes: usize) {
        let at = Duration::from_secs(1) + self.random_time(self.plan.faults_until);
        let restored = self.random.bool();
        self.schedule(at, Event::Fault(Fault::Lose { restored }));
        let most = if self.random.bool() { Duration::from_secs(5) } else { at };
        let before = self.random_time(most);
        self.schedule(at.saturating_sub(before), Event::Fault(Fault::Snapshot));
        if self.random.usize(..3) == 0 {
            let (node, early) = (self.random.usize(..nodes), self.random_time(Duration::from_millis(20)));
            self.schedule(at.saturating_sub(early), Event::Fault(Fault::Stall(node)));
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) -> Result<(), String> {
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
                (self.lost_at, self.set_up_by) = (Some(self.now), None);
                self.lives += 1;
                self.schedule(self.now + GIVES_UP, Event::Fault(Fault::GiveUp));
                self.go_down(Duration::from_millis(500));
                let behind = self.now + LONG_POLL;
                for watch in self.watches.iter().map(|watch| watch.id).collect::<Vec<_>>() {
                    self.schedule(behind, Event::Unanswered { watch });
                }
            }
            Fault::GiveUp => {
                let in_vain = if self.is_well() { 0 } else { self.nodes.len() };
                for node in
                    (0..in_vain).filter(|node| self.nodes[*node].life == Life::Going).collect::<Vec<_>>()
                {
                    // PyTorch's code ends the process. It can be that only that ends its wait: for the next change of a
                    // version that is lost, or for one from an index on that the record's last change did not come to
                    // again.
                    let torch = matches!(self.nodes[node].brain, Brain::Torch(_));
                    self.fault(if torch { Fault::Crash(node) } else { Fault::Leave(node) })?;
                }
            }
            Fault::Close => {
                self.truth.cause();
                let at = self.random.usize(..self.nodes.len());
                let now = self.now;
                if let Brain::Ours(machine) = &mut self.nodes[at].brain {
                    machine.close(now, "enough");
                    self.drain(at)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn go_down(&mut self, time: Duration) {
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

    pub(super) fn kill(&mut self, node: usize) {
        self.truth.cause();
        self.nodes[node].life = Life::Dead;
        self.nodes[node].open.clear();
        self.nodes[node].wake += 1;
        self.watches.retain(|watch| watch.node != node);
    }
}
