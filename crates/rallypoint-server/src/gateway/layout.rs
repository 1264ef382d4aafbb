//! How the tree of v2 lies in the flat keys of v3. Pure.
//!
//! Every key is under the gateway's prefix:
//!
//! | key | what |
//! | --- | --- |
//! | `keys/a/b//c` | the node `/a/b/c`: a file, or the mark of a directory |
//! | `action` | what the last write was, written with each: history and watches read it there |
//! | `due/a//b`, `alive/a//b` | the directory `/a/b` has a TTL; the second hangs on its lease, and the directory ends when it is gone |
//! | `root` | written with each in-order key in the root |
//! | `fenced/ID` | requests that were sent under this name are void |
//!
//! No name has a slash or is empty, so `//` stands nowhere but before the last name. That makes the children of a
//! directory one range (`keys/a/b//`), and all that is below it another (`keys/a/b/`).
//!
//! What is there never lacks a directory above it: whatever writes compares what it found, and takes a directory away
//! with all that is in it.

use bytes::Bytes;

use crate::v2::{Action, Path, Time};

/// Of everything in [`Record`] and [`Act`], so that a later gateway knows what it reads.
const FORMAT: &str = "1";

pub(super) const ACTION: &[u8] = b"action";
pub(super) const ROOT: &[u8] = b"root";
const KEYS: &[u8] = b"keys";
const DUE: &[u8] = b"due";
const ALIVE: &[u8] = b"alive";
const FENCED: &str = "fenced/";

/// The node at a path, which is not the root.
pub(super) fn node(path: &Path) -> Vec<u8> {
    in_area(KEYS, path)
}

/// What begins the keys of a directory's children.
pub(super) fn children(path: &Path) -> Vec<u8> {
    [KEYS, path.as_bytes(), b"//"].concat()
}

/// What begins the keys of all that is below a path.
pub(super) fn below(path: &Path) -> Vec<u8> {
    [KEYS, path.as_bytes(), b"/"].concat()
}

/// That a directory has a TTL.
pub(super) fn due(path: &Path) -> Vec<u8> {
    in_area(DUE, path)
}

/// What begins those of all directories below a path.
pub(super) fn due_below(path: &Path) -> Vec<u8> {
    [DUE, path.as_bytes(), b"/"].concat()
}

/// There for as long as the directory's TTL.
pub(super) fn alive(path: &Path) -> Vec<u8> {
    in_area(ALIVE, path)
}

/// What begins those of all directories below a path.
pub(super) fn alive_below(path: &Path) -> Vec<u8> {
    [ALIVE, path.as_bytes(), b"/"].concat()
}

/// That requests sent under this name are void.
pub(super) fn fenced(name: &str) -> Vec<u8> {
    format!("{FENCED}{name}").into_bytes()
}

/// The path of a node's key.
pub(super) fn node_path(key: &[u8]) -> Option<Path> {
    path_in(KEYS, key)
}

pub(super) fn due_path(key: &[u8]) -> Option<Path> {
    path_in(DUE, key)
}

pub(super) fn alive_path(key: &[u8]) -> Option<Path> {
    path_in(ALIVE, key)
}

fn in_area(area: &[u8], path: &Path) -> Vec<u8> {
    let (parent, name) = path.split().unwrap_or_default();
    [area, parent.as_bytes(), b"//", name].concat()
}

fn path_in(area: &[u8], key: &[u8]) -> Option<Path> {
    let key = key.strip_prefix(area)?;
    let slash = key.iter().rposition(|&byte| byte == b'/')?;
    let (parent, name) = (key[..slash].strip_suffix(b"/")?, &key[slash + 1..]);
    Some(Path::clean(parent).child(name)).filter(|_| !name.is_empty())
}

/// A node as it stands in etcd.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Record {
    /// 0 stands for the revision it is written at, which nobody knows before.
    pub(super) created: u64,
    /// The same. What is told of a directory, whose mark is written now and then.
    pub(super) modified: u64,
    /// The TTL that was asked for, and when that ends by the clock of the gateway.
    pub(super) ttl: Option<(u64, Time)>,
    pub(super) lease: i64,
    /// None for a directory.
    pub(super) value: Option<Bytes>,
}

impl Record {
    pub(super) fn write(&self) -> Vec<u8> {
        let kind = if self.value.is_some() { 'f' } else { 'd' };
        let (ttl, end) = self.ttl.map_or((0, 0), |(ttl, end)| (ttl, end.nanos()));
        let Record { created, modified, lease, .. } = self;
        let mut out = format!("{FORMAT} {kind} {created} {modified} {ttl} {end} {lease}\n").into_bytes();
        out.extend_from_slice(self.value.as_deref().unwrap_or_default());
        out
    }

    /// None for what no gateway has written.
    pub(super) fn read(raw: Vec<u8>) -> Option<Self> {
        let raw = Bytes::from(raw);
        let line = raw.iter().position(|&byte| byte == b'\n')?;
        let head = str::from_utf8(&raw[..line]).ok()?;
        let [format, kind, created, modified, ttl, end, lease] =
            <[&str; 7]>::try_from(head.split(' ').collect::<Vec<_>>()).ok()?;
        let value = match kind {
            "f" => Some(raw.slice(line + 1..)),
            "d" => None,
            _ => return None,
        };
        let (ttl, end): (u64, u64) = (ttl.parse().ok()?, end.parse().ok()?);
        Some(Record {
            created: created.parse().ok()?,
            modified: modified.parse().ok()?,
            ttl: (end != 0).then(|| (ttl, Time::from_nanos(end))),
            lease: lease.parse().ok()?,
            value,
        })
        .filter(|_| format == FORMAT)
    }
}

/// What a write was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Act {
    /// None for one that nobody is told of.
    pub(super) action: Option<Action>,
    pub(super) refresh: bool,
    /// Of the request: no two have the same.
    pub(super) id: String,
    pub(super) path: Path,
}

impl Act {
    pub(super) fn write(&self) -> Vec<u8> {
        let action = self.action.map_or("none", Action::name);
        let mut out = format!("{FORMAT} {action} {} {}\n", u8::from(self.refresh), self.id).into_bytes();
        out.extend_from_slice(self.path.as_bytes());
        out
    }

    pub(super) fn read(raw: &[u8]) -> Option<Self> {
        let line = raw.iter().position(|&byte| byte == b'\n')?;
        let head = str::from_utf8(&raw[..line]).ok()?;
        let [format, action, refresh, id] =
            <[&str; 4]>::try_from(head.split(' ').collect::<Vec<_>>()).ok()?;
        let action = Action::ALL.into_iter().find(|known| known.name() == action);
        let act =
            Act { action, refresh: refresh == "1", id: id.to_owned(), path: Path::clean(&raw[line + 1..]) };
        Some(act).filter(|_| format == FORMAT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(raw: &str) -> Path {
        Path::clean(raw.as_bytes())
    }

    #[test]
    fn keys_and_paths_are_one_to_one() {
        for (raw, key) in [("/a", "keys//a"), ("/a/b", "keys/a//b"), ("/a/-b/\0c", "keys/a/-b//\0c")] {
            assert_eq!(node(&path(raw)), key.as_bytes());
            assert_eq!(node_path(key.as_bytes()), Some(path(raw)));
            assert_eq!(due_path(&due(&path(raw))), Some(path(raw)));
            assert_eq!(alive_path(&alive(&path(raw))), Some(path(raw)));
        }
        for key in ["action", "keys", "keys/", "keys//", "keys/a", "due//a", ""] {
            assert_eq!(node_path(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn children_and_all_below_are_one_range_each() {
        let all = ["/a", "/a/b", "/a/b/c", "/a/-b/c", "/a-b", "/a0", "/ab/c", "/b/a/c"].map(path);
        let under = |prefix: Vec<u8>| -> Vec<Path> {
            all.iter().filter(|path| node(path).starts_with(&prefix)).cloned().collect()
        };
        assert_eq!(under(children(&path("/a"))), [path("/a/b")]);
        assert_eq!(under(below(&path("/a"))), ["/a/b", "/a/b/c", "/a/-b/c"].map(path));
        assert_eq!(under(children(&path("/"))), ["/a", "/a-b", "/a0"].map(path));
        assert_eq!(under(below(&path("/"))), all);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let end = Time::from_nanos(1_700_000_000_000_000_001);
        for record in [
            Record { value: Some(Bytes::from_static(b"\n\xff 1")), ..Record::default() },
            Record { created: 3, modified: 4, ttl: Some((5, end)), lease: -6, value: None },
        ] {
            assert_eq!(Record::read(record.write()), Some(record));
        }
        for junk in ["", "x", "1 f 0 0 0 0\nx", "2 f 0 0 0 0 0\nx", "1 x 0 0 0 0 0\nx", "1 f 0 0 0 0 x\n"] {
            assert_eq!(Record::read(junk.into()), None, "{junk}");
        }
        for action in Action::ALL.into_iter().map(Some).chain([None]) {
            let act = Act { action, refresh: action.is_none(), id: "ab".to_owned(), path: path("/a/\n") };
            assert_eq!(Act::read(&act.write()), Some(act));
        }
        assert_eq!(Act::read(b"junk"), None);
    }
}
