//! Whose launcher was killed.
//!
//! What such a launcher has started leaves in good order, so the group is told that the node left. The node itself has
//! written down that it was killed, and that is what everybody should read.

use std::collections::HashSet;

use super::Event;
use crate::round::{Lost, What, Why};

/// The nodes that were killed, each in a round.
#[derive(Debug, Clone, Default)]
pub struct Killed(HashSet<(u64, String)>);

impl Killed {
    /// Those of whom these events tell.
    #[must_use]
    pub fn told_by(events: &[Event]) -> Self {
        let mut killed = Killed::default();
        events.iter().for_each(|event| killed.hear(event));
        killed
    }

    /// Takes in one more event.
    pub fn hear(&mut self, Event { record, .. }: &Event) {
        if let What::Killed { .. } = record.what {
            self.0.insert((record.round, record.by.clone()));
        }
    }

    /// Says of the members that a group has lost in that round how they were lost.
    pub fn amend_lost(&self, round: u64, lost: &mut [Lost]) {
        for lost in lost.iter_mut().filter(|lost| lost.why == Why::Left) {
            if self.0.contains(&(round, lost.node.clone())) {
                lost.why = Why::Killed;
            }
        }
    }

    /// The same of those that an event names.
    pub fn amend(&self, event: &mut Event) {
        let round = event.record.round;
        match &mut event.record.what {
            What::Lost { lost, .. } => self.amend_lost(round, lost),
            What::Formed(formed) => self.amend_lost(round.saturating_sub(1), &mut formed.gone),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::{EventRecord, Formed};

    #[test]
    fn a_node_that_was_killed_is_not_said_to_have_left() {
        let event = |round, what| Event { revision: 1, record: EventRecord::new(1, "b", round, what) };
        let lost = |node: &str, why| Lost { node: node.to_owned(), rank: 2, why };
        let told = |round| {
            let lost = vec![lost("b", Why::Left), lost("c", Why::Left)];
            event(round, What::Lost { lost, count: 2, within_ms: None, found: None })
        };
        let killed = Killed::told_by(&[event(4, What::Killed { rank: 2 })]);
        let text = |mut event: Event| {
            killed.amend(&mut event);
            event.text()
        };
        assert_eq!(text(told(4)), "node 2 (b) was killed and node 2 (c) left");
        assert_eq!(text(told(5)), "node 2 (b) left and node 2 (c) left", "in another round it left");
        let formed = Formed { gone: vec![lost("b", Why::Left)], ..Formed::default() };
        assert!(text(event(5, What::Formed(Box::new(formed)))).contains("node 2 (b) was killed"));
    }
}
