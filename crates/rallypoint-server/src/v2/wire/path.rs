//! Where a node is.

use bytes::Bytes;

/// The clean path of a node: `/a/b`, and nothing at all for the root, as etcd shows it. Any bytes but `/`
/// make a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Path(Bytes);

impl Path {
    /// The path that `raw` means: empty parts and `.` are dropped, `..` takes the part before it away.
    pub(crate) fn clean(raw: &[u8]) -> Self {
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in raw.split(|&byte| byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    parts.pop();
                }
                name => parts.push(name),
            }
        }
        let mut path = Vec::with_capacity(raw.len() + 1);
        for part in parts {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        Path(path.into())
    }

    /// The node `name` in the directory at this path.
    pub(crate) fn child(&self, name: &[u8]) -> Self {
        let mut path = Vec::with_capacity(self.0.len() + 1 + name.len());
        path.extend_from_slice(&self.0);
        path.push(b'/');
        path.extend_from_slice(name);
        Path(path.into())
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// How many names lead from the root to it.
    pub(crate) fn depth(&self) -> usize {
        self.0.iter().filter(|&&byte| byte == b'/').count()
    }

    /// The names from the root to it.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').skip(1)
    }

    /// Every path from the root to this one, both included.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = Path> {
        let ends = self.0.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
        ends.chain([self.0.len()]).map(|end| Path(self.0.slice(..end)))
    }

    /// The directory it is in, and its name there. None for the root.
    pub(crate) fn split(&self) -> Option<(Path, &[u8])> {
        let slash = self.0.iter().rposition(|&byte| byte == b'/')?;
        Some((Path(self.0.slice(..slash)), &self.0[slash + 1..]))
    }

    /// Whether it is somewhere below `directory`.
    pub(crate) fn is_below(&self, directory: &Path) -> bool {
        self.0.strip_prefix(directory.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
    }

    /// Whether a name that begins with `_` lies between `above` and this path: who looks from there does not
    /// see it.
    pub(crate) fn is_hidden_from(&self, above: &Path) -> bool {
        let Some(rest) = self.0.strip_prefix(above.as_bytes()) else { return false };
        rest.windows(2).any(|pair| pair == b"/_")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(raw: &str) -> Path {
        Path::clean(raw.as_bytes())
    }

    #[test]
    fn a_path_is_cleaned() {
        for (raw, clean) in [
            ("", ""),
            ("/", ""),
            ("/a", "/a"),
            ("a", "/a"),
            ("/a/b/", "/a/b"),
            ("//a///b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/../../b", "/b"),
            ("/a/..", ""),
            ("/..a/b..", "/..a/b.."),
        ] {
            assert_eq!(path(raw).as_bytes(), clean.as_bytes(), "{raw}");
        }
    }

    #[test]
    fn the_parts_of_a_path_are_its_lineage() {
        assert_eq!(path("/a/b").lineage().collect::<Vec<_>>(), [path("/"), path("/a"), path("/a/b")]);
        assert_eq!(path("/").lineage().collect::<Vec<_>>(), [path("/")]);
        assert_eq!(path("/a/b").names().collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(path("/").names().count(), 0);
        assert_eq!(path("/a/b").split(), Some((path("/a"), b"b".as_slice())));
        assert_eq!(path("/").split(), None);
        assert_eq!(path("/a").child(b"b"), path("/a/b"));
        assert_eq!((path("/").depth(), path("/a/b").depth()), (0, 2));
    }

    #[test]
    fn below_means_inside_and_not_just_a_longer_name() {
        assert!(path("/a/b").is_below(&path("/a")) && path("/a").is_below(&path("/")));
        assert!(!path("/ab").is_below(&path("/a")) && !path("/a").is_below(&path("/a")));
    }

    #[test]
    fn an_underscore_hides_from_above_only() {
        assert!(path("/a/_b").is_hidden_from(&path("/")) && path("/a/_b/c").is_hidden_from(&path("/a")));
        assert!(!path("/a/_b/c").is_hidden_from(&path("/a/_b")) && !path("/a/b_").is_hidden_from(&path("/")));
    }
}
