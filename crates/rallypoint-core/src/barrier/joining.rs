//! From no place at all to a final version.

use std::time::Duration;

use super::last_call::LastCall;
use super::machine::{CROWD, Goal, Machine, Outcome, Place, Reply, Request, SLOT, View};
use super::waiting::Free;
use super::{FROZEN_TTL, LAST_CALL_TTL, Record, SETUP_TTL, Status};

/// The longest a node waits for its turn to join, before its first try.
const LONGEST_PACE: Duration = Duration::from_millis(250);

impl Machine {
    pub(super) fn enter(&mut self, now: Duration, random: f64, paced: bool) {
        let Some((record, index)) = self.view.record.clone() else {
            return self.ask(Request::CreateState { record: Record::setup(), ttl: SETUP_TTL });
        };
        match record.status {
            Status::Closed => {
                self.end(Outcome::Closed);
            }
            // A record that nodes with other settings wrote can be fuller than ours may be.
            Status::Joinable if record.joined() < self.settings.max => {
                let rivals = self.settings.max - record.joined();
                if rivals >= CROWD && !paced {
                    self.goal = Goal::Enter { paced: true };
                    let window = (SLOT * u32::try_from(rivals).unwrap_or(u32::MAX) / 2).min(LONGEST_PACE);
                    return self.look_after(now, window.mul_f64(random));
                }
                self.join(&record, index);
            }
            Status::Final => {
                let version = record.version.unwrap_or_default();
                let place = self.past.filter(|past| past.version == version);
                if let (None, Some(stale)) = (place, self.past) {
                    return self.ask(Request::Release(stale));
                }
                let free =
                    Free { version, place, members: None, listed: 0, announced: None, running_out: false };
                self.free(now, random, free);
            }
            Status::Setup | Status::Joinable | Status::Frozen => {
                self.wait(now, random, record.joined(), None);
            }
        }
    }

    fn join(&mut self, record: &Record, over: u64) {
        let (record, _) = record.with_node(self.settings.max);
        let ttl = if record.status == Status::Frozen {
            Some(FROZEN_TTL)
        } else {
            (record.joined() >= self.settings.min).then_some(LAST_CALL_TTL)
        };
        self.ask(Request::SwapState { record, over, ttl });
    }

    pub(super) fn created(&mut self, now: Duration, random: f64, record: Record, reply: &Reply) {
        match reply {
            &Reply::Done { index } => {
                self.view = View { record: Some((record, index)), next: index + 1 };
                self.goal = Goal::Create { over: index, version: None };
                self.ask(Request::ReadCounter);
            }
            Reply::Refused => self.look(),
            _ => self.look_again(now, random),
        }
    }

    /// The steps from `setup` to `joinable`.
    pub(super) fn setting_up(&mut self, now: Duration, random: f64, request: &Request, reply: &Reply) {
        let Goal::Create { over, version } = self.goal else { return self.look_again(now, random) };
        match (request, reply) {
            (_, Reply::Counter { version, index }) => {
                let version = version + 1;
                self.goal = Goal::Create { over, version: Some(version) };
                self.ask(Request::SwapCounter { version, over: *index });
            }
            (_, Reply::NoCounter) => self.ask(Request::MakeRun),
            (Request::MakeRun, Reply::Done { .. }) => self.ask(Request::ReadCounter),
            (Request::SwapCounter { version, .. }, Reply::Done { .. }) => {
                self.ask(Request::MakeVersion { version: *version });
            }
            (Request::MakeVersion { version }, Reply::Done { .. }) => {
                let record = Record::joinable(*version);
                self.ask(Request::SwapState { record, over, ttl: None });
            }
            // The number, or the folder, is somebody else's; or it is ours and nobody told us. A number that
            // nobody uses does no harm.
            (_, Reply::Refused | Reply::Lost) if version.is_some() && self.losses < 8 => {
                self.losses += 1;
                self.ask(Request::ReadCounter);
            }
            _ => {
                self.goal = Goal::Enter { paced: false };
                self.look_again(now, random);
            }
        }
    }

    /// A record was written over another; which one it was, the goal tells.
    pub(super) fn swapped(
        &mut self,
        now: Duration,
        random: f64,
        record: &Record,
        ttl: Option<Duration>,
        reply: &Reply,
    ) {
        let done = if let &Reply::Done { index } = reply {
            self.view = View { record: Some((record.clone(), index)), next: index + 1 };
            self.woken = true;
            self.losses = 0;
            true
        } else {
            false
        };
        let lost = *reply == Reply::Lost;
        match self.goal.clone() {
            // Published: whoever set a version up is the first to join it.
            Goal::Create { .. } if done => {
                self.goal = Goal::Enter { paced: true };
                self.enter(now, random, true);
            }
            Goal::Enter { .. } if done => self.joined(now, random, record),
            Goal::Enter { .. } if lost => {
                let version = record.version.unwrap_or_default();
                self.goal = Goal::Doubt { version, joined: record.joined() - 1 };
                self.look_again(now, random);
            }
            Goal::Enter { .. } => {
                self.lost_race(now, random, self.settings.max.saturating_sub(record.joined()));
            }
            Goal::LastCall(mut last_call) if done => {
                last_call.refreshed = if ttl.is_some() { now } else { last_call.refreshed };
                self.goal = Goal::LastCall(last_call);
                self.judge(now, random, self.view.clone());
            }
            Goal::Confirm { place, .. } if done => {
                self.goal = Goal::Complete(place);
                self.complete(now, random, place);
            }
            Goal::Confirm { place, .. } => self.line_up(now, random, place, record),
            Goal::Free(mut free) if done => {
                free.announced = Some(now);
                self.free(now, random, free);
            }
            Goal::Leave(_) if done => {
                self.end(Outcome::Left);
            }
            Goal::Create { .. } => {
                self.goal = Goal::Enter { paced: false };
                self.look_again(now, random);
            }
            _ => self.lost_race(now, random, record.joined()),
        }
    }

    fn joined(&mut self, now: Duration, random: f64, record: &Record) {
        let place =
            Place { version: record.version.unwrap_or_default(), rank: record.joined().saturating_sub(1) };
        self.goal = if record.status == Status::Frozen {
            Goal::Confirm { place, held: false }
        } else if place.rank + 1 == self.settings.min {
            Goal::LastCall(LastCall::new(place, now, self.settings.last_call, record.joined()))
        } else {
            Goal::Peers(place)
        };
        // Only now: that no keep-alive of a version is left says that all who live have come back.
        if let Some(past) = self.past {
            return self.ask(Request::Release(past));
        }
        self.judge(now, random, self.view.clone());
    }

    /// The reply to a join was lost, and the record does not say whose a rank is. A rank that nobody confirms
    /// would hold up the version until its TTL ends it, so where one may be ours we end it at once.
    pub(super) fn doubt(&mut self, now: Duration, random: f64, version: u64, joined: usize) {
        match &self.view.record {
            Some((record, index))
                if (record.is(Status::Joinable, version) || record.is(Status::Frozen, version))
                    && record.joined() > joined =>
            {
                let over = *index;
                self.ask(Request::DeleteState { over });
            }
            _ => self.restart(now, random),
        }
    }

    pub(super) fn deleted(&mut self, now: Duration, random: f64, reply: &Reply) {
        let done = matches!(reply, Reply::Done { .. });
        match &self.goal {
            Goal::Free(free) if done => {
                self.came_from = Some(free.version);
                self.view.record = None;
                self.restart(now, random);
            }
            Goal::Doubt { .. } if done => {
                self.view.record = None;
                self.restart(now, random);
            }
            Goal::Free(_) | Goal::Doubt { .. } if *reply == Reply::Refused => self.look(),
            Goal::Leave(_) if done => {
                self.view.record = None;
                self.judge(now, random, self.view.clone());
            }
            _ => self.look_again(now, random),
        }
    }

    pub(super) fn peers(&mut self, now: Duration, random: f64, place: Place) {
        if self.seen(Status::Frozen, place.version).is_some() {
            return self.confirm(now, random, place, false);
        }
        match self.seen(Status::Joinable, place.version) {
            Some((record, _)) => self.wait(now, random, record.joined(), None),
            None => self.restart(now, random),
        }
    }

    pub(super) fn confirm(&mut self, now: Duration, random: f64, place: Place, held: bool) {
        self.goal = Goal::Confirm { place, held };
        let Some((record, over)) = self.seen(Status::Frozen, place.version) else {
            return self.complete(now, random, place);
        };
        if !held {
            return self.ask(Request::Hold(place));
        }
        let key = self.keep_alive(place);
        if record.has_confirmed(&key) {
            return self.complete(now, random, place);
        }
        let record = record.with_confirmed(&key);
        let ttl = (record.status == Status::Frozen).then_some(FROZEN_TTL);
        self.ask(Request::SwapState { record, over, ttl });
    }

    pub(super) fn held(&mut self, now: Duration, random: f64, reply: &Reply) {
        match (self.goal.clone(), reply) {
            (Goal::Confirm { place, .. }, Reply::Done { .. }) => {
                self.goal = Goal::Confirm { place, held: true };
                self.losses = 0;
                match self.seen(Status::Frozen, place.version) {
                    Some((record, _)) if record.joined() >= CROWD => {
                        self.line_up(now, random, place, &record);
                    }
                    _ => self.confirm(now, random, place, true),
                }
            }
            _ => self.look_again(now, random),
        }
    }

    /// The nodes of a frozen version know their ranks, so they can take turns.
    fn line_up(&mut self, now: Duration, random: f64, place: Place, record: &Record) {
        let before = (0..place.rank)
            .filter(|&rank| !record.has_confirmed(&self.keep_alive(Place { rank, ..place })))
            .count();
        self.losses += 1;
        let turns = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(self.losses - 1);
        let pause = SLOT * turns;
        self.look_after(now, pause.mul_f64(0.9 + 0.2 * random));
    }

    pub(super) fn complete(&mut self, now: Duration, random: f64, place: Place) {
        let key = self.keep_alive(place);
        if let Some((record, _)) = self.seen(Status::Final, place.version)
            && record.has_confirmed(&key)
        {
            self.end(Outcome::Met { place, world: record.joined() });
            return;
        }
        match self.seen(Status::Frozen, place.version) {
            Some((record, _)) => {
                self.goal = Goal::Complete(place);
                self.wait(now, random, record.joined() - record.confirmed(), None);
            }
            // It came to nothing: our keep-alive must not be taken for a member's.
            None => {
                self.goal = Goal::Enter { paced: false };
                self.ask(Request::Release(place));
            }
        }
    }
}
