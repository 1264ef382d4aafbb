//! What a user sees on a terminal of 80 columns: each command's help, and what the likely mistakes answer.
//!
//! The files in `golden/` are what was read and found good. After a change of words, write them anew and read the
//! difference: `RALLYPOINT_GOLDEN=write cargo test -p rallypoint --test golden`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;
use std::process::Command;

const COMMANDS: [&str; 2] = [env!("CARGO_BIN_EXE_rallypoint"), env!("CARGO_BIN_EXE_rallypoint-server")];
const COLUMNS: usize = 80;

/// Each is a mistake that somebody makes in the first hour.
const MISTAKES: [&str; 17] = [
    "rallypoint",
    "rallypoint start train.py",
    "rallypoint run",
    "rallypoint run train.py",
    "rallypoint run --standalone trian",
    "rallypoint run --standalone --nproc-per-node four true",
    "rallypoint run --standalone --nproc_per_nod 2 true",
    "rallypoint run --nnodes 2 true",
    "rallypoint run --nnodes 3:2 true",
    "rallypoint run --nnodes 2 --rdzv-endpoint 127.0.0.1:2379 true",
    "rallypoint run --rdzv-backend gloo --rdzv-endpoint 127.0.0.1:2379 --rdzv-id job42 true",
    "rallypoint run --standalone --rdzv-endpoint 127.0.0.1:2379 true",
    "rallypoint run --standalone --rdzv-conf last_cal_timeout=3 true",
    "rallypoint run --standalone --rdzv-conf last_call_timeout=abc true",
    "rallypoint status job42 --endpoint 127.0.0.1:1",
    "rallypoint close job42 --endpoint 127.0.0.1:1",
    "rallypoint serve --listen 2379",
];

/// What a command shows on a terminal, which `script` makes, and its exit code.
fn on_a_terminal(line: &str) -> (String, i32) {
    let (name, args) = line.split_once(' ').unwrap_or((line, ""));
    let program = COMMANDS.into_iter().find(|path| Path::new(path).ends_with(name)).unwrap();
    // A terminal without lines is none.
    let line = format!("stty cols {COLUMNS} rows 24; exec {program} {args}");
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).current_dir(folder.path());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    let ended = command.env("SHELL", "/bin/sh").env("NO_COLOR", "1").env("TERM", "xterm").output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap().replace('\r', "");
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    (lines.join("\n") + "\n", ended.status.code().unwrap())
}

/// Compares with the file, or writes it if asked to.
fn is_as_in(file: &str, seen: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var("RALLYPOINT_GOLDEN").is_ok_and(|word| word == "write") {
        std::fs::write(&path, seen).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(seen.lines()).find(|(kept, seen)| kept != seen);
    assert!(
        kept == seen,
        "{file} is not what is seen now, first at {differs:?}; \
         RALLYPOINT_GOLDEN=write writes it anew, to be read before it is committed"
    );
}

#[test]
fn the_help_of_each_command_fits_a_terminal() {
    let pages = [
        ("rallypoint", "help.txt"),
        ("rallypoint run", "help-run.txt"),
        ("rallypoint serve", "help-serve.txt"),
        ("rallypoint gateway", "help-gateway.txt"),
        ("rallypoint dashboard", "help-dashboard.txt"),
        ("rallypoint status", "help-status.txt"),
        ("rallypoint events", "help-events.txt"),
        ("rallypoint stacks", "help-stacks.txt"),
        ("rallypoint close", "help-close.txt"),
        ("rallypoint exclude", "help-exclude.txt"),
        ("rallypoint include", "help-include.txt"),
        ("rallypoint excluded", "help-excluded.txt"),
        ("rallypoint bench", "help-bench.txt"),
        ("rallypoint bench rendezvous", "help-bench-rendezvous.txt"),
        ("rallypoint completions", "help-completions.txt"),
        ("rallypoint man", "help-man.txt"),
        ("rallypoint-server", "help-server.txt"),
    ];
    let (all, _) = on_a_terminal("rallypoint --help");
    let listed =
        all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // A longer text goes on below, further in.
    for command in
        listed.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next())
    {
        let known =
            command == "help" || pages.iter().any(|(line, _)| *line == format!("rallypoint {command}"));
        assert!(known, "{command} has no page here");
    }
    for (line, file) in pages {
        let (seen, code) = on_a_terminal(&format!("{line} --help"));
        assert_eq!(code, 0, "{seen}");
        let long: Vec<&str> = seen.lines().filter(|line| line.chars().count() > COLUMNS).collect();
        assert!(long.is_empty(), "{line}: {long:#?}");
        is_as_in(file, &seen);
    }
}

#[test]
fn a_mistake_is_answered_in_words_that_help() {
    let answers = MISTAKES.map(|line| {
        let (seen, code) = on_a_terminal(line);
        assert!(code != 0, "{line}: {seen}");
        format!("$ {line}\n{seen}exit code {code}\n")
    });
    is_as_in("mistakes.txt", &answers.join("\n"));
}
