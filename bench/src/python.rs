//! The Python programs of `bench/python`, and the interpreters that run them. `bench/run` makes those.

use std::path::{Path, PathBuf};

use rallypoint_testkit::Program;

/// Has lm-resiliency and nvidia-resiliency-ext.
pub(crate) fn rivals_python() -> PathBuf {
    ".tools/venv-rivals/bin/python".into()
}

/// Has our package.
pub(crate) fn our_python() -> PathBuf {
    target_folder().join("bench-python/venv/bin/python")
}

/// Where cargo has put this program: `target`, or what `CARGO_TARGET_DIR` says.
pub(crate) fn target_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a program knows its file");
    program.ancestors().nth(2).expect("it is in release/ there").to_owned()
}

/// Runs `bench/python/{name}.py` as the file that it is. Given as text (`-c`) it would be unfair: PyTorch's
/// `etcd-v2` and `c10d` look at their callers' source with each step, and where a caller has no file, that
/// searches all modules.
pub(crate) fn start(python: &Path, name: &str, args: &[&str]) -> Program {
    let script = format!("bench/python/{name}.py");
    // Lines must arrive as they are printed.
    Program::start(python, &[&["-u", &script], args].concat(), &[])
}
