//! What the leader writes into the round's record apart from rounds: the first one, and the news.

use std::time::Duration;

use super::etcd::{Request, TxnReply};
use super::leader::{Lead, LeaderTask, RunLease};
use super::node::{Node, Task};
use super::record::{News, RoundRecord};

/// How often the waiting are told how far it is, at most; more seldom in larger groups.
const PROGRESS: Duration = Duration::from_secs(1);
const PROGRESS_PER_NODE: Duration = Duration::from_millis(2);

impl Node {
    /// The record of a run that has none, or whose lease is gone.
    pub(super) fn make_record(&mut self, now: Duration) {
        let Some(lead) = &mut self.lead else { return };
        if lead.writing {
            return;
        }
        let RunLease::New(lease) = lead.run_lease else {
            lead.run_lease = RunLease::Granting;
            return self.leader_request(LeaderTask::GrantRun);
        };
        let record = match &self.round {
            // It was closed meanwhile, and stays on the lease that the mark of that has; or it is this node's own
            // commit, which the watch has told of before the reply.
            Some((record, _))
                if !self.round_missing && (record.closed.is_some() || record.lease == lease) =>
            {
                lead.recorded(now + self.config.run_ttl / 3);
                if record.lease != lease {
                    self.request(Task::Forgotten, Request::Revoke(lease));
                }
                return;
            }
            Some((record, _)) => {
                // If the record is gone so are the places: nobody knows any more who the members are.
                let lost_count = record.news.lost_count + usize::from(self.round_missing);
                let news = News { lost_count, ..record.news.clone() };
                RoundRecord { lease, news, ..record.clone() }
            }
            // Who is complete already is told once, by the first round's own record.
            None if self.begins_complete() => return self.drive_plan(now),
            None => self.blank_record(lease),
        };
        if let Some(lead) = &mut self.lead {
            lead.writing = true;
        }
        self.leader_request(LeaderTask::WriteRound(Box::new(record)));
    }

    /// Whether all that there is room for are here, or are being given their places, before the run has a record.
    fn begins_complete(&self) -> bool {
        let complete = |lead: &Lead| {
            let here = lead.roster.joined() >= self.config.settings.max_nodes && lead.roster.wants_a_round();
            lead.plan.is_some() || here && lead.plan_at == Duration::ZERO
        };
        self.lead.as_deref().is_some_and(complete)
    }

    /// A record before the first round.
    fn blank_record(&self, lease: i64) -> RoundRecord {
        RoundRecord {
            round: self.lead.as_ref().map_or(0, |lead| lead.roster.last_round()),
            plan: String::new(),
            world_size: 0,
            master: None,
            settings: Some(self.config.settings),
            lease,
            closed: None,
            news: News::default(),
        }
    }

    pub(super) fn round_written(&mut self, now: Duration, record: RoundRecord, reply: TxnReply) {
        if !reply.held {
            return self.not_held(reply);
        }
        self.round_now(now, record, reply.revision);
    }

    /// This node itself has written the round's record. The watch may have told of a later one by now.
    pub(super) fn round_now(&mut self, now: Duration, record: RoundRecord, revision: i64) {
        if let Some(lead) = &mut self.lead
            && lead.run_lease == RunLease::New(record.lease)
        {
            lead.recorded(now + self.config.run_ttl / 3);
        }
        if self.round.as_ref().is_none_or(|(_, modified)| *modified < revision) {
            self.round = Some((record, revision));
            self.round_missing = false;
        }
        self.settle();
    }

    fn news(&self, lead: &Lead, now: Duration) -> News {
        let left = lead.last_call_at.map(|at| at.saturating_sub(now).as_millis());
        News { last_call_ms: left.map(|left| u64::try_from(left).unwrap_or(u64::MAX)), ..lead.roster.news() }
    }

    /// Whether the waiting could be told something new of how far it is.
    pub(super) fn has_progress(&self, lead: &Lead) -> bool {
        let Some((record, _)) = &self.round else { return false };
        let news = lead.roster.news();
        let told = &record.news;
        !lead.writing
            && lead.plan.is_none()
            && record.closed.is_none()
            && ((news.joined, news.spares, news.waiting) != (told.joined, told.spares, told.waiting)
                || lead.last_call_at.is_some() != told.last_call_ms.is_some())
    }

    /// Tells the group what it should know: at once that it is no longer whole, now and then how far the next
    /// round is.
    pub(super) fn publish(&mut self, now: Duration) {
        let (Some(lead), Some((record, _))) = (&self.lead, &self.round) else { return };
        // The commit would be in vain if the record changed meanwhile.
        if lead.writing || lead.plan.is_some() {
            return;
        }
        let news = self.news(lead, now);
        let urgent = record.round > 0
            && ((news.lost_count > 0) != (record.news.lost_count > 0)
                || (news.waiting > 0) != (record.news.waiting > 0));
        if !urgent && (now < lead.progress_at || !self.has_progress(lead)) {
            return;
        }
        let record = RoundRecord { news, ..record.clone() };
        let Some(lead) = &mut self.lead else { return };
        let nodes = lead.roster.ids().count().max(self.config.settings.min_nodes);
        lead.progress_at = now + progress_interval(nodes);
        lead.writing = true;
        self.leader_request(LeaderTask::WriteRound(Box::new(record)));
    }
}

/// How often a group of so many is told how far it is.
pub(super) fn progress_interval(nodes: usize) -> Duration {
    PROGRESS.max(PROGRESS_PER_NODE.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)))
}
