//! What the leader tells the group apart from rounds: at once that it is no longer whole, now and then how far the
//! next round is.
//!
//! ```text
//!            a loss or a newcomer, or progress when it is time
//!   told ──────────────────────────────────────────────────────▶ writing
//!     ▲                                                             │
//!     └──────────────── held, refused or failed ────────────────────┘
//! ```
//!
//! What was told is what stands in the record. A line that had no answer may be written as long as the record is what it was:
//! another is written over it, whether there is something else to tell or not.
//!
//! Nothing is written while a plan is under way: its commit writes the record.

use std::time::Duration;

use super::super::context::{Context, LeaderTask};
use super::super::event::{What, put_group_events};
use super::super::record::{Lost, News, RoundRecord, Why, json};
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
    /// The last line that was sent.
    line: Option<Line>,
    /// One that had no answer, and may be carried out still, or was.
    unanswered: Option<Line>,
    /// When the waiting may be told again how far it is.
    progress_at: Duration,
    /// Members of the last round that were there when this node began to lead.
    found: Option<usize>,
    /// The run's past has that this node leads.
    announced: bool,
    /// It has not that nodes are waiting: those that they wait for may have been dead by then.
    held_back: bool,
    /// And so many of the exclusions that have expired.
    expired: usize,
}

/// A line of news.
#[derive(Debug)]
struct Line {
    /// When the record was written that it is to follow.
    follows: i64,
    /// The record with it.
    text: String,
    /// With it so many of the exclusions are told that have expired.
    expired: usize,
}

impl Newsroom {
    /// `expired`: so many exclusions had before this node led.
    pub(super) fn new(now: Duration, nodes: usize, expired: usize) -> Self {
        let progress_at = now + progress_interval(nodes);
        Newsroom {
            writing: false,
            line: None,
            unanswered: None,
            progress_at,
            found: None,
            announced: false,
            held_back: false,
            expired,
        }
    }

    pub(super) fn is_writing(&self) -> bool {
        self.writing
    }

    pub(super) fn writes(&mut self) {
        (self.writing, self.line) = (true, None);
    }

    /// That is over. `unanswered`: nobody knows whether it was written, or will be.
    pub(super) fn written(&mut self, unanswered: bool) {
        let line = self.line.take_if(|_| unanswered && self.writing);
        (self.writing, self.unanswered) = (false, line.or(self.unanswered.take()));
    }

    /// Sees by the record what was told, once nothing is being written.
    pub(super) fn note_what_was_told(&mut self, view: &View, roster: &mut Roster) {
        let Some(known) = view.known().filter(|_| !self.writing) else { return };
        let settled = self.unanswered.take_if(|line| line.follows != known.modified);
        self.tells(settled.filter(|line| line.text == known.text).as_ref());
        let told = known.record.plan == roster.plan();
        let nothing = News::default();
        roster.losses_were_told(known.modified, if told { &known.record.news } else { &nothing });
    }

    /// The last line stands there.
    pub(super) fn stands(&mut self) {
        let line = self.line.take();
        self.tells(line.as_ref());
    }

    /// What this line was to tell stands there.
    fn tells(&mut self, line: Option<&Line>) {
        if let Some(line) = line {
            (self.announced, self.expired) = (true, line.expired);
        }
    }

    /// Sees whether anybody of the last round is there. Of those whose keys are gone that is known only after a time.
    pub(super) fn look_around(&mut self, roster: &Roster) {
        self.found = self.found.or_else(|| roster.present());
    }

    pub(super) fn found(&self) -> Option<usize> {
        self.found
    }

    /// What is answered from now on to what was sent before concerns nobody any more.
    pub(super) fn forget(&mut self) {
        let writing = self.writing;
        self.written(writing);
    }

    /// A group of so many was told something.
    fn told(&mut self, now: Duration, nodes: usize) {
        self.progress_at = now + progress_interval(nodes);
    }

    /// This node has formed a round.
    pub(super) fn formed(&mut self, now: Duration, nodes: usize) {
        self.told(now, nodes);
        (self.found, self.announced, self.held_back) = (Some(nodes), true, false);
    }

    pub(super) fn timeout(
        &self,
        now: Duration,
        view: &View,
        roster: &Roster,
        planner: &Planner,
    ) -> Option<Duration> {
        (!self.writing && has_progress(now, view, roster, planner)).then_some(self.progress_at)
    }

    pub(super) fn publish(
        &mut self,
        context: &mut Context<'_>,
        term: Term,
        view: &View,
        roster: &mut Roster,
        planner: &Planner,
    ) {
        let Some(known) = view.known() else { return };
        // The commit would be in vain if the record changed meanwhile.
        if self.writing || planner.is_planning() {
            return;
        }
        let left = planner.wait().map(|at| at.saturating_sub(context.now).as_millis());
        let last_call_ms = left.map(|left| u64::try_from(left).unwrap_or(u64::MAX));
        let news = News { last_call_ms, ..roster.news() };
        let told = &known.record.news;
        // A node whose time is short must hear in it that it stands by: a spare waits as long as the run lives. Those
        // who come after the first read it when they come.
        let first_spare = news.spares > 0 && told.spares == 0;
        let has_died = |news: &News| news.lost.iter().any(|lost| lost.why == Why::Died);
        let urgent = known.record.has_round()
            && ((news.lost_count > 0) != (told.lost_count > 0)
                // Whoever wonders what came first waits for that.
                || (has_died(&news) && !has_died(told))
                || (news.waiting > 0) != (told.waiting > 0)
                || first_spare);
        let expired = view.exclusions().expired_after(self.expired);
        let expired: Vec<What> = expired
            .map(|gone| What::Expired { whom: gone.whom.clone(), reason: gone.reason.clone() })
            .collect();
        let urgent = urgent || !expired.is_empty() || self.unanswered.is_some();
        let progress = has_progress(context.now, view, roster, planner);
        if !urgent && (context.now < self.progress_at || !progress) {
            return;
        }
        let mut events = happened(told, &news, context.config.lease_ttl, self.found);
        if self.found.is_none() && known.record.has_round() {
            let before = events.len();
            events.retain(|event| !matches!(event, What::Waiting { .. }));
            self.held_back |= events.len() < before;
        } else if std::mem::take(&mut self.held_back) && news.waiting + news.spares > 0 {
            events.retain(|event| !matches!(event, What::Waiting { .. }));
            events.push(What::Waiting { waiting: news.waiting, spares: news.spares });
        }
        events.extend(expired);
        // Who leads first is told by the round that it forms.
        if !self.announced && known.record.has_round() {
            events.insert(0, What::Leads { found: self.found });
        }
        let counted = known.record.events + events.len() as u64;
        let record = RoundRecord { news, events: counted, ..known.record.clone() };
        let nodes = roster.ids().count().max(context.config.settings.min_nodes);
        self.told(context.now, nodes);
        self.writing = true;
        let expired = view.exclusions().expired_count();
        self.line = Some(Line { follows: known.modified, text: json(&record), expired });
        roster.losses_are_being_told();
        let when = known.stands(&context.keys.round());
        let mut then = put_group_events(context, &record, events);
        then.push(put_round(context, &record));
        let request = term.txn(context, when, then);
        term.send(context, LeaderTask::WriteRound(Box::new(record)), request);
    }
}

/// What has happened to the group since it was last told something.
fn happened(told: &News, news: &News, lease: Duration, found: Option<usize>) -> Vec<What> {
    let mut events = Vec::new();
    // One that asks for another round is the beginning of the end of this one. The others follow it.
    let again = told.lost_count == 0;
    let is_new = |lost: &&Lost| !told.lost.contains(lost) && (again || lost.why != Why::Again);
    let lost: Vec<Lost> = news.lost.iter().filter(is_new).cloned().collect();
    if !lost.is_empty() {
        let count = news.lost_count.saturating_sub(told.lost_count).max(lost.len());
        let died = lost.iter().any(|lost| lost.why == Why::Died);
        let lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        events.push(What::Lost { lost, count, within_ms: died.then_some(lease), found });
    }
    if (news.waiting > 0 && told.waiting == 0) || (news.spares > 0 && told.spares == 0) {
        events.push(What::Waiting { waiting: news.waiting, spares: news.spares });
    }
    events
}

/// Whether the waiting could be told something new of how far it is.
fn has_progress(now: Duration, view: &View, roster: &Roster, planner: &Planner) -> bool {
    let Some(told) = view.known().map(|known| &known.record.news) else { return false };
    let news = roster.news();
    !planner.is_planning()
        && ((news.joined, news.spares, news.waiting) != (told.joined, told.spares, told.waiting)
            // One more, after those that the group has heard of: it is written down when it is known. Or so many were told
            // before, and it is known who.
            || (news.lost_count, &news.lost) != (told.lost_count, &told.lost)
            || news.seatable != told.seatable
            || planner.wait().is_some() != told.last_call_ms.is_some()
            || is_another(now, view.last_call(), planner.wait()))
}

/// Whether the wait ends at another time than was told: whom it was for may be dead by now.
fn is_another(now: Duration, told: Option<Duration>, wait: Option<Duration>) -> bool {
    let (Some(told), Some(wait)) = (told, wait) else { return false };
    told.max(now).abs_diff(wait.max(now)) > 2 * PROGRESS
}

/// How often a group of so many is told how far it is.
fn progress_interval(nodes: usize) -> Duration {
    PROGRESS.max(PROGRESS_PER_NODE.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)))
}
