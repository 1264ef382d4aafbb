//! Which keys a user may read, and which it may write.

use super::model::{Access, Permission};
use crate::mvcc::Span;

/// Stretches of keys that neither meet nor overlap, in order.
#[derive(Debug, Default)]
pub(super) struct Coverage(Vec<Stretch>);

#[derive(Debug)]
struct Stretch {
    start: Vec<u8>,
    /// The first key after it; none if it has no end.
    end: Option<Vec<u8>>,
}

impl Coverage {
    /// What permissions allow together.
    pub(super) fn of<'a>(permissions: impl Iterator<Item = &'a Permission>, access: Access) -> Self {
        let allowed = permissions.filter(|permission| permission.allows(access));
        let mut stretches: Vec<Stretch> = allowed.filter_map(Stretch::of).collect();
        stretches.sort_by(|a, b| a.start.cmp(&b.start));
        let mut merged: Vec<Stretch> = Vec::new();
        for next in stretches {
            match merged.last_mut() {
                Some(last) if last.end.as_ref().is_none_or(|end| *end >= next.start) => last.grow(next.end),
                _ => merged.push(next),
            }
        }
        Coverage(merged)
    }

    /// Whether all keys of a span are in it.
    pub(super) fn covers<T: AsRef<[u8]>>(&self, span: &Span<T>) -> bool {
        let (Span::One(start) | Span::Until(start, _) | Span::From(start)) = span;
        let start = start.as_ref();
        let at = self.0.partition_point(|stretch| &stretch.start[..] <= start);
        let Some(stretch) = at.checked_sub(1).map(|at| &self.0[at]) else { return false };
        let Some(end) = &stretch.end else { return true };
        match span {
            Span::One(key) => key.as_ref() < &end[..],
            Span::Until(_, until) => until.as_ref() <= &end[..] && start < &end[..],
            Span::From(_) => false,
        }
    }
}

impl Stretch {
    fn of(permission: &Permission) -> Option<Self> {
        let Permission { key, range_end, .. } = permission;
        let end = match Span::new(&key[..], &range_end[..]) {
            span if span.is_empty() => return None,
            Span::One(key) => Some([key, &[0]].concat()),
            Span::Until(_, end) => Some(end.to_vec()),
            Span::From(_) => None,
        };
        Some(Stretch { start: key.clone(), end })
    }

    /// Becomes as long as one that begins within it.
    fn grow(&mut self, end: Option<Vec<u8>>) {
        self.end = match (self.end.take(), end) {
            (Some(own), Some(other)) => Some(own.max(other)),
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coverage(permissions: &[(i32, &str, &str)]) -> Coverage {
        let permissions: Vec<_> = permissions
            .iter()
            .map(|(kind, key, end)| Permission { kind: *kind, key: (*key).into(), range_end: (*end).into() })
            .collect();
        Coverage::of(permissions.iter(), Access::Read)
    }

    fn covers(coverage: &Coverage, key: &str, end: &str) -> bool {
        coverage.covers(&Span::new(key, end))
    }

    #[test]
    fn permissions_that_meet_are_one() {
        let all = coverage(&[(0, "c", "e"), (2, "a", "c"), (0, "x", ""), (0, "b", "b"), (1, "e", "f")]);
        for (key, end, expected) in [
            ("a", "", true),
            ("a", "e", true),
            ("bz", "d", true),
            ("a", "e\0", false),
            ("d", "\0", false),
            // To write is not to read.
            ("e", "", false),
            ("x", "", true),
            ("x", "x\0", true),
            ("x", "y", false),
            ("x1", "", false),
            ("", "b", false),
        ] {
            assert_eq!(covers(&all, key, end), expected, "{key:?} {end:?}");
        }
    }

    #[test]
    fn from_a_key_on_has_no_end() {
        let all = coverage(&[(0, "m", "\0"), (0, "p", "q"), (0, "k", "l")]);
        assert!(covers(&all, "m", "\0") && covers(&all, "zz", "\0") && covers(&all, "n", "o"));
        assert!(!covers(&all, "k", "m") && !covers(&all, "k", "\0") && !covers(&all, "l", ""));
        assert!(!covers(&coverage(&[]), "a", ""));
    }
}
