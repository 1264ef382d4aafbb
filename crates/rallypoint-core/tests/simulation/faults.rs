//! What can go wrong with processes and with etcd.

use std::time::Duration;

use rallypoint_core::round::{Op, Request, Txn};

use crate::check::{SCRIBBLE, Violation};
use crate::network::{LATEST, TIMEOUT, Weather};
use crate::process::{Phase, REACTION};
use crate::world::{Step, World};

/// How etcd loses data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Loss {
    pub(crate) empty: bool,
    pub(crate) overtakes: bool,
    pub(crate) compacted: bool,
}

impl World {
    /// A process ends without a word.
    pub(crate) fn crash(&mut self, index: usize) {
        self.trace(|| format!("{} crashes", self.name(index)));
        self.cause();
        self.processes[index].alive = false;
        self.processes[index].phase = Phase::Over;
    }

    /// A process handles nothing for a while, and then all of it.
    pub(crate) fn stall(&mut self, index: usize, time: Duration) {
        self.trace(|| format!("{} stalls for {time:?}", self.name(index)));
        let process = &mut self.processes[index];
        process.stalled_until = process.stalled_until.max(self.now + time);
        self.harm(index, self.now + time);
    }

    /// Something happens to a process until then, for which it may be taken for dead, and the group may meet again.
    fn harm(&mut self, index: usize, until: Duration) {
        self.cause();
        let harmed_until = &mut self.processes[index].harmed_until;
        *harmed_until = until.max(*harmed_until);
    }

    /// A process and etcd do not reach each other for a while.
    pub(crate) fn cut(&mut self, index: usize, time: Duration) {
        self.trace(|| format!("{} is cut off for {time:?}", self.name(index)));
        let process = &mut self.processes[index];
        process.cut_until = process.cut_until.max(self.now + time);
        self.harm(index, self.now + time);
        if self.rng.bool() {
            self.break_streams(index);
        }
    }

    /// etcd answers nothing for a while: it is stopped and goes on, or ends and is started again.
    pub(crate) fn etcd_away(&mut self, time: Duration, restarted: bool) {
        if self.now < self.etcd_away_until {
            return;
        }
        self.trace(|| format!("etcd is away for {time:?}, restarted: {restarted}"));
        self.cause();
        self.etcd_away_until = self.now + time;
        self.outages.push((self.now, self.etcd_away_until));
        self.etcd_restarts = restarted;
        // Who was in trouble is so still when etcd is back: meanwhile nobody can get out of it.
        for index in 0..self.processes.len() {
            if self.is_harmed(index) {
                self.harm(index, self.now + time);
            }
        }
        for index in 0..self.processes.len() {
            // A connection outlives a short stop, and there is nothing to make anew.
            let late = self.rng.bool() && (restarted || time >= TIMEOUT);
            let pause = self.up_to(Duration::from_millis(800));
            self.processes[index].reconnect = if late { pause } else { Duration::ZERO };
        }
        self.after(time, Step::Resume { restarted });
    }

    pub(crate) fn resume(&mut self, restarted: bool) -> Result<(), Violation> {
        self.trace(|| "etcd is back".to_owned());
        self.cause();
        if restarted {
            self.etcd.extend_leases(self.now);
            (0..self.processes.len()).for_each(|index| self.break_streams(index));
        } else if self.rng.bool() {
            // Leases end before a single refresh is heard. Else it is a race.
            let mut overdue = self.etcd.overdue(self.now);
            self.rng.shuffle(&mut overdue);
            for lease in overdue {
                self.expire(lease)?;
            }
        }
        Ok(())
    }

    /// etcd looks twice a second which leases are over, and ends them one after the other.
    pub(crate) fn tick(&mut self) {
        self.after(Duration::from_millis(500), Step::Tick);
        self.look_around();
        if self.now < self.etcd_away_until {
            return;
        }
        for lease in self.etcd.overdue(self.now) {
            let delay = self.up_to(Duration::from_millis(400));
            self.after(delay, Step::Expire { lease });
        }
    }

    pub(crate) fn expire(&mut self, lease: i64) -> Result<(), Violation> {
        if self.now < self.etcd_away_until || !self.etcd.overdue(self.now).contains(&lease) {
            return Ok(());
        }
        self.trace(|| format!("  etcd ends lease {lease}"));
        self.cause();
        self.etcd.revoke(lease);
        self.publish()
    }

    /// etcd ends a lease that was refreshed in time, as it may when its leader was stopped and goes on. Its owner lives.
    pub(crate) fn end_lease(&mut self, index: usize) -> Result<(), Violation> {
        let may_end = |lease: &i64| self.etcd.may_end_too_early(self.now, *lease);
        if let Some(lease) =
            self.processes[index].kept.filter(may_end).filter(|_| self.now >= self.etcd_away_until)
        {
            self.trace(|| format!("  etcd ends lease {lease} of {} too early", self.name(index)));
            self.etcd.revoke(lease);
            self.lag(index, self.processes[index].lag);
        }
        self.publish()
    }

    /// What the watches of a process tell comes late. If its key is gone, it does not hear in time that it is missed.
    pub(crate) fn lag(&mut self, index: usize, lag: Duration) {
        let process = &mut self.processes[index];
        process.lag = lag;
        if !lag.is_zero() && !process.kept.is_some_and(|lease| self.etcd.has_keys(lease)) {
            self.harm(index, self.now + lag);
        }
    }

    /// Somebody who is no node writes at a key, without a lease.
    pub(crate) fn scribble(&mut self, key: String) -> Result<(), Violation> {
        self.overwrite(key, SCRIBBLE.to_owned())
    }

    /// Somebody who is no node writes there, without a lease.
    pub(crate) fn overwrite(&mut self, key: String, value: String) -> Result<(), Violation> {
        self.trace(|| format!("somebody writes at {key}"));
        let put = Op::Put { key, value, lease: 0 };
        let txn = Request::Txn(Txn { then: vec![put], ..Txn::default() });
        let written = self.etcd.apply(self.now, &txn);
        assert!(written.is_ok(), "the model writes");
        self.check.by_others.insert(self.etcd.revision());
        self.publish()
    }

    /// etcd forgets its history up to some revision.
    pub(crate) fn compact(&mut self) {
        let revision = self.etcd.revision();
        let revision = self.rng.i64((revision - 20).max(0)..=revision);
        self.trace(|| format!("etcd compacts up to {revision}"));
        self.etcd.compact(revision);
    }

    /// etcd loses data, and comes back as what it was at the last snapshot, or empty. Others may have written since, so
    /// that its revision is past the old one already; and nothing of before may be left to be watched.
    pub(crate) fn lose_data(&mut self, loss: Loss) -> Result<(), Violation> {
        let (before, now) = (self.etcd.revision(), self.now);
        let kept = if loss.empty { None } else { self.backup.clone() };
        self.trace(|| format!("etcd loses data: {loss:?}, {} is kept", kept.is_some()));
        self.cause();
        self.check.now = now;
        self.etcd.lose_data(now, kept);
        let after = self.etcd.revision();
        if loss.overtakes {
            self.etcd.advance(before - after + 5, loss.compacted);
        }
        self.check.lost_data(&self.etcd)?;
        for index in 0..self.processes.len() {
            self.break_streams(index);
            // Its key may be among what is lost.
            self.lag(index, self.processes[index].lag);
        }
        Ok(())
    }

    /// Somebody takes a snapshot of etcd.
    pub(crate) fn back_up(&mut self) {
        self.backup = Some(self.etcd.clone());
    }

    /// A process's program does nothing for a while: it hangs, or is busy.
    pub(crate) fn hang(&mut self, index: usize, time: Duration) {
        self.trace(|| format!("{}'s program hangs for {time:?}", self.name(index)));
        let process = &mut self.processes[index];
        process.hung_until = process.hung_until.max(self.now + time);
    }

    /// What a process asks for is refused for a while.
    pub(crate) fn deny(&mut self, index: usize, time: Duration) {
        self.trace(|| format!("{} is denied everything for {time:?}", self.name(index)));
        if self.rng.bool() {
            self.break_streams(index);
        }
        let process = &mut self.processes[index];
        process.denied_until = process.denied_until.max(self.now + time);
        process.was_denied = true;
        self.harm(index, self.now + time);
    }

    /// What anybody asks for is refused for a while: the role of their user is gone. That is nobody's death.
    pub(crate) fn deny_all(&mut self, time: Duration) {
        self.trace(|| format!("all are denied everything for {time:?}"));
        self.cause();
        self.denied_until = self.denied_until.max(self.now + time);
        self.processes.iter_mut().for_each(|process| process.was_denied = true);
    }

    /// etcd has no space for a while.
    pub(crate) fn fill(&mut self, time: Duration) {
        self.trace(|| format!("etcd is full for {time:?}"));
        self.full_until = self.now + time;
        // A lease that ends meanwhile cannot be replaced.
        (0..self.processes.len()).for_each(|index| self.harm(index, self.now + time));
    }

    /// The weather clears up, and the faults under way come to their end.
    pub(crate) fn heal(&mut self) -> Result<(), Violation> {
        self.trace(|| "the weather clears up".to_owned());
        if self.was_late {
            // What was sent before may be carried out as late as that.
            self.rough_until = self.now + LATEST;
        }
        self.weather = Weather::default();
        let mut end = self.etcd_away_until.max(self.full_until).max(self.denied_until);
        let now = self.now;
        for process in self.processes.iter_mut().filter(|process| process.alive) {
            (process.hung_until, process.lag) = (process.hung_until.min(now), Duration::ZERO);
            end = end.max(process.cut_until).max(process.stalled_until).max(process.denied_until);
            process.crash = None;
            process.reaction = REACTION;
        }
        self.run_while(end, |_| true).map(|_| ())
    }
}
