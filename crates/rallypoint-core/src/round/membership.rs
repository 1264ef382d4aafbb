//! What a node wants, the seat it has, and what it makes of what it sees of the group.
//!
//! ```text
//!          join                a round with this node in it
//!   Out ─────────▶ Joining ─────────────────────────────────▶ Working
//!    ▲               │  ▲                                      │  │
//!    │  refused      │  └──────────── join again ──────────────┘  │
//!    │               ▼                                            │
//!    └── gone ── Leaving ◀─────────── leave, or replaced ─────────┘
//! ```

use std::time::Duration;

use super::output::{Change, Joined, NodeEvent, Refusal};
use super::record::{NodeRecord, RECORD_VERSION, RankRecord, RoundRecord, Seat, Wants, Why};
use super::settings::{NodeConfig, WhenExcluded};
use super::view::{RoundKey, View};

#[derive(Debug)]
pub(super) struct Membership {
    goal: Goal,
    /// It asks for a round after this one.
    after: u64,
    /// The last seat it had.
    seat: Option<Seat>,
    /// What the program was told of that round since.
    told: Option<Change>,
    /// How far the wait was when the program was last told.
    progress: Option<NodeEvent>,
    /// When a place was written for another process of this name, the last time that was seen.
    foreign_place: i64,
    /// Another process has this node's name, there.
    replaced_by: Option<String>,
}

/// Where a node wants to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    Out,
    /// The port is free here, should this node become the master.
    Joining {
        port: u16,
    },
    Working,
    /// It may be asked for a round again before it is gone.
    Leaving {
        then: Option<u16>,
    },
}

/// What is to be told, and done.
#[derive(Debug)]
pub(super) enum Verdict {
    Joined(Joined),
    Changed(Change),
    Refused(Refusal),
    Progress(NodeEvent),
}

impl Membership {
    pub(super) fn new() -> Self {
        Membership {
            goal: Goal::Out,
            after: 0,
            seat: None,
            told: None,
            progress: None,
            foreign_place: 0,
            replaced_by: None,
        }
    }

    pub(super) fn goal(&self) -> Goal {
        self.goal
    }

    pub(super) fn is_in(&self) -> bool {
        matches!(self.goal, Goal::Joining { .. } | Goal::Working)
    }

    pub(super) fn is_joining(&self) -> bool {
        matches!(self.goal, Goal::Joining { .. })
    }

    /// The seat of a member at work.
    pub(super) fn seat_at_work(&self) -> Option<&Seat> {
        self.seat.as_ref().filter(|_| self.goal == Goal::Working)
    }

    /// A round is asked for. Not by a process that was replaced: the two would take the name from each other for ever.
    pub(super) fn join(&mut self, port: u16) -> Option<Refusal> {
        if let Some(by) = &self.replaced_by {
            return Some(Refusal::Replaced { by: by.clone() });
        }
        self.progress = None;
        self.goal = match self.goal {
            Goal::Leaving { .. } => Goal::Leaving { then: Some(port) },
            _ => Goal::Joining { port },
        };
        None
    }

    pub(super) fn leave(&mut self) {
        self.goal = Goal::Leaving { then: None };
    }

    /// Nothing of this node is in etcd any more.
    pub(super) fn gone(&mut self) {
        self.goal = match self.goal {
            Goal::Leaving { then: Some(port) } => Goal::Joining { port },
            _ => Goal::Out,
        };
        self.foreign_place = 0;
    }

    /// Another process has this node's name.
    pub(super) fn replaced(&mut self, by: String) -> Option<Verdict> {
        let verdict = match self.goal {
            Goal::Joining { .. } => Some(Verdict::Refused(Refusal::Replaced { by: by.clone() })),
            Goal::Working => Some(Verdict::Changed(Change::Replaced { by: by.clone() })),
            Goal::Out | Goal::Leaving { .. } => None,
        };
        self.replaced_by = Some(by);
        self.leave();
        verdict
    }

    /// What this node says of itself.
    pub(super) fn record(&self, config: &NodeConfig) -> NodeRecord {
        let (wants, port) = match self.goal {
            Goal::Joining { port } => (Wants::Join, port),
            Goal::Working | Goal::Out => (Wants::Stay, 0),
            Goal::Leaving { .. } => (Wants::Leave, 0),
        };
        NodeRecord {
            version: RECORD_VERSION,
            incarnation: config.incarnation,
            address: config.address.clone(),
            port,
            wants,
            round: self.after,
            seat: self.seat.clone(),
            settings: config.settings,
            host: config.host.clone(),
            rack: config.rack.clone(),
            hint: config.hint.clone(),
            about: config.about.clone(),
            since: config.since,
        }
    }

    /// Whether what stands in etcd says enough. A member at work need not say so, as long as etcd has its round: what it
    /// joined with still stands.
    pub(super) fn is_said_by(&self, record: &NodeRecord) -> bool {
        match self.goal {
            Goal::Joining { port } => {
                (record.wants, record.port, record.round) == (Wants::Join, port, self.after)
            }
            Goal::Working if self.told == Some(Change::StateLost) => {
                record.wants == Wants::Stay && record.seat == self.seat
            }
            _ => true,
        }
    }

    /// Asks for a round after the last one, if this node has waited through it. The leader may take it for a member of
    /// an earlier round, whose place was lost before this node saw it. The look at its place was at `revision`: of a round
    /// that was completed after that it tells nothing.
    pub(super) fn catch_up(&mut self, view: &View, revision: i64) {
        if let Some(known) = view.known().filter(|known| self.is_joining() && known.modified <= revision) {
            self.after = self.after.max(known.record.round);
        }
    }

    /// What follows from what is known of the group. `unanswered`: a registration of this process was never answered.
    pub(super) fn decide(&mut self, config: &NodeConfig, view: &View, unanswered: bool) -> Option<Verdict> {
        match self.goal {
            Goal::Out | Goal::Leaving { .. } => None,
            Goal::Joining { port } => self.decide_joining(config, view, port, unanswered),
            Goal::Working => {
                let change = self.change(config, view).filter(|change| self.told.as_ref() != Some(change))?;
                // Whoever knows that the run is over need not hear that its record is gone too. Nor need one that the others went
                // on without: what is gone then is a later round, which a leader has taken back, and this node's own was over.
                match (&self.told, &change) {
                    (Some(Change::Closed(_)), _) | (Some(Change::Excluded), Change::StateLost) => {
                        return None;
                    }
                    _ => {}
                }
                self.told = Some(change.clone());
                Some(Verdict::Changed(change))
            }
        }
    }

    /// The plan of the round at work in whose news this node itself is the first to be lost, or of a later one that others
    /// have met in without it.
    pub(super) fn is_called_lost<'a>(&self, config: &NodeConfig, view: &'a View) -> Option<&'a str> {
        let record = &view.known()?.record;
        let seat = self.seat_at_work()?;
        let lost = if record.plan == seat.plan {
            record.news.lost.first().is_some_and(|lost| lost.node == config.id)
        } else {
            record.has_round() && record.round > seat.round
        };
        (lost && record.closed.is_none()).then_some(record.plan.as_str())
    }

    fn decide_joining(
        &mut self,
        config: &NodeConfig,
        view: &View,
        port: u16,
        unanswered: bool,
    ) -> Option<Verdict> {
        let kept_out = view.kept_out(config);
        let ends = kept_out.filter(|_| config.when_excluded == WhenExcluded::End).cloned();
        let record = match view.round() {
            RoundKey::Unknown => return None,
            RoundKey::Missing => return ends.and_then(|exclusion| self.refuse(Refusal::Excluded(exclusion))),
            RoundKey::Corrupt(corrupt) => return self.refuse(Refusal::Corrupt(corrupt.clone())),
            RoundKey::Known(known) => &known.record,
        };
        if let Some(reason) = &record.closed {
            return self.refuse(Refusal::Closed(reason.clone()));
        }
        if self.after == 0
            && let Some(theirs) = &record.settings
            && let Some((setting, ours, theirs)) = config.settings.difference(theirs)
        {
            return self.refuse(Refusal::Mismatch { setting, ours, theirs });
        }
        if let Some(exclusion) = ends {
            return self.refuse(Refusal::Excluded(exclusion));
        }
        if let Some(place) = view.place() {
            let ours = place.record.incarnation == config.incarnation;
            if ours && place.record.left {
                // It was in that round, whether it knew or not, and has left it.
                self.after = self.after.max(place.record.round);
            } else if ours {
                let joined = self.sit(config, record, &place.record, port, kept_out.is_some());
                if let Some(joined) = joined {
                    return Some(Verdict::Joined(joined));
                }
            } else if place.modified > self.foreign_place
                && (unanswered || place.record.is_after(config.incarnation))
            {
                // Another process of this name has a place now, and this one had one before, or whether it had is not
                // told any more. It asks for a round after the last, as the leader may count it among the members.
                self.foreign_place = place.modified;
                self.after = self.after.max(record.round);
            }
        }
        let news = &record.news;
        if let Some(exclusion) = kept_out {
            return self.progress(NodeEvent::KeptOut(exclusion.clone()));
        }
        let let_in = matches!(self.progress, Some(NodeEvent::KeptOut(_)));
        if news.joined == 0 && !let_in {
            // Nothing was told yet of the next round, or of the first: this node, which is there, has not been counted.
            return None;
        }
        // Where no round stands, those without room wait for members of the last one, who may come back, or not.
        let standing = record.has_round();
        // Or of one after it: then etcd has lost that, and the record is not of the group that there is.
        let of_this = |seat: &Seat| seat.plan == record.plan || seat.round > record.round;
        let member = self.seat.as_ref().is_some_and(of_this);
        let joined = if standing { news.joined } else { news.joined.saturating_sub(news.spares) };
        let progress = NodeEvent::Progress {
            joined: joined.max(1),
            seatable: news.seatable,
            last_call: news.last_call_ms.map(Duration::from_millis),
            spare: standing && !member && news.spares > 0 && news.waiting == 0,
        };
        self.progress(progress)
    }

    /// How far the wait is, if that was not told before.
    fn progress(&mut self, progress: NodeEvent) -> Option<Verdict> {
        if self.progress.as_ref() == Some(&progress) {
            return None;
        }
        self.progress = Some(progress.clone());
        Some(Verdict::Progress(progress))
    }

    /// Takes the seat that this node has in the round of `record`, if it can.
    fn sit(
        &mut self,
        config: &NodeConfig,
        record: &RoundRecord,
        place: &RankRecord,
        port: u16,
        kept_out: bool,
    ) -> Option<Joined> {
        if place.plan != record.plan || place.round != record.round {
            // A place in a round that is over already: this node was a member and has missed it. It asks again.
            if (self.after + 1..record.round).contains(&place.round) {
                self.after = place.round;
            }
            return None;
        }
        let master = record.master.as_ref().filter(|_| record.round > self.after)?;
        let (round, plan) = (record.round, record.plan.clone());
        let (rank, world_size) = (place.rank, record.world_size);
        self.after = round;
        self.seat = Some(Seat { round, plan: plan.clone(), rank, world_size });
        let elsewhere = rank == 0 && (&master.address, master.port) != (&config.address, port);
        if elsewhere || kept_out || record.news.lost.iter().any(|lost| lost.node == config.id) {
            // Planned with what this node said before, and the others cannot meet there, or do not count on it any
            // more: it asks again.
            return None;
        }
        (self.goal, self.told) = (Goal::Working, None);
        let (address, port, lease) = (master.address.clone(), master.port, record.lease);
        let without = record.without.clone();
        Some(Joined { round, plan, rank, world_size, address, port, lease, without })
    }

    fn refuse(&mut self, refusal: Refusal) -> Option<Verdict> {
        self.leave();
        Some(Verdict::Refused(refusal))
    }

    /// What a member at work should know of its round.
    fn change(&self, config: &NodeConfig, view: &View) -> Option<Change> {
        let seat = self.seat.as_ref()?;
        let record = match view.round() {
            RoundKey::Unknown => return None,
            RoundKey::Missing => return Some(Change::StateLost),
            RoundKey::Corrupt(corrupt) => return Some(Change::Corrupt(corrupt.clone())),
            RoundKey::Known(known) => &known.record,
        };
        if let Some(reason) = &record.closed {
            return Some(Change::Closed(reason.clone()));
        }
        if let Some(exclusion) = view.kept_out(config) {
            return Some(Change::KeptOut(exclusion.clone()));
        }
        if record.plan != seat.plan {
            // Also if its leader has taken that one back before this node was told of it: its own was over by then.
            let later = view.has_told_of_later(seat.round, &seat.plan);
            return Some(if later { Change::Excluded } else { Change::StateLost });
        }
        // A death before all else: it is the cause of what fails with it. An earlier version may have led.
        let mut lost = record.news.lost.iter();
        if let Some(lost) = lost.clone().find(|lost| lost.why == Why::Died).or_else(|| lost.next()) {
            return Some(Change::of_loss(lost));
        }
        if record.news.lost_count > 0 {
            // Nobody knows who: their seats were lost.
            return Some(Change::StateLost);
        }
        (record.news.waiting > 0).then_some(Change::Waiting(record.news.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::tests::Bench;
    use super::super::etcd::{Entry, Event, Update};
    use super::super::output::WatchId;
    use super::super::record::{MasterRecord, json};
    use super::super::view::Sight;
    use super::*;

    /// It was in round 4, which it never saw, and what it wanted before that counts no more.
    #[test]
    fn a_process_whose_place_is_anothers_by_now_asks_for_a_round_after_the_last() {
        let (mut bench, mut view, mut membership) = (Bench::new(), View::new(), Membership::new());
        let context = &mut bench.context();
        let ours = context.config.incarnation;
        view.open(context);
        for watch in [WatchId::Group, WatchId::Rank] {
            view.handle(context, watch, Update::Events(Vec::new()));
        }
        let master = MasterRecord { node: "n0".to_owned(), address: "there".to_owned(), port: 2 };
        let record = RoundRecord {
            plan: "fifth".to_owned(),
            world_size: 1,
            master: Some(master),
            ..RoundRecord::without_round(5, Some(context.config.settings), 1)
        };
        let place = format!(
            r#"{{ "round": 5, "plan": "fifth", "rank": 0, "incarnation": {},
                "previous": {{ "round": 4, "plan": "fourth", "rank": 0, "incarnation": {ours} }} }}"#,
            ours + 1
        );
        let entry = |value| {
            Some(Entry { key: "key".to_owned(), value, create_revision: 3, mod_revision: 9, lease: 1 })
        };
        let (round, place, exclusions) = (entry(json(&record)), entry(place), Vec::new());
        view.see(context, &Sight { revision: 9, leader: None, round, place, exclusions, own: None });
        membership.join(1);
        membership.decide(context.config, &view, false);
        assert_eq!(membership.record(context.config).round, 5);
    }

    /// Seed 3200105811: others have met in round 2 without it. Before it could look why, the leader has taken that back.
    #[test]
    fn a_round_that_was_taken_back_is_not_what_a_member_of_an_earlier_one_has_lost() {
        let (mut bench, mut view, mut membership) = (Bench::new(), View::new(), Membership::new());
        let context = &mut bench.context();
        view.open(context);
        for watch in [WatchId::Group, WatchId::Rank] {
            view.handle(context, watch, Update::Events(Vec::new()));
        }
        let master = Some(MasterRecord { node: "n0".to_owned(), address: "there".to_owned(), port: 2 });
        let settings = Some(context.config.settings);
        let formed = |round: u64, plan: &str| RoundRecord {
            plan: plan.to_owned(),
            world_size: 1,
            master: master.clone(),
            ..RoundRecord::without_round(round, settings, 1)
        };
        let key = context.keys.round();
        let entry = |record: RoundRecord, revision: i64| Entry {
            key: key.clone(),
            value: json(&record),
            create_revision: 3,
            mod_revision: revision,
            lease: 1,
        };
        let round = Some(entry(formed(1, "first"), 3));
        let exclusions = Vec::new();
        let sight = Sight { revision: 3, leader: None, round, place: None, exclusions, own: None };
        view.see(context, &sight);
        let seat = Seat { round: 1, plan: "first".to_owned(), rank: 0, world_size: 1 };
        (membership.goal, membership.seat) = (Goal::Working, Some(seat));
        let taken_back = |revision| entry(RoundRecord::without_round(2, settings, 1), revision);
        for (events, told) in [
            (vec![entry(formed(2, "second"), 4), taken_back(5)], Change::Excluded),
            (vec![entry(formed(1, "first"), 6), taken_back(7)], Change::StateLost),
        ] {
            let events = events.into_iter().map(Event::Put).collect();
            view.handle(context, WatchId::Group, Update::Events(events));
            assert_eq!(membership.change(context.config, &view), Some(told));
        }
    }
}
