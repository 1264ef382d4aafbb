//! The commands that the documents show are commands that there are: each is taken apart by a shell, and then parsed as if it
//! had been typed. None is run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::check;

/// Fewer would mean that they are not found any more.
const AT_LEAST: usize = 50;

#[test]
fn each_documented_command_has_flags_that_there_are() {
    let mut tried = 0;
    let mut wrong = Vec::new();
    for page in pages() {
        for line in commands(&std::fs::read_to_string(&page).unwrap()) {
            tried += 1;
            let Err(problem) = check(&words(&line)) else { continue };
            wrong.push(format!("{}: {line}\n{problem}", page.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried >= AT_LEAST, "only {tried} commands were found");
}

#[test]
fn a_flag_that_there_is_not_is_found_in_each_form_that_the_documents_have() {
    let page = "```sh\nrallypoint status --nodes   # a comment\n```\n\
        ```text\n$ rallypoint events job42 --endpoint a:1 --nodes\nrallypoint is the first word\n```\n\
        ```sh\nsrun --kill-on-bad-exit=1 rallypoint run \\\n    --nodes 3 train.py\n```\nrallypoint status --nodes\n";
    let found = commands(page);
    assert_eq!(found.len(), 3, "{found:?}");
    for line in found {
        let problem = check(&words(&line)).err().map(|problem| problem.to_string());
        assert!(problem.as_ref().is_some_and(|text| text.contains("--nodes")), "{line}: {problem:?}");
    }
}

/// All that is written for those who use the commands.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

/// The commands in a page's blocks of shell, and those at a prompt in other blocks, each with its continued lines.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for block in page.split("\n```").skip(usize::from(!page.starts_with("```"))).step_by(2) {
        let (language, code) = block.trim_start_matches("```").split_once('\n').unwrap_or_default();
        for line in code.replace("\\\n", " ").lines() {
            let at_a_prompt = line.strip_prefix("$ ");
            let is_shell = language == "sh" || at_a_prompt.is_some();
            let line = at_a_prompt.unwrap_or(line);
            // What starts it on several machines comes before it.
            let begin =
                if line.starts_with("srun ") { line.find(" rallypoint ").map(|at| at + 1) } else { Some(0) };
            let command = begin.map(|begin| &line[begin..]).filter(|line| line.starts_with("rallypoint "));
            found.extend(command.filter(|_| is_shell).map(str::to_owned));
        }
    }
    found
}

/// A command's words, as a shell makes them.
fn words(line: &str) -> Vec<OsString> {
    use std::os::unix::ffi::OsStringExt as _;
    // Where its output goes does not matter here.
    let command = line.split(" >> ").next().unwrap_or(line);
    let script = format!("rallypoint() {{ printf '%s\\0' rallypoint \"$@\"; }}; {command}");
    let split = Command::new("sh").arg("-c").arg(script).output().unwrap();
    assert!(split.status.success(), "{line}: {}", String::from_utf8_lossy(&split.stderr));
    let words = split.stdout.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
    let mut words: Vec<OsString> = words.collect();
    // Each ends with the separator.
    words.pop();
    words
}
