//! What the leader tells the group apart from rounds: at once that it is no longer whole, now and then how far the
//! next round is.

use std::time::Duration;

use super::super::context::{Context, LeaderTask};
use super::super::event::{What, put_group_events};
use super::super::record::{Lost, News, RoundRecord, Why};
use super::super::view::View;
use super::plan::Planner;
use super::roster::Roster;
use super::term::{Term, put_round};

/// How often the waiting are told how far it is, at most; more seldom in larger groups.
const PROGRESS: Duration = Duration::from_secs(1);
const PROGRESS_PER_NODE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Newsroom {
    /// The record is being written.
    writing: bool,
    /// When the waiting may be told again how far it is.
    progress_at: Duration,
    /// The run's past has that this node leads.
    announced: bool,
}

impl Newsroom {
    pub(super) fn new(now: Duration, nodes: usize) -> Self {
        Newsroom { writing: false, progress_at: now + progress_interval(nodes), announced: false }
    }

    pub(super) fn is_writing(&self) -> bool {
        self.writing
    }

    pub(super) fn writes(&mut self) {
        self.writing = true;
    }

    pub(super) fn written(&mut self) {
        self.writing = false;
    }

    /// What was to be told stands there.
    pub(super) fn stands(&mut self) {
        self.announced = true;
    }

    /// What was sent before concerns nobody any more.
    pub(super) fn forget(&mut self) {
        self.writing = false;
    }

    /// A group of so many was told something.
    fn told(&mut self, now: Duration, nodes: usize) {
        self.progress_at = now + progress_interval(nodes);
    }

    /// This node has formed a round.
    pub(super) fn formed(&mut self, now: Duration, nodes: usize) {
        self.told(now, nodes);
        self.announced = true;
    }

    pub(super) fn timeout(&self, view: &View, roster: &Roster, planner: &Planner) -> Option<Duration> {
        (!self.writing && has_progress(view, roster, planner)).then_some(self.progress_at)
    }

    pub(super) fn publish(
        &mut self,
        context: &mut Context<'_>,
        term: Term,
        view: &View,
        roster: &Roster,
        planner: &Planner,
    ) {
        let Some(known) = view.known() else { return };
        // The commit would be in vain if the record changed meanwhile.
        if self.writing || planner.is_planning() {
            return;
        }
        let left = planner.last_call().map(|at| at.saturating_sub(context.now).as_millis());
        let last_call_ms = left.map(|left| u64::try_from(left).unwrap_or(u64::MAX));
        let news = News { last_call_ms, ..roster.news() };
        let told = &known.record.news;
        // A node whose time is short must hear in it that it stands by: a spare waits as long as the run lives. Those
        // who come after the first read it when they come.
        let first_spare = news.spares > 0 && told.spares == 0;
        let urgent = known.record.has_round()
            && ((news.lost_count > 0) != (told.lost_count > 0)
                || (news.waiting > 0) != (told.waiting > 0)
                || first_spare);
        let progress = has_progress(view, roster, planner);
        if !urgent && (context.now < self.progress_at || !progress) {
            return;
        }
        let mut events = happened(told, &news, context.config.lease_ttl);
        // Who leads first is told by the round that it forms.
        if !self.announced && known.record.has_round() {
            events.insert(0, What::Leads);
        }
        let counted = known.record.events + events.len() as u64;
        let record = RoundRecord { news, events: counted, ..known.record.clone() };
        let nodes = roster.ids().count().max(context.config.settings.min_nodes);
        self.told(context.now, nodes);
        self.writing = true;
        let when = known.stands(&context.keys.round());
        let mut then = put_group_events(context, &record, events);
        then.push(put_round(context, &record));
        let request = term.txn(context, when, then);
        term.send(context, LeaderTask::WriteRound(Box::new(record)), request);
    }
}

/// What has happened to the group since it was last told something.
fn happened(told: &News, news: &News, lease: Duration) -> Vec<What> {
    let mut events = Vec::new();
    // One that asks for another round is the beginning of the end of this one. The others follow it.
    let again = told.lost_count == 0;
    let is_new = |lost: &&Lost| !told.lost.contains(lost) && (again || lost.why != Why::Again);
    let lost: Vec<Lost> = news.lost.iter().filter(is_new).cloned().collect();
    if !lost.is_empty() {
        let count = news.lost_count.saturating_sub(told.lost_count).max(lost.len());
        let died = lost.iter().any(|lost| lost.why == Why::Died);
        let lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        events.push(What::Lost { lost, count, within_ms: died.then_some(lease) });
    }
    if (news.waiting > 0 && told.waiting == 0) || (news.spares > 0 && told.spares == 0) {
        events.push(What::Waiting { waiting: news.waiting, spares: news.spares });
    }
    events
}

/// Whether the waiting could be told something new of how far it is.
fn has_progress(view: &View, roster: &Roster, planner: &Planner) -> bool {
    let Some(told) = view.known().map(|known| &known.record.news) else { return false };
    let news = roster.news();
    !planner.is_planning()
        && ((news.joined, news.spares, news.waiting) != (told.joined, told.spares, told.waiting)
            || news.seatable != told.seatable
            || planner.last_call().is_some() != told.last_call_ms.is_some())
}

/// How often a group of so many is told how far it is.
fn progress_interval(nodes: usize) -> Duration {
    PROGRESS.max(PROGRESS_PER_NODE.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)))
}
