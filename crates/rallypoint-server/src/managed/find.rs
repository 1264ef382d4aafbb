//! Which etcd to start.

use std::path::{Path, PathBuf};

use tracing::warn;

/// Names the etcd to start, as for PyTorch.
pub const BINARY_VARIABLE: &str = "TORCHELASTIC_ETCD_BINARY_PATH";

/// The etcd of this machine, if there is one.
pub(super) fn etcd() -> Option<PathBuf> {
    let named = std::env::var_os(BINARY_VARIABLE).map(PathBuf::from);
    let program = std::env::current_exe().ok();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if let Some(named) = named.as_ref().filter(|named| !is_program(named)) {
        warn!(path = %named.display(), "{BINARY_VARIABLE} names no program; looking further");
    }
    first(named.as_deref(), program.as_deref(), &folders, is_program)
}

/// The first of the places that holds a program.
fn first(
    named: Option<&Path>,
    program: Option<&Path>,
    folders: &[PathBuf],
    is_program: impl Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let beside = program.and_then(Path::parent).map(|folder| folder.join("bin/etcd"));
    let on_path = folders.iter().map(|folder| folder.join("etcd"));
    named.map(Path::to_path_buf).into_iter().chain(beside).chain(on_path).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_one_comes_before_the_one_beside_and_that_before_the_path() {
        let there = ["/named/etcd", "/opt/bin/etcd", "/usr/bin/etcd"];
        let find = |there: &[&str]| {
            let folders = [PathBuf::from("/empty"), PathBuf::from("/usr/bin")];
            let is_program = |path: &Path| there.iter().any(|there| Path::new(there) == path);
            first(Some(Path::new("/named/etcd")), Some(Path::new("/opt/rallypoint")), &folders, is_program)
        };
        for first in 0..3 {
            assert_eq!(find(&there[first..]), Some(PathBuf::from(there[first])));
        }
        assert_eq!(find(&[]), None);
    }
}
