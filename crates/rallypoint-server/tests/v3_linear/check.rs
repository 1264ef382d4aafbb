//! Whether a history is linearizable.
//!
//! In general that is hard to tell. Here it is not: each answer has a revision, which says where the server puts the
//! request in the one order of all. So it is enough that this order explains every answer, and that who began after
//! another had ended comes after it.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Event, Op, Seen, What};

type Verdict = Result<(), String>;

/// Every state that a key was in, by the revision that brought it about.
struct States<'a> {
    changes: BTreeMap<i64, Vec<&'a Event>>,
    of: HashMap<&'a str, Vec<(i64, Option<&'a Seen>)>>,
}

/// A request, where it is in the order: at a change of its own, or anywhere before the next one.
#[derive(Debug, Clone, Copy)]
struct Placed<'a> {
    op: &'a Op,
    revision: i64,
    changes: bool,
}

pub(crate) fn linearizable(events: &[Event], ops: &[Op]) -> Verdict {
    let states = States::new(events)?;
    let mut owners: BTreeMap<i64, &Op> = BTreeMap::new();
    let mut placed = Vec::new();
    let (revocations, others): (Vec<&Op>, Vec<&Op>) =
        ops.iter().partition(|op| matches!(op.what, What::Revoked { .. }));
    for op in others {
        states.explain(op)?;
        let changes = op.what.changes();
        if changes && let Some(other) = owners.insert(op.revision, op) {
            return Err(format!("{op:?} and {other:?} are told the same revision"));
        }
        placed.push(Placed { op, revision: op.revision, changes });
    }
    // etcd's answer has the revision of a moment later.
    for op in revocations {
        states.explain(op)?;
        let own = states.revocation(op, &owners);
        owners.extend(own.map(|revision| (revision, op)));
        placed.push(Placed { op, revision: own.unwrap_or(op.revision), changes: own.is_some() });
    }
    if let Some((revision, changes)) =
        states.changes.iter().find(|(revision, _)| !owners.contains_key(revision))
    {
        return Err(format!("revision {revision} is a change that nobody has asked for: {changes:?}"));
    }
    in_real_time(&placed)
}

impl<'a> States<'a> {
    fn new(events: &'a [Event]) -> Result<Self, String> {
        let mut states = States { changes: BTreeMap::new(), of: HashMap::new() };
        for event in events {
            let before = states.at(&event.key, event.revision - 1);
            let follows = match (&event.now, before) {
                (None, before) => before.is_some(),
                (Some(now), None) => (now.created, now.version) == (event.revision, 1),
                (Some(now), Some(before)) => {
                    (now.created, now.version) == (before.created, before.version + 1)
                }
            };
            if !follows {
                return Err(format!("{event:?} does not follow from {before:?}"));
            }
            states.changes.entry(event.revision).or_default().push(event);
            states.of.entry(&event.key).or_default().push((event.revision, event.now.as_ref()));
        }
        Ok(states)
    }

    /// How a key stood at a revision.
    fn at(&self, key: &str, revision: i64) -> Option<&'a Seen> {
        let states = self.of.get(key)?;
        let later = states.partition_point(|(at, _)| *at <= revision);
        states[..later].last().and_then(|(_, state)| *state)
    }

    /// Whether the order explains what a client was told.
    fn explain(&self, op: &Op) -> Verdict {
        let (here, before) = (op.revision, op.revision - 1);
        let stood = |key: &str, revision, told: &Option<Seen>| match self.at(key, revision) == told.as_ref() {
            true => Ok(()),
            false => Err(format!("{op:?}: {key} stood otherwise: {:?}", self.at(key, revision))),
        };
        let changed = |key: &str, value: Option<&Vec<u8>>| match self.changes.get(&here).map(Vec::as_slice) {
            Some([event]) if event.key == key && event.now.as_ref().map(|now| &now.value) == value => Ok(()),
            other => Err(format!("{op:?} is not what happened at revision {here}: {other:?}")),
        };
        let modified = |key: &str, revision| self.at(key, revision).map_or(0, |seen| seen.modified);
        match &op.what {
            What::Read(keys) => keys.iter().try_for_each(|(key, told)| stood(key, here, told)),
            What::Wrote { key, value, before: told } => {
                changed(key, value.as_ref())?;
                stood(key, before, told)
            }
            What::Swapped { key, value, expected } => {
                changed(key, Some(value))?;
                match modified(key, before) == *expected {
                    true => Ok(()),
                    false => Err(format!("{op:?}: it was modified meanwhile")),
                }
            }
            What::NotSwapped { key, expected, found } => {
                stood(key, here, found)?;
                match modified(key, here) != *expected {
                    true => Ok(()),
                    false => Err(format!("{op:?}: nothing was in its way")),
                }
            }
            What::Revoked { lease } => {
                let left =
                    self.of.keys().find(|key| self.at(key, here).is_some_and(|seen| seen.lease == *lease));
                left.map_or(Ok(()), |key| Err(format!("{op:?}: {key} still hangs on the lease")))
            }
        }
    }

    /// The revision at which the keys of a lease were deleted, all at once, if it had any then.
    fn revocation(&self, op: &Op, owners: &BTreeMap<i64, &Op>) -> Option<i64> {
        let What::Revoked { lease } = op.what else { return None };
        let hung = |key: &str, revision| self.at(key, revision - 1).is_some_and(|seen| seen.lease == lease);
        let whole = |revision: i64, changes: &[&Event]| {
            let all = self.of.keys().filter(|key| hung(key, revision)).count();
            let gone = changes.iter().all(|event| event.now.is_none() && hung(&event.key, revision));
            gone && changes.len() == all
        };
        let unexplained =
            self.changes.range(..=op.revision).filter(|(revision, _)| !owners.contains_key(revision));
        unexplained
            .filter(|(revision, changes)| whole(**revision, changes))
            .map(|(revision, _)| *revision)
            .next_back()
    }
}

/// Who began after another had ended comes after it.
fn in_real_time(placed: &[Placed<'_>]) -> Verdict {
    let mut begun = placed.to_vec();
    begun.sort_by_key(|it| it.op.began);
    let mut ended = begun.clone();
    ended.sort_by_key(|it| it.op.ended);
    let mut ended = ended.into_iter().peekable();
    let mut latest: Option<Placed<'_>> = None;
    for it in begun {
        while let Some(other) = ended.next_if(|other| other.op.ended < it.op.began) {
            if latest.is_none_or(|latest| latest.revision < other.revision) {
                latest = Some(other);
            }
        }
        let is_after = |other: &Placed<'_>| it.revision >= other.revision + i64::from(it.changes);
        if let Some(other) = latest.filter(|other| !is_after(other)) {
            return Err(format!("{it:?} was told an earlier state than {other:?}, which had ended before"));
        }
    }
    Ok(())
}
