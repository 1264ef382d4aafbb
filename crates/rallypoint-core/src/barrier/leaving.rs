//! Out again, without leaving the others to find out.

use std::time::Duration;

use super::Status;
use super::machine::{Goal, Machine, Outcome, Place, Request};

/// What leaving may take: the others find out anyhow.
const TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Leave {
    /// Where this node is, in a final version or in one that was to be.
    place: Option<Place>,
    /// Whether its keep-alive is there.
    held: bool,
}

impl Machine {
    /// Begins to leave. A version that is not final yet is ended, as it could not become final; members of a
    /// final one see a number waiting, and come back.
    pub fn leave(&mut self, now: Duration) {
        let (place, held) = match &self.goal {
            Goal::Peers(place) => (Some(*place), false),
            Goal::LastCall(last_call) => (Some(last_call.place()), false),
            Goal::Confirm { place, .. } | Goal::Complete(place) => (Some(*place), true),
            _ => (self.past, self.past.is_some()),
        };
        self.begin(now, Goal::Leave(Leave { place, held }), TIME);
    }

    pub(super) fn go(&mut self, leave: &Leave) {
        let Some(place) = leave.place else {
            self.end(Outcome::Left);
            return;
        };
        if let Some((record, over)) = self.view.record.clone()
            && (record.is(Status::Joinable, place.version) || record.is(Status::Frozen, place.version))
        {
            return self.ask(Request::DeleteState { over });
        }
        if leave.held {
            self.goal = Goal::Leave(Leave { held: false, place: leave.place });
            return self.ask(Request::Release(place));
        }
        match self.seen(Status::Final, place.version) {
            Some((record, over)) => {
                self.ask(Request::SwapState { record: record.with_waiting(), over, ttl: None });
            }
            None => {
                self.end(Outcome::Left);
            }
        }
    }
}
