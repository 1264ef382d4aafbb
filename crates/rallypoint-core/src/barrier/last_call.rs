//! The node that made a version have enough nodes waits for more, and then fixes them.

use std::time::Duration;

use super::machine::{Goal, Machine, Place, Request};
use super::{FROZEN_TTL, LAST_CALL_TTL, Status};

/// How long nobody must have joined before a last call ends early: those who waited are on their way.
const SETTLE: Duration = Duration::from_millis(150);

#[derive(Debug, Clone, PartialEq)]
pub(super) struct LastCall {
    place: Place,
    pub(super) until: Duration,
    /// When the record last got a TTL of this node.
    pub(super) refreshed: Duration,
    /// How many nodes there were, and since when.
    joined: usize,
    since: Duration,
    /// Whether all members of the version before are back; nothing if it is time to look.
    pub(super) all_back: Option<bool>,
}

impl LastCall {
    pub(super) fn new(place: Place, now: Duration, time: Duration, joined: usize) -> Self {
        let until = now.saturating_add(time);
        LastCall { place, until, refreshed: now, joined, since: now, all_back: None }
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }
}

impl Machine {
    pub(super) fn last_call(&mut self, now: Duration, random: f64, mut last_call: LastCall) {
        let place = last_call.place;
        let Some((record, over)) = self.seen(Status::Joinable, place.version) else {
            return self.peers(now, random, place);
        };
        if record.joined() != last_call.joined {
            (last_call.joined, last_call.since) = (record.joined(), now);
        }
        let before = self.came_from;
        if let (Some(version), None) = (before, last_call.all_back) {
            self.goal = Goal::LastCall(last_call);
            return self.ask(Request::ListVersion { version });
        }
        let settled = last_call.since + SETTLE;
        // A node of PyTorch's lets its keep-alive run out: that it is gone does not say that the node is back.
        let early = last_call.all_back == Some(true) && self.mixed != before;
        let end = if early { last_call.until.min(settled) } else { last_call.until };
        let refresh = last_call.refreshed + LAST_CALL_TTL / 2;
        self.goal = Goal::LastCall(last_call);
        if now >= end {
            let ttl = Some(FROZEN_TTL);
            return self.ask(Request::SwapState { record: record.frozen(), over, ttl });
        }
        if now >= refresh {
            let ttl = Some(LAST_CALL_TTL);
            return self.ask(Request::SwapState { record, over, ttl });
        }
        let until = end.min(refresh);
        match before {
            Some(version) if !early => {
                let (from, time) = (self.view.next, until.saturating_sub(now));
                self.ask(Request::WatchVersion { version, from, time });
            }
            _ => self.wait(now, random, record.joined(), Some(until)),
        }
    }
}
