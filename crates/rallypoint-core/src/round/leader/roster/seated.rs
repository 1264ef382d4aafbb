//! In which rounds processes had seats: what one wanted before it knew of its round may come late.

use std::collections::HashMap;

use super::super::super::record::NodeRecord;

/// More processes do not fight for one name at a time.
const OF_ONE_NAME: usize = 8;

/// The last round of each process that had a seat, by their names.
#[derive(Debug, Default)]
pub(super) struct Seated(HashMap<String, Vec<(u64, u64)>>);

impl Seated {
    /// A process by this name had a seat in that round.
    pub(super) fn add(&mut self, id: &str, incarnation: u64, round: u64) {
        let seats = self.0.entry(id.to_owned()).or_default();
        seats.retain(|(of, _)| *of != incarnation);
        if seats.len() == OF_ONE_NAME {
            seats.remove(0);
        }
        seats.push((incarnation, round));
    }

    /// Whether a process said this before it knew of the last round in which it had a seat. Another by its name may have had
    /// one since.
    pub(super) fn is_outdated(&self, id: &str, said: &NodeRecord) -> bool {
        let mut seats = self.0.get(id).into_iter().flatten();
        seats.any(|(incarnation, round)| said.incarnation == *incarnation && said.round < *round)
    }
}
