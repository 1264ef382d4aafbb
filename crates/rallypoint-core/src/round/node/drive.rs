//! What a node does after whatever happened to it: from how things stand, and not from what it was.

use std::time::Duration;

use super::super::context::Context;
use super::super::departure::{Departure, Standing};
use super::super::election::{Campaigned, Vacancy};
use super::super::etcd::{Failure, Reply};
use super::super::leader::{Leader, Word};
use super::super::membership::{Goal, Verdict};
use super::super::output::NodeEvent;
use super::super::presence::Found;
use super::super::view::{LeaderKey, looked};
use super::Node;

impl Node {
    /// Does what is to be done now.
    pub(super) fn drive(&mut self, now: Duration) {
        self.driven = now;
        self.presence.retry().is_due(now);
        if self.view.take_loss() {
            self.data_was_lost(now);
        }
        if self.view.take_formed() {
            self.loss_is_over();
        }
        self.view.note_last_call(now);
        self.answer_leader();
        self.decide();
        self.lead_or_not(now);
        match self.membership.goal() {
            Goal::Out => {}
            Goal::Working => {
                self.drive_in(now);
                self.drive_election(now);
            }
            Goal::Joining { .. } => {
                // Whoever closes the run asks for no round before that is done.
                if self.closing.is_none() {
                    self.drive_in(now);
                }
                self.drive_election(now);
            }
            Goal::Leaving { .. } => self.drive_departure(now),
        }
        if let Some(leader) = self.leader.as_mut().filter(|_| !self.view.is_blind()) {
            let spoken = self.presence.has_said(|record| self.membership.is_said_by(record));
            leader.drive(context!(self, now), &self.view, &self.silence, spoken);
            if leader.is_denied(now) {
                // Some servers refresh the lease all the same, and the others would wait for this leader for ever.
                self.presence.give_up_lease(context!(self, now));
                return self.drive(now);
            }
        }
        self.drive_close(now);
    }

    pub(super) fn data_was_lost(&mut self, now: Duration) {
        self.lost_at = Some(now);
        self.silence.forget();
        if let Some(leader) = &mut self.leader {
            leader.data_was_lost(now);
        }
    }

    /// A round was completed since etcd has lost data: the numbers of rounds tell again which came later.
    fn loss_is_over(&mut self) {
        self.lost_at = None;
        if let Some(leader) = &mut self.leader {
            leader.loss_is_over();
        }
    }

    /// Registers again if the leader asks whether this node is there.
    fn answer_leader(&mut self) {
        let asked = self
            .view
            .place()
            .filter(|place| place.record.asked && place.record.incarnation == self.config.incarnation);
        // A question of another history may have the same revision.
        let asked = asked.map(|place| (self.out.epoch(), place.modified));
        if let Some(asked) = asked.filter(|asked| *asked != self.asked && !self.view.is_blind()) {
            self.asked = asked;
            self.presence.is_missed();
        }
    }

    /// Draws the conclusions from what is known of the group.
    fn decide(&mut self) {
        if self.view.is_blind() {
            return;
        }
        // Whoever is called lost may have been replaced, and should hear that rather.
        if let Some(plan) = self.membership.is_called_lost(&self.config, &self.view)
            && self.look.asks_why(plan)
        {
            return;
        }
        let unanswered = self.presence.is_unanswered();
        while let Some(verdict) = self.membership.decide(&self.config, &self.view, unanswered) {
            self.tell(verdict);
        }
    }

    fn tell(&mut self, verdict: Verdict) {
        self.out.tell(match verdict {
            Verdict::Joined(joined) => NodeEvent::Joined(joined),
            Verdict::Changed(change) => NodeEvent::Changed(change),
            Verdict::Refused(refusal) => NodeEvent::Refused(refusal),
            Verdict::Progress(progress) => progress,
        });
    }

    fn drive_in(&mut self, now: Duration) {
        let check_is_due = self.check_at().is_some_and(|at| at <= now);
        let context = context!(self, now);
        if !self.presence.hold_lease(context) {
            return;
        }
        // Not before there is a lease: where many come at once, most then come after the first events of the group,
        // which would go to every one of them.
        self.view.open(context);
        if !self.view.is_open() {
            return;
        }
        let membership = &self.membership;
        let stands = self.presence.register(
            context,
            || membership.record(&self.config),
            |record| membership.is_said_by(record),
        );
        self.look.drive(context, stands, self.view.is_blind() || check_is_due);
    }

    /// When a node that waits for a round looks whether etcd still has it as it should.
    pub(super) fn check_at(&self) -> Option<Duration> {
        let waits = self.membership.is_joining() && self.presence.stands().is_some();
        let joined = self.view.known().map_or(0, |known| known.record.news.joined);
        self.look.check_at(joined, self.config.lease_ttl).filter(|_| waits)
    }

    pub(super) fn looked(&mut self, now: Duration, reply: Result<Reply, Failure>) {
        let Ok(Reply::Txn(reply)) = reply else { return self.look.failed(context!(self, now)) };
        self.look.answered(now);
        if !self.membership.is_in() {
            return;
        }
        let sight = looked(reply);
        let context = context!(self, now);
        self.view.see(context, &sight);
        let found = self.presence.looked(context, &sight);
        self.found(now, found);
        self.look.knows_why(self.membership.is_called_lost(&self.config, &self.view));
        self.decide();
        self.membership.catch_up(&self.view, sight.revision);
    }

    /// What has turned out about this node's own key.
    pub(super) fn found(&mut self, now: Duration, found: Found) {
        match found {
            Found::Nothing | Found::LeaseLost => {}
            Found::Registered(sight) => {
                self.look.seen(now);
                let context = context!(self, now);
                self.view.see(context, &sight);
                if self.view.is_told() {
                    self.contact = Some(now);
                }
            }
            Found::Replaced { by } => self.replaced(by),
            Found::Mismatch(refusal) => {
                if self.membership.is_in() {
                    self.membership.leave();
                    self.out.tell(NodeEvent::Refused(refusal));
                }
            }
        }
    }

    fn replaced(&mut self, by: String) {
        self.presence.key_is_gone();
        if let Some(verdict) = self.membership.replaced(by) {
            self.tell(verdict);
        }
    }

    /// Leads if etcd says so, and not if not.
    fn lead_or_not(&mut self, now: Duration) {
        if self.view.is_blind() {
            return;
        }
        // Of a closed run the leader is needed to its end: it tidies up.
        let closes = self.view.is_closed() || self.closing.is_some();
        let leaving = matches!(self.membership.goal(), Goal::Leaving { .. });
        let willing = self.membership.is_in() || (leaving && closes);
        let term = match self.view.leader() {
            LeaderKey::Held { lease, created } if willing && self.presence.lease() == Some(lease) => {
                Some(created)
            }
            _ => None,
        };
        if self.leader.as_ref().map(|leader| leader.began()) == term {
            return;
        }
        let context = context!(self, now);
        if let Some(leader) = self.leader.take() {
            leader.step_down(context);
        }
        let (last_call, expired) = (self.view.last_call(), self.view.exclusions().expired_count());
        self.leader = term.map(|term| Box::new(Leader::new(context, term, self.lost_at, last_call, expired)));
    }

    pub(super) fn leaders_word(&mut self, now: Duration, word: Word) {
        match word {
            Word::Nothing => {}
            Word::NotLeading => {
                if let Some(leader) = self.leader.take() {
                    leader.step_down(context!(self, now));
                }
            }
            Word::OwnKeyGone => self.presence.key_is_gone(),
            // Or etcd was restored to a time when an earlier process had the name, and only this watch knows so far.
            Word::OthersKey { record, modified } => {
                let context = context!(self, now);
                if self.presence.is_taken(context, modified, &record) {
                    self.replaced(record.address);
                }
            }
        }
    }

    fn drive_election(&mut self, now: Duration) {
        let (lease, stands) = (self.presence.lease(), self.presence.stands());
        let vacancy = match self.view.leader() {
            LeaderKey::Free => Some(Vacancy::Free),
            LeaderKey::Nobodys { modified } => Some(Vacancy::Nobodys { modified }),
            LeaderKey::Unknown | LeaderKey::Held { .. } => None,
        };
        match (vacancy, lease, stands) {
            (Some(vacancy), Some(lease), Some(own)) if !self.view.is_blind() => {
                let round = self.view.known().map(|known| &known.record);
                let nodes = round.map_or(2, |record| record.world_size.max(record.news.joined));
                self.election.run(context!(self, now), vacancy, nodes, lease, own);
            }
            _ => self.election.call_off(),
        }
    }

    pub(super) fn campaigned(&mut self, now: Duration, reply: Result<Reply, Failure>) {
        match self.election.campaigned(context!(self, now), reply) {
            Campaigned::Nothing => {}
            Campaigned::Won(revision) => {
                if let Some(lease) = self.presence.lease() {
                    self.view.leads_since(revision, lease);
                }
            }
            Campaigned::Freed(revision) => self.view.see_leader(revision, None),
            Campaigned::Led(revision, leader) => self.view.see_leader(revision, Some(&leader)),
            // A registration that is under way will tell.
            Campaigned::KeyGone if self.presence.is_busy() => {}
            Campaigned::KeyGone => self.presence.key_is_gone(),
            Campaigned::LeaseLost => self.presence.lose_lease(context!(self, now)),
        }
    }

    fn drive_departure(&mut self, now: Duration) {
        self.election.call_off();
        // What is under way may leave something behind.
        if self.presence.is_busy() || self.election.is_asking() || self.closing.is_some() {
            return;
        }
        let departure = self.departure.get_or_insert_with(|| Departure::new(now));
        let lease = self.presence.lease();
        let standing = Standing {
            lease,
            key: self.presence.stands(),
            leads: matches!(self.view.leader(), LeaderKey::Held { lease: on, .. } if lease == Some(on)),
            sees_others: self.leader.as_ref().is_some_and(|leader| leader.sees_others()),
            gave_up_ms: self.gave_up_ms,
        };
        let farewell = self.membership.record(&self.config);
        let context = context!(self, now);
        departure.drive(context, &self.view, &standing, &farewell);
        if !departure.is_gone() {
            return;
        }
        self.departure = None;
        self.presence.lose_lease(context);
        if let Some(leader) = self.leader.take() {
            leader.step_down(context);
        }
        self.view.close(context);
        self.membership.gone();
        self.out.tell(NodeEvent::Left);
        // A round may have been asked for meanwhile.
        if self.membership.is_in() {
            self.drive(now);
        }
    }

    fn drive_close(&mut self, now: Duration) {
        let outcome = self.closing.as_mut().and_then(|closing| closing.drive(context!(self, now)));
        if let Some(outcome) = outcome {
            self.closing = None;
            self.out.tell(NodeEvent::Closed(outcome));
            self.drive(now);
        }
    }
}
