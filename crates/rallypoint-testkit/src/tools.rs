//! Where the programs are.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

/// A release of etcd to test against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// etcd 3.4, the oldest supported.
    V34,
    /// etcd 3.5.
    V35,
    /// etcd 3.6, where there is one.
    V36,
}

impl Version {
    /// The releases that can serve the v2 API, oldest first.
    pub const WITH_V2: [Version; 2] = [Version::V34, Version::V35];

    /// Every release that there is, oldest first. `scripts/test` says when there is no 3.6.
    #[must_use]
    pub fn all() -> Vec<Version> {
        let newest = find("RALLYPOINT_ETCD_36", "etcd-3.6/etcd").map(|_| Version::V36);
        Version::WITH_V2.into_iter().chain(newest).collect()
    }

    /// The program itself.
    #[must_use]
    pub fn binary(self) -> PathBuf {
        match self {
            Version::V34 => tool("RALLYPOINT_ETCD_34", "etcd-3.4/etcd", "etcd-3.4"),
            Version::V35 => tool("RALLYPOINT_ETCD_35", "etcd/etcd", "etcd"),
            Version::V36 => find("RALLYPOINT_ETCD_36", "etcd-3.6/etcd")
                .expect("let RALLYPOINT_ETCD_36 name an etcd 3.6; `Version::all` tells whether there is one"),
        }
    }

    /// Its command line client. Each talks to servers of all releases; 3.6 has that of 3.5.
    #[must_use]
    pub fn etcdctl(self) -> PathBuf {
        match self {
            Version::V34 => tool("RALLYPOINT_ETCDCTL_34", "etcd-3.4/etcdctl", "etcd-3.4"),
            Version::V35 | Version::V36 => tool("RALLYPOINT_ETCDCTL", "etcd/etcdctl", "etcd"),
        }
    }

    /// What works on the files of a server: snapshots, for one.
    #[must_use]
    pub fn etcdutl(self) -> PathBuf {
        assert!(self >= Version::V35, "etcdutl came with etcd 3.5");
        let etcdutl = self.etcdctl().with_file_name("etcdutl");
        assert!(etcdutl.is_file(), "{} is missing: it belongs beside etcdctl", etcdutl.display());
        etcdutl
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V34 => "3.4",
            Version::V35 => "3.5",
            Version::V36 => "3.6",
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
    find(variable, path).unwrap_or_else(|| {
        panic!(
            "{} is missing: run `scripts/setup {component}`, or let {variable} name one",
            in_tools(path).display()
        )
    })
}

pub(crate) fn find(variable: &str, path: &str) -> Option<PathBuf> {
    if let Some(own) = own_tool(variable) {
        assert!(own.is_file(), "{variable} names {}, which is not a file", own.display());
        return Some(own);
    }
    Some(in_tools(path)).filter(|found| found.is_file())
}

/// What the variable names. Set to nothing is not set.
pub(crate) fn own_tool(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|own| !own.is_empty()).map(PathBuf::from)
}

pub(crate) fn in_tools(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate is two folders below the root of the workspace");
    root.join(".tools").join(path)
}
