//! What can go wrong with processes and with etcd.

use std::time::Duration;

use rallypoint_core::round::{Op, Reply, Request, RoundRecord, Txn};

use crate::check::Violation;
use crate::network::Weather;
use crate::process::Phase;
use crate::world::{Step, World};

impl World {
    /// A process ends without a word.
    pub(crate) fn crash(&mut self, index: usize) {
        self.trace(|| format!("{} crashes", self.name(index)));
        self.processes[index].alive = false;
        self.processes[index].phase = Phase::Over;
    }

    /// A process handles nothing for a while, and then all of it.
    pub(crate) fn stall(&mut self, index: usize, time: Duration) {
        self.trace(|| format!("{} stalls for {time:?}", self.name(index)));
        let process = &mut self.processes[index];
        process.stalled_until = process.stalled_until.max(self.now + time);
    }

    /// A process and etcd do not reach each other for a while.
    pub(crate) fn cut(&mut self, index: usize, time: Duration) {
        self.trace(|| format!("{} is cut off for {time:?}", self.name(index)));
        let process = &mut self.processes[index];
        process.cut_until = process.cut_until.max(self.now + time);
    }

    /// etcd answers nothing for a while: it is stopped and goes on, or ends and is started again.
    pub(crate) fn etcd_away(&mut self, time: Duration, restarted: bool) {
        if self.now < self.etcd_away_until {
            return;
        }
        self.trace(|| format!("etcd is away for {time:?}, restarted: {restarted}"));
        self.etcd_away_until = self.now + time;
        self.etcd_restarts = restarted;
        self.after(time, Step::Resume { restarted });
    }

    pub(crate) fn resume(&mut self, restarted: bool) -> Result<(), Violation> {
        self.trace(|| "etcd is back".to_owned());
        if restarted {
            self.etcd.extend_leases(self.now);
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
        self.etcd.revoke(lease);
        self.publish()
    }

    /// etcd forgets its history up to some revision.
    pub(crate) fn compact(&mut self) {
        let revision = self.etcd.revision();
        let revision = self.rng.i64((revision - 20).max(0)..=revision);
        self.trace(|| format!("etcd compacts up to {revision}"));
        self.etcd.compact(revision);
    }

    /// An operator closes the run, as its tool does.
    pub(crate) fn operator_closes(&mut self, reason: &str) -> Result<(), Violation> {
        if self.now < self.etcd_away_until || self.check.round().closed.is_some() {
            return Ok(());
        }
        self.trace(|| format!("an operator closes the run: {reason}"));
        self.check.operator_closes();
        let Ok(Reply::Granted(lease)) = self.etcd.apply(self.now, &Request::Grant(self.setup.closed_ttl))
        else {
            unreachable!("the model grants every lease");
        };
        let record = RoundRecord { closed: Some(reason.to_owned()), ..self.check.round().clone() };
        let value = serde_json::to_string(&record).expect("a round can be written");
        let put = Op::Put { key: self.keys.round(), value, lease };
        let txn = Txn { then: vec![put], ..Txn::default() };
        self.etcd.apply(self.now, &Request::Txn(txn)).expect("the lease is there");
        self.publish()
    }

    /// The weather clears up, and the faults under way come to their end.
    pub(crate) fn heal(&mut self) -> Result<(), Violation> {
        self.trace(|| "the weather clears up".to_owned());
        self.weather = Weather::default();
        let mut end = self.etcd_away_until;
        for process in self.processes.iter_mut().filter(|process| process.alive) {
            end = end.max(process.cut_until).max(process.stalled_until);
            process.crash = None;
        }
        self.run_while(end, |_| true).map(|_| ())
    }
}
