//! Promise 12, checked whenever the group's record is written: what happened to the group is written down in the same
//! transaction, and no more of it than there is room for.

use rallypoint_core::round::{Entry, EventRecord, GROUP_EVENTS, Keys, NAMED_MEMBERS, RoundRecord, What};

use crate::check::{Violation, parse, promise};
use crate::etcd::Etcd;

/// `before`: the record that stood there; one without a round where there was none.
pub(crate) fn check(
    etcd: &Etcd,
    keys: &Keys,
    written: &Entry,
    record: &RoundRecord,
    before: &RoundRecord,
) -> Result<(), Violation> {
    let prefix = keys.events();
    let events: Vec<&Entry> = etcd.prefix(&prefix).collect();
    promise!(12, events.len() as u64 <= GROUP_EVENTS, "{} events are kept", events.len());
    let with_it = events.into_iter().filter(|entry| entry.mod_revision == written.mod_revision);
    let now: Vec<EventRecord> = with_it.map(parse).collect::<Result<_, Violation>>()?;
    promise!(
        12,
        now.len() as u64 == record.events.saturating_sub(before.events),
        "{} events came with a record that counts {} after {}: {now:?}",
        now.len(),
        record.events,
        before.events
    );
    let is_new_round = record.has_round() && record.plan != before.plan;
    let formed = now.iter().filter_map(|event| match &event.what {
        What::Formed(formed) => Some((event.round, formed.world_size, formed.members.len())),
        _ => None,
    });
    let expected =
        is_new_round.then_some((record.round, record.world_size, record.world_size.min(NAMED_MEMBERS)));
    promise!(12, formed.eq(expected), "round {} came with {now:?}", record.round);
    if record.closed != before.closed {
        let said = now.iter().any(|event| match &event.what {
            What::Closed { reason } => Some(reason) == record.closed.as_ref(),
            _ => false,
        });
        promise!(12, said, "the close came with {now:?}");
    }
    if !is_new_round && record.news.lost_count > 0 && before.news.lost_count == 0 {
        let said = now.iter().any(|event| matches!(event.what, What::Lost { .. }));
        promise!(12, said || record.news.lost.is_empty(), "a loss came with {now:?}");
    }
    Ok(())
}
