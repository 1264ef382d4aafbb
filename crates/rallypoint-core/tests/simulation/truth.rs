//! News must be true: whoever is told of a death, a close, an exclusion or a refusal that did not happen was told a
//! lie, and may stop work that goes well. Nor may a group meet again for nothing, or a node think that it is in contact.

use std::time::Duration;

use rallypoint_core::round::{Change, Lost, NodeEvent, Refusal, RoundRecord, WatchId, Why};

use crate::check::{Told, Violation, promise};
use crate::finale::{is_settled, state};
use crate::network::{LATEST, TIMEOUT};
use crate::process::{Phase, Process, slot};
use crate::world::World;

/// For a process that was in trouble to be where it was, and for what was decided before that to be written: it hears of
/// its lease, gets another, registers, and a request on the way may be lost.
const RECOVERY: Duration = Duration::from_secs(5);

impl World {
    /// Something happens that the group may meet again for.
    pub(crate) fn cause(&mut self) {
        self.steady_since = None;
    }

    /// Looks whether the group is whole, and nothing is under way that it may meet again for.
    pub(crate) fn look_around(&mut self) {
        let news = &self.check.round().news;
        let quiet = self.now >= self.rough_until.max(self.denied_until).max(self.full_until)
            && self.check.round().closed.is_none()
            && self.check.round().has_round()
            && news.lost_count == 0
            && news.waiting == 0
            && self.living().all(|index| self.is_at_rest(index))
            && is_settled(self);
        if quiet {
            self.steady_since.get_or_insert(self.now);
        } else {
            self.steady_since = None;
        }
    }

    /// Whether nothing goes wrong with a process, and its program does not know of a change of its round.
    fn is_at_rest(&self, index: usize) -> bool {
        let process = &self.processes[index];
        let trouble = process.cut_until.max(process.stalled_until).max(process.denied_until);
        let round = process.is_in().map(|joined| joined.round);
        let knows = process.told.as_ref().is_some_and(|(told, _)| Some(*told) == round);
        self.now >= trouble && !knows
    }

    /// Promise 7: a group that nobody left, joined or lost does not meet again.
    fn is_needed(&self, what: &str) -> Result<(), Violation> {
        let long = self.setup.lease + RECOVERY;
        let steady = self.steady_since.filter(|since| self.now >= *since + long);
        promise!(
            7,
            steady.is_none(),
            "{what} at {:?}, and all was well since {steady:?}: {}",
            self.now,
            state(self)
        );
        Ok(())
    }

    /// Whether something has happened to a process for which it may be taken for dead.
    pub(crate) fn is_harmed(&self, index: usize) -> bool {
        let until = self.processes[index].harmed_until.max(self.rough_until);
        self.now <= until.saturating_add(self.setup.lease + RECOVERY)
    }

    /// Whether this was so just now, for who may hear of it late.
    fn is_recent(&self, at: Option<Duration>) -> bool {
        let late = if self.now <= self.rough_until { LATEST } else { Duration::ZERO };
        at.is_some_and(|at| self.time_with_etcd(at, self.now) <= self.setup.lease + RECOVERY + late)
    }

    /// How long etcd was there from one moment to another: while it is away nobody hears of anything, and what was sent waits.
    fn time_with_etcd(&self, from: Duration, to: Duration) -> Duration {
        let away = |(begin, end): &(Duration, Duration)| (*end).min(to).saturating_sub((*begin).max(from));
        to.saturating_sub(from).saturating_sub(self.outages.iter().map(away).sum())
    }

    /// Fails if the group's record tells of something that is not so. Whatever members are told of the others was written
    /// there first, and was so by then; later it may not be any more.
    pub(crate) fn what_is_written_is_true(&mut self, before: &RoundRecord) -> Result<(), Violation> {
        let record = self.check.round().clone();
        if record.plan != before.plan && record.has_round() && before.has_round() {
            self.is_needed("a round is formed")?;
        }
        if !record.has_round() {
            return Ok(());
        }
        if record.plan != before.plan {
            for lost in &record.without {
                let plan = self.check.round_of(&before.plan, lost).to_owned();
                self.is_lost(&plan, lost)?;
            }
        }
        for lost in &record.news.lost {
            self.is_lost(&record.plan, lost)?;
        }
        if record.news.lost_count > record.news.lost.len() {
            self.check.news.insert((record.plan.clone(), Told::Unnamed));
        }
        if record.news.waiting > 0 && self.check.news.insert((record.plan.clone(), Told::Waiting)) {
            self.is_needed("a newcomer is told of")?;
            // A member that was taken for dead, and is back again, waits as others do.
            let waits = |index: usize| {
                let process = &self.processes[index];
                process.alive && (self.is_harmed(index) || self.is_recent(process.left_at))
            };
            let waits = self.is_recent(Some(self.check.waited_at())) || self.living().any(waits);
            // Those who stand by wait for nobody's end.
            let room = record.world_size < self.setup.settings.max_nodes || record.news.lost_count > 0;
            promise!(
                7,
                waits && room,
                "{} wait by the record, but nobody does: {}",
                record.news.waiting,
                state(self)
            );
        }
        Ok(())
    }

    /// Fails if a member of the round of that plan is not lost in this way.
    fn is_lost(&mut self, plan: &str, lost: &Lost) -> Result<(), Violation> {
        if !self.check.news.insert((plan.to_owned(), Told::lost(lost))) {
            return Ok(());
        }
        self.is_needed("a loss is told of")?;
        let lie = self.lie_of_loss(plan, lost);
        promise!(7, lie.is_none(), "{lost:?} is told, but {}; {}", lie.unwrap_or_default(), state(self));
        Ok(())
    }

    /// Why it is not so.
    fn lie_of_loss(&self, plan: &str, lost: &Lost) -> Option<String> {
        let committed = self.check.committed_as(plan)?;
        let is_it = |((id, _), rank): &(&(String, u64), &usize)| *id == lost.node && **rank == lost.rank;
        let Some(((id, incarnation), _)) = committed.members.iter().find(is_it) else {
            return Some("that is no member of its round".to_owned());
        };
        let index = self.processes.iter().position(|it| it.id == *id && it.incarnation == *incarnation)?;
        let process = &self.processes[index];
        let replaced = self.check.was_replaced(id, *incarnation);
        // It may have left before it knew of this round. A round can be complete long after that: while etcd is full its commit
        // is refused. Then the next one may be the first to tell of it, and who is gone is counted anew with that.
        let late = |at| self.time_with_etcd(at, committed.at) <= LATEST;
        let was_gone = self.check.is_gone(id) || committed.gone.contains(id);
        let left = was_gone || process.left_at.is_some_and(late);
        let stays = process.is_in().is_some_and(|joined| joined.plan == plan) && process.moved_on != plan;
        let (is_so, otherwise) = match lost.why {
            Why::Died => {
                let missed = self.is_harmed(index) && self.is_recent(self.check.missed_at(id));
                // Of whom it was overlooked how he went it is only known that he is gone.
                let gone = !process.alive || replaced || process.left_at.is_some() && left;
                (gone || missed, "it lives, and nothing has happened to it")
            }
            Why::Left => (process.left_at.is_some() && left || replaced, "it has not left"),
            Why::Killed => (false, "no leader knows that"),
            Why::Again | Why::Late | Why::Other => {
                (!stays || replaced || !process.alive, "it has not asked for a round")
            }
            Why::Replaced => (replaced, "nobody has taken its name"),
            Why::Excluded => (self.check.was_kept_out(id), "nobody has excluded it"),
        };
        (!is_so).then(|| otherwise.to_owned())
    }

    /// Fails if what a process is told is not so.
    pub(crate) fn is_true(&self, index: usize, event: &NodeEvent) -> Result<(), Violation> {
        let process = &self.processes[index];
        if matches!(event, NodeEvent::Changed(change) if !matches!(change, Change::Closed(_))) {
            self.is_needed("a change is told of")?;
        }
        let why_not = match event {
            NodeEvent::Changed(change) => self.lie_of_change(index, change),
            NodeEvent::Refused(refusal) => self.lie_of_refusal(process, refusal),
            NodeEvent::Progress { joined: 0, .. } => Some("it is there itself".to_owned()),
            _ => None,
        };
        promise!(
            7,
            why_not.is_none(),
            "{} is told {event:?}, but {}",
            self.name(index),
            why_not.unwrap_or_default()
        );
        Ok(())
    }

    /// Why it is not so.
    fn lie_of_change(&self, index: usize, change: &Change) -> Option<String> {
        let process = &self.processes[index];
        let plan = self.check.last_plan(process).unwrap_or_default().to_owned();
        let lie = |holds: bool, why: &str| (!holds).then(|| why.to_owned());
        let lost = |node: &String, rank: usize, why| {
            let told = Told::Lost(node.clone(), rank, why);
            lie(self.check.news.contains(&(plan.clone(), told)), "the record of its round never said so")
        };
        match change {
            Change::Waiting(_) => {
                lie(self.check.news.contains(&(plan, Told::Waiting)), "the record of its round never said so")
            }
            Change::Died { node, rank } => lost(node, *rank, "died"),
            Change::Left { node, rank } => lost(node, *rank, "left"),
            Change::MemberKeptOut { node, rank } => lost(node, *rank, "kept out"),
            Change::MemberReplaced { node, rank } => lost(node, *rank, "replaced"),
            Change::Excluded => {
                let round = self.check.committed_as(&plan)?.round;
                lie(self.check.went_on_after(round), "there was no later round")
            }
            Change::KeptOut(exclusion) => {
                lie(self.check.exclusions.contains(exclusion), "nobody has excluded it so")
            }
            Change::Closed(reason) => lie(self.check.reasons.contains(reason), "nobody has closed it so"),
            Change::Replaced { .. } => lie(self.is_replaced(process), "nobody has taken its name"),
            Change::StateLost => {
                let committed = self.check.committed_as(&plan)?;
                // Who was in trouble, or may not look, may hear of it late.
                let late = self.is_harmed(index) || self.is_recent(Some(self.denied_until));
                let soon = late || self.is_recent(Some(self.check.last_loss));
                let lost = self.check.losses > committed.losses && soon;
                // Or somebody came from a later round that was lost, and its leader has taken this one back, or one after it
                // that this process has heard nothing of.
                let withdrawn = committed.withdrawn || self.check.was_withdrawn_after(committed);
                let unnamed = self.check.news.contains(&(plan, Told::Unnamed));
                lie(lost || withdrawn || unnamed, "nothing was lost")
            }
            Change::Corrupt(_) => lie(self.is_overwritten(), "nobody wrote such a thing"),
        }
    }

    /// Whether another process has taken the name of this one. Or it may seem so, as etcd was restored to when one had the name
    /// that was started later, or in the same second: the later one has it, and whether it is gone since is not written there.
    fn is_replaced(&self, process: &Process) -> bool {
        let has_it = |other: &Process| {
            let another = other.id == process.id && other.incarnation != process.incarnation;
            another && other.since >= process.since && self.is_recent(self.check.held_at(other))
        };
        self.check.was_replaced(&process.id, process.incarnation)
            || self.check.losses > 0 && self.processes.iter().any(has_it)
    }

    /// Whether what stands at the group's record is nobody's who is a node.
    fn is_overwritten(&self) -> bool {
        let record = self.etcd.get(&self.keys.round());
        record.is_some_and(|entry| self.check.by_others.contains(&entry.mod_revision))
    }

    /// Promise 11: a node takes itself for a member only as long as etcd has its key, and tells it what happens.
    pub(crate) fn contact_is_true(&mut self, index: usize) -> Result<(), Violation> {
        let contact = self.processes[index].node.contact();
        if contact.is_none() || contact == self.processes[index].contact {
            return Ok(());
        }
        self.check.now = self.now;
        let process = &mut self.processes[index];
        process.contact = contact;
        let process = &self.processes[index];
        if matches!(process.phase, Phase::Leaving | Phase::Over) {
            return Ok(());
        }
        // An answer may have lain there while the process was stopped.
        let stopped = self.now < process.stalled_until + self.setup.lease;
        let held = self.check.held_at(process).is_some_and(|at| self.now <= at + TIMEOUT);
        // etcd was restored to when it had granted the lease and had no key on it: whoever was not told of that yet does not
        // know, and anybody may refresh such a lease.
        let restored = self.is_untold_of_loss(process);
        // It is another's now: whoever is replaced hears of that by its watch, and its lease is its own.
        let replaced = self.check.was_replaced(&process.id, process.incarnation);
        let counts = held || stopped || replaced || restored;
        promise!(11, counts, "{} counts as a member, and etcd has no key of it", self.name(index));
        let [group, rank, _] = process.refused_since;
        let refused = group.or(rank);
        promise!(
            11,
            refused.is_none(),
            "{} counts as a member, and is told nothing since {refused:?}",
            self.name(index)
        );
        Ok(())
    }

    /// Whether etcd has lost data since either watch of a process on its group last said something: it cannot know yet.
    fn is_untold_of_loss(&self, process: &Process) -> bool {
        [WatchId::Group, WatchId::Rank].into_iter().all(|id| {
            let watch = process.watches[slot(id)].as_ref();
            watch.is_some_and(|watch| watch.history != self.etcd.history)
        })
    }

    fn lie_of_refusal(&self, process: &Process, refusal: &Refusal) -> Option<String> {
        let lie = |holds: bool, why: &str| (!holds).then(|| why.to_owned());
        match refusal {
            Refusal::Closed(reason) => lie(self.check.reasons.contains(reason), "nobody has closed it so"),
            Refusal::Mismatch { .. } => {
                lie(process.settings != self.setup.settings, "its settings are those of the run")
            }
            Refusal::Replaced { .. } => lie(self.is_replaced(process), "nobody has taken its name"),
            Refusal::Excluded(exclusion) => {
                lie(self.check.exclusions.contains(exclusion), "nobody has excluded it so")
            }
            Refusal::Corrupt(_) => lie(self.is_overwritten(), "nobody wrote such a thing"),
        }
    }
}
