//! What was done, and when something was the matter because of it.

use std::time::Duration;

use crate::step::Step;
use crate::times::{A_FEW_SECONDS, ECHO, LAST_CALL, LEASE, SHORT};

/// Something that was done.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    pub(crate) step: Step,
    /// The process that it was done to.
    pub(crate) process: Option<usize>,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Matter {
    /// A process heard nothing, and nothing was heard of it.
    Silence(usize),
    /// Some etcds did not answer, or not everybody.
    Etcd,
    NoSpace,
    Passwords,
    /// etcd has lost data.
    Loss,
}

/// A time in which something was the matter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) matter: Matter,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

impl Window {
    /// Until when it may keep a node from hearing of the group. A connection that was cut hangs for about as long again
    /// as the cut took.
    fn deaf_until(&self) -> Duration {
        match self.matter {
            Matter::Silence(_) => self.to + (self.to - self.from) + ECHO,
            Matter::Etcd | Matter::NoSpace | Matter::Passwords => self.to + ECHO,
            Matter::Loss => self.to + LEASE + A_FEW_SECONDS,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Harm {
    deeds: Vec<Deed>,
    /// By their beginnings.
    windows: Vec<Window>,
}

impl Harm {
    /// `now`: what has no end yet goes on.
    pub(crate) fn new(deeds: &[Deed], now: Duration) -> Self {
        let window = |(index, deed): (usize, &Deed)| {
            let matter = match deed.step {
                Step::Stop(_) | Step::Cut(_) | Step::Lose(_) => Matter::Silence(deed.process?),
                Step::CutAllNodes
                | Step::KillEtcd(_)
                | Step::StopEtcd(_)
                | Step::CutEtcd(_)
                | Step::CutFollowerFromLeader
                | Step::StopAllEtcds
                | Step::RestartAllEtcds => Matter::Etcd,
                Step::FillDisk => Matter::NoSpace,
                Step::AskForPasswords => Matter::Passwords,
                Step::LoseData | Step::Restore | Step::RestoreAhead => Matter::Loss,
                _ => return None,
            };
            let end = deeds[index..].iter().find(|later| later.step.ends(&deed.step)).map(|end| end.to);
            let at_once = matter == Matter::Loss || deed.step == Step::RestartAllEtcds;
            let to = end.unwrap_or(if at_once { deed.to } else { now });
            Some(Window { matter, from: deed.from, to })
        };
        Harm { deeds: deeds.to_vec(), windows: deeds.iter().enumerate().filter_map(window).collect() }
    }

    /// When a process was killed.
    pub(crate) fn killed(&self, process: usize) -> Option<Duration> {
        let kill = |deed: &&Deed| matches!(deed.step, Step::Kill(_)) && deed.process == Some(process);
        self.deeds.iter().find(kill).map(|deed| deed.from)
    }

    /// How many things were done since then that make a member miss its group, or the group a member that lives. Each is
    /// missed, and comes back.
    pub(crate) fn reasons(&self, since: Duration) -> usize {
        let asks = |deed: &&Deed| deed.from >= since && matches!(deed.step, Step::Order(_, "meet"));
        let missed = |window: &&Window| match window.matter {
            Matter::Silence(process) => self.lease_ends(process, since, Duration::MAX).is_some(),
            Matter::Loss => true,
            Matter::Etcd | Matter::NoSpace | Matter::Passwords => false,
        };
        let windows = self.windows.iter().filter(|window| window.from >= since);
        self.deeds.iter().filter(asks).count() + 2 * windows.filter(missed).count()
    }

    /// Until when the last node must have heard of what happened then: later where it could not.
    pub(crate) fn known_by(&self, then: Duration) -> Duration {
        let patience = LEASE + LAST_CALL + A_FEW_SECONDS;
        let later = |by: Duration, window: &Window| {
            if window.from <= by { by.max(window.to + patience) } else { by }
        };
        self.windows.iter().fold(then + patience, later)
    }

    /// Whether a matter of that kind, of which it was heard at `at`, was there before.
    pub(crate) fn is_of(&self, matter: Matter, at: Duration) -> bool {
        let mut of_kind = self.windows.iter().filter(|window| window.matter == matter);
        of_kind.any(|window| (window.from..=self.known_by(window.from)).contains(&at))
    }

    /// Whether etcd has lost data in that time.
    pub(crate) fn lost_between(&self, from: Duration, to: Duration) -> bool {
        let mut losses = self.windows.iter().filter(|window| window.matter == Matter::Loss);
        losses.any(|window| window.from <= to && from <= window.deaf_until())
    }

    /// Whether etcd was restored from a snapshot in that time: keys of processes that ended long ago stand there again.
    pub(crate) fn restored_between(&self, from: Duration, to: Duration) -> bool {
        let restores = |deed: &&Deed| matches!(deed.step, Step::Restore | Step::RestoreAhead);
        self.deeds.iter().filter(restores).any(|deed| deed.from <= to && from <= self.known_by(deed.to))
    }

    /// Whether a node could not reach etcd at some time from `from` to `to`.
    pub(crate) fn is_deaf(&self, process: usize, from: Duration, to: Duration) -> bool {
        let of_it = |window: &&Window| match window.matter {
            Matter::Silence(other) => other == process,
            _ => true,
        };
        let mut its = self.windows.iter().filter(of_it);
        its.any(|window| window.from <= to && from <= window.deaf_until())
    }

    /// The time at which the lease of a process that lives may have ended first, by what was done to it: it must have
    /// been silent itself for longer than a gap that nobody notices, etcd's own silences before and after included.
    /// Only what lies between `from` and `to`.
    pub(crate) fn lease_ends(&self, process: usize, from: Duration, to: Duration) -> Option<Duration> {
        let own = |window: &&Window| window.matter == Matter::Silence(process);
        let of_etcd = |window: &&Window| !matches!(window.matter, Matter::Silence(_) | Matter::Loss);
        self.windows.iter().filter(own).find_map(|own| {
            let touches = |window: &&Window| window.from <= own.to && own.from <= window.deaf_until();
            let etcds = || self.windows.iter().filter(of_etcd).filter(touches);
            let begin = etcds().map(|window| window.from).fold(own.from, Duration::min);
            let end = etcds().map(Window::deaf_until).fold(own.to, Duration::max);
            let first = begin + LEASE / 2;
            (end - begin > SHORT && first <= to && from <= self.known_by(end)).then_some(first)
        })
    }

    /// What was the matter with etcd at that time, or had been a moment before.
    pub(crate) fn etcd_at(&self, at: Duration) -> Vec<Matter> {
        let then = self.windows.iter().filter(|window| window.from <= at && at <= window.deaf_until());
        then.map(|window| window.matter).filter(|matter| !matches!(matter, Matter::Silence(_))).collect()
    }
}
