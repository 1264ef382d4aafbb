//! How many nodes of each rack there are, and how many of them make whole segments. Each event touches one rack.

use std::collections::HashMap;
use std::num::NonZeroUsize;

#[derive(Debug)]
pub(super) struct Racks {
    segment_size: NonZeroUsize,
    nodes: HashMap<String, usize>,
    /// Segments that these nodes can make, over all racks.
    segments: usize,
}

impl Racks {
    pub(super) fn new(segment_size: NonZeroUsize) -> Self {
        Racks { segment_size, nodes: HashMap::new(), segments: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.segments = 0;
    }

    pub(super) fn add(&mut self, rack: &str) {
        // Who does not say where it is cannot be next to anybody.
        if rack.is_empty() {
            return;
        }
        let nodes = self.nodes.entry(rack.to_owned()).or_insert(0);
        *nodes += 1;
        self.segments += usize::from(nodes.is_multiple_of(self.segment_size.get()));
    }

    pub(super) fn remove(&mut self, rack: &str) {
        let Some(nodes) = self.nodes.get_mut(rack) else { return };
        self.segments -= usize::from(nodes.is_multiple_of(self.segment_size.get()));
        *nodes -= 1;
        if *nodes == 0 {
            self.nodes.remove(rack);
        }
    }

    /// The nodes of all segments that are whole.
    pub(super) fn in_segments(&self) -> usize {
        self.segments * self.segment_size.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_of_one_rack_each() {
        let mut racks = Racks::new(NonZeroUsize::new(2).expect("2 is not 0"));
        let counts: Vec<usize> = ["a", "b", "a", "", "", "a", "b", "a"]
            .into_iter()
            .map(|rack| {
                racks.add(rack);
                racks.in_segments()
            })
            .collect();
        assert_eq!(counts, [0, 0, 2, 2, 2, 2, 4, 6]);
        for (rack, left) in [("b", 4), ("b", 4), ("b", 4), ("", 4), ("a", 2), ("a", 2), ("a", 0), ("a", 0)] {
            racks.remove(rack);
            assert_eq!(racks.in_segments(), left, "{rack}");
        }
    }
}
