//! How much something stored takes.

/// What an entry takes beside its name and its value.
const ENTRY: usize = 128;

/// How much something stored takes, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub(super) values: usize,
    /// The names of entries, and what an entry takes beside them.
    entries: usize,
}

impl Size {
    pub(super) fn all(self) -> usize {
        self.values + self.entries
    }

    pub(super) fn add_entry(&mut self, name: &[u8]) {
        self.entries += Self::of_entry(name);
    }

    pub(super) fn remove_entry(&mut self, name: &[u8]) {
        self.entries -= Self::of_entry(name);
    }

    pub(super) fn of_entry(name: &[u8]) -> usize {
        name.len() + ENTRY
    }
}
