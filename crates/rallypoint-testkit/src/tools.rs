//! Where the programs are.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

/// A release of etcd to test against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// etcd 3.4, the oldest supported.
    V34,
    /// etcd 3.5.
    V35,
}

impl Version {
    /// Every release, oldest first.
    pub const ALL: [Version; 2] = [Version::V34, Version::V35];

    /// The program itself.
    #[must_use]
    pub fn binary(self) -> PathBuf {
        match self {
            Version::V34 => tool("RALLYPOINT_ETCD_34", "etcd-3.4/etcd", "etcd-3.4"),
            Version::V35 => tool("RALLYPOINT_ETCD_35", "etcd-3.5/etcd", "etcd-3.5"),
        }
    }

    /// Its command line client. Each talks to servers of both releases.
    #[must_use]
    pub fn etcdctl(self) -> PathBuf {
        match self {
            Version::V34 => tool("RALLYPOINT_ETCDCTL_34", "etcd-3.4/etcdctl", "etcd-3.4"),
            Version::V35 => tool("RALLYPOINT_ETCDCTL", "etcd-3.5/etcdctl", "etcd-3.5"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V34 => "3.4",
            Version::V35 => "3.5",
        })
    }
}

/// The Python interpreter that has torch and python-etcd.
#[must_use]
pub fn torch_python() -> PathBuf {
    tool("RALLYPOINT_TORCH_PYTHON", "venv-torch/bin/python", "torch")
}

/// The program at `path` in `.tools`, which the set-up of `component` brings, unless `variable` names another.
fn tool(variable: &str, path: &str, component: &str) -> PathBuf {
    if let Some(own) = env::var_os(variable) {
        let own = PathBuf::from(own);
        assert!(own.is_file(), "{variable} names {}, which is not a file", own.display());
        return own;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate is two folders below the root of the workspace");
    let found = root.join(".tools").join(path);
    assert!(
        found.is_file(),
        "{} is missing: run `scripts/setup {component}`, or let {variable} name one",
        found.display()
    );
    found
}
