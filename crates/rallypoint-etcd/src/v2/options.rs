//! What a request can be told beyond its key.

use std::time::Duration;

/// The longest TTL: 200 years. etcd's clock ends in 2262, and a TTL beyond that wraps around into the past.
pub const MAX_TTL: Duration = Duration::from_secs(200 * 365 * 24 * 3600);

/// How to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Get {
    pub(super) recursive: bool,
    pub(super) sorted: bool,
    pub(super) local: bool,
}

impl Get {
    /// One key, or a directory and what is right in it; agreed on by the cluster.
    #[must_use]
    pub fn new() -> Self {
        Get::default()
    }

    /// Whatever is under the directory, too.
    #[must_use]
    pub fn recursive(self) -> Self {
        Get { recursive: true, ..self }
    }

    /// Sorted by key.
    #[must_use]
    pub fn sorted(self) -> Self {
        Get { sorted: true, ..self }
    }

    /// What the server asked happens to know, which may be out of date; cheaper.
    #[must_use]
    pub fn local(self) -> Self {
        Get { local: true, ..self }
    }

    pub(super) fn fields(&self) -> Vec<(&'static str, &'static str)> {
        let given = [("quorum", !self.local), ("recursive", self.recursive), ("sorted", self.sorted)];
        given.into_iter().filter(|(_, on)| *on).map(|(name, _)| (name, "true")).collect()
    }
}

/// What to write, and on which conditions. Without a value and not a directory, the value is empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct Put<'a> {
    value: Option<&'a str>,
    dir: bool,
    ttl: Option<Duration>,
    refresh: bool,
    prev_exist: Option<bool>,
    prev_value: Option<&'a str>,
    prev_index: Option<u64>,
}

impl<'a> Put<'a> {
    /// A value.
    #[must_use]
    pub fn value(value: &'a str) -> Self {
        Put { value: Some(value), ..Put::default() }
    }

    /// A directory.
    #[must_use]
    pub fn dir() -> Self {
        Put { dir: true, ..Put::default() }
    }

    /// Only a new TTL, for a key that is there; nobody who watches it is told.
    #[must_use]
    pub fn refresh(ttl: Duration) -> Self {
        Put { refresh: true, ..Put::default() }.ttl(ttl).prev_exist(true)
    }

    /// Removed after this time, in whole seconds (rounded up) and for [`MAX_TTL`] at most. Without one, it
    /// stays; a TTL it had is dropped.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Put { ttl: Some(ttl), ..self }
    }

    /// Only if the key is there, or only if it is not.
    #[must_use]
    pub fn prev_exist(self, exist: bool) -> Self {
        Put { prev_exist: Some(exist), ..self }
    }

    /// Only over this value. The API cannot say "over an empty one": use the index for that.
    #[must_use]
    pub fn prev_value(self, value: &'a str) -> Self {
        Put { prev_value: Some(value), ..self }
    }

    /// Only over what was written at this index.
    #[must_use]
    pub fn prev_index(self, index: u64) -> Self {
        Put { prev_index: Some(index), ..self }
    }

    /// What to call it in errors.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Put { refresh: true, .. } => "refresh",
            Put { prev_index: Some(_), .. } | Put { prev_value: Some(_), .. } => "compare-and-swap",
            Put { prev_exist: Some(true), .. } => "update",
            Put { prev_exist: Some(false), .. } => "create",
            Put { dir: true, .. } => "set directory",
            _ => "set",
        }
    }

    pub(super) fn form(&self) -> String {
        let ttl = self.ttl.map(whole_seconds);
        let prev_index = self.prev_index.map(|index| index.to_string());
        let flag = |on: bool| on.then_some("true");
        let given = [
            ("value", self.value),
            ("dir", flag(self.dir)),
            ("ttl", ttl.as_deref()),
            ("refresh", flag(self.refresh)),
            ("prevExist", self.prev_exist.map(|exist| if exist { "true" } else { "false" })),
            ("prevValue", self.prev_value),
            ("prevIndex", prev_index.as_deref()),
        ];
        super::path::form(
            &given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect::<Vec<_>>(),
        )
    }
}

fn whole_seconds(ttl: Duration) -> String {
    let ttl = ttl.min(MAX_TTL);
    (ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).to_string()
}

/// What to remove, and on which conditions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delete<'a> {
    dir: bool,
    recursive: bool,
    prev_value: Option<&'a str>,
    prev_index: Option<u64>,
}

impl<'a> Delete<'a> {
    /// A key.
    #[must_use]
    pub fn key() -> Self {
        Delete::default()
    }

    /// An empty directory.
    #[must_use]
    pub fn dir() -> Self {
        Delete { dir: true, ..Delete::default() }
    }

    /// A directory with everything in it.
    #[must_use]
    pub fn tree() -> Self {
        Delete { recursive: true, ..Delete::dir() }
    }

    /// Only with this value. The API cannot say "with an empty one": use the index for that.
    #[must_use]
    pub fn prev_value(self, value: &'a str) -> Self {
        Delete { prev_value: Some(value), ..self }
    }

    /// Only what was written at this index.
    #[must_use]
    pub fn prev_index(self, index: u64) -> Self {
        Delete { prev_index: Some(index), ..self }
    }

    /// What to call it in errors.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Delete { prev_value: None, prev_index: None, .. } => "delete",
            _ => "compare-and-delete",
        }
    }

    pub(super) fn query(&self) -> String {
        let prev_index = self.prev_index.map(|index| index.to_string());
        let flag = |on: bool| on.then_some("true");
        let given = [
            ("dir", flag(self.dir)),
            ("recursive", flag(self.recursive)),
            ("prevValue", self.prev_value),
            ("prevIndex", prev_index.as_deref()),
        ];
        super::path::form(
            &given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect::<Vec<_>>(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_said_is_sent() {
        assert_eq!(Put::value("").form(), "value=");
        assert_eq!(Put::default().form(), "");
        assert_eq!(Put::refresh(Duration::from_millis(1500)).form(), "ttl=2&refresh=true&prevExist=true");
        assert_eq!(
            Put::value("a").prev_value("b").prev_index(7).prev_exist(false).form(),
            "value=a&prevExist=false&prevValue=b&prevIndex=7"
        );
        assert_eq!(Delete::tree().query(), "dir=true&recursive=true");
        assert_eq!(Get::new().fields(), [("quorum", "true")]);
        assert_eq!(Get::new().local().recursive().fields(), [("recursive", "true")]);
    }
}
