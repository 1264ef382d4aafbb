//! What the workers run, as a torchrun user expects it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cli::exit::{CANNOT_RUN, NOT_FOUND, Problem};

/// Names the Python that runs scripts and modules, as for torchrun.
const PYTHON_VARIABLE: &str = "PYTHON_EXEC";

/// The system looks no further for the interpreter of a script.
const LONGEST_FIRST_LINE: u64 = 256;

/// What to start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) path: OsString,
    pub(crate) args: Vec<OsString>,
    /// It is a Python that was not told to write its lines as they come.
    pub(crate) unbuffered: bool,
}

impl Program {
    /// A module and a `.py` file are run by Python, the one that `installed_in` names if the environment names none;
    /// anything else by itself.
    pub(crate) fn choose(
        given: &OsStr,
        args: &[OsString],
        module: bool,
        no_python: bool,
        installed_in: Option<&OsStr>,
    ) -> Result<Self, Problem> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let find = |name: &OsStr| find(name, &path);
        let script = Path::new(given).extension().is_some_and(|extension| extension == "py");
        if no_python || !(module || script) {
            let path = find(given)?;
            let unbuffered = is_python(&path) && std::env::var_os("PYTHONUNBUFFERED").is_none();
            return Ok(Program { path: path.into(), args: args.to_vec(), unbuffered });
        }
        if script && !module && !Path::new(given).is_file() {
            let text = format!("there is no script {given:?} here: check the path");
            return Err(Problem::new(NOT_FOUND, text));
        }
        let variable = std::env::var_os(PYTHON_VARIABLE);
        let of_variable =
            |problem: Problem| Problem::new(problem.code, format!("{PYTHON_VARIABLE}: {}", problem.text));
        let python = match variable.map(|named| find(&named).map_err(of_variable)).or(installed_in.map(find))
        {
            Some(found) => found?,
            None => find("python".as_ref()).or_else(|_| find("python3".as_ref())).map_err(|_| {
                Problem::new(
                    NOT_FOUND,
                    format!("there is no python on PATH: install it, or name one in {PYTHON_VARIABLE}"),
                )
            })?,
        };
        let before = ["-u"].into_iter().chain(module.then_some("-m")).map(OsString::from);
        let args = before.chain([given.to_owned()]).chain(args.iter().cloned()).collect();
        Ok(Program { path: python.into(), args, unbuffered: false })
    }
}

fn is_python(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("python"))
}

/// The program as the system would find it, so that one that is missing is known before anything is started.
fn find(name: &OsStr, path: &OsStr) -> Result<PathBuf, Problem> {
    let runs = |file: &Path| {
        std::fs::metadata(file).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let direct = Path::new(name);
    if direct.components().count() > 1 || direct.is_absolute() {
        return match direct {
            file if runs(file) => match interpreter(file).filter(|interpreter| !interpreter.exists()) {
                Some(interpreter) => Err(Problem::new(
                    NOT_FOUND,
                    format!(
                        "{name:?} begins with #!{}, which is not there: check its first line",
                        interpreter.display()
                    ),
                )),
                None => Ok(file.to_owned()),
            },
            file if file.is_dir() => {
                Err(Problem::new(CANNOT_RUN, format!("{name:?} is a folder: name the program in it")))
            }
            file if file.exists() => Err(Problem::new(
                CANNOT_RUN,
                format!("{name:?} is not executable: chmod +x it, or name its interpreter"),
            )),
            _ => Err(Problem::new(NOT_FOUND, format!("there is no program {name:?}: check the path"))),
        };
    }
    let found = std::env::split_paths(path).map(|folder| folder.join(name)).find(|file| runs(file));
    found.ok_or_else(|| {
        let text = format!("there is no program {name:?} on PATH: check its name, or give its path");
        Problem::new(NOT_FOUND, text)
    })
}

/// The interpreter that a script names in its first line.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut begin = Vec::new();
    File::open(script).ok()?.take(LONGEST_FIRST_LINE).read_to_end(&mut begin).ok()?;
    let line = begin.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.trim_ascii_start().split(u8::is_ascii_whitespace).next()?;
    Some(OsStr::from_bytes(name).into()).filter(|path: &PathBuf| path.is_absolute())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tool");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let found = |name: &OsStr| find(name, folder.path().as_os_str()).map_err(|problem| problem.code);
        assert_eq!(found("tool".as_ref()), Err(NOT_FOUND), "what is not executable is passed over");
        assert_eq!(found(file.as_os_str()), Err(CANNOT_RUN));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(found("tool".as_ref()), Ok(file.clone()));
        assert_eq!(found(file.as_os_str()), Ok(file.clone()));
        assert_eq!(found(folder.path().as_os_str()), Err(CANNOT_RUN));
        assert_eq!(found("/no/such/tool".as_ref()), Err(NOT_FOUND));
        std::fs::write(&file, "#! /no/such/interpreter -x\n").unwrap();
        assert_eq!(found(file.as_os_str()), Err(NOT_FOUND), "the system would not find it either");
    }

    #[test]
    fn python_is_put_before_modules_and_scripts() {
        let args = |given: &str, module, no_python| {
            Program::choose(given.as_ref(), &["x".into()], module, no_python, None)
                .map(|program| program.args)
        };
        assert_eq!(args("pkg.train", true, false).unwrap(), ["-u", "-m", "pkg.train", "x"]);
        assert_eq!(args("sh", false, false).unwrap(), ["x"]);
        assert_eq!(args("no-such-script.py", false, false).unwrap_err().code, NOT_FOUND);
        assert!(args("no-such-script.py", false, true).unwrap_err().text.contains("on PATH"));
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py");
        std::fs::write(&script, "").unwrap();
        let script = script.to_str().unwrap();
        assert_eq!(args(script, false, false).unwrap(), ["-u", script, "x"]);
    }
}
