//! `rallypoint run` on a terminal.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod launcher;

use std::io::Write;
use std::process::{Command, Stdio};

use launcher::{Launcher, RALLYPOINT, heeding};

/// A command line on a terminal of its own, which `script` makes.
fn on_a_terminal(line: &str) -> Command {
    let mut command = heeding("script");
    command.args(["--quiet", "--return", "--command", line, "/dev/null"]).env_remove("NO_COLOR");
    command
}

#[test]
fn ranks_have_colours_there_and_nowhere_else() {
    let line = format!("{RALLYPOINT} run --nproc-per-node 2 -- echo hello");
    let ended = Launcher::spawn(on_a_terminal(&line)).ended().expect(0);
    assert_eq!(ended.with("\u{1b}[36m[0]: \u{1b}[0mhello").len(), 1, "{}", ended.text());
    assert_eq!(ended.with("\u{1b}[33m[1]: \u{1b}[0mhello").len(), 1, "{}", ended.text());
    let mut plain = on_a_terminal(&line);
    plain.env("NO_COLOR", "1");
    assert_eq!(Launcher::spawn(plain).ended().expect(0).with("[0]: hello").len(), 1);
}

#[test]
fn while_it_waits_one_line_tells_who_is_missing_and_ctrl_c_ends_it() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let line = format!("{RALLYPOINT} run --nnodes 3 --rdzv-id job --rdzv-endpoint 127.0.0.1:{port} true");
    let mut command = on_a_terminal(&line);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = command.spawn().unwrap();
    let mut terminal = script.stdin.take().unwrap();
    let mut seen = String::new();
    let mut out = script.stdout.take().unwrap();
    let mut buffer = [0; 4096];
    while !seen.contains("waiting for 2 nodes: 1 of 3 is here (") {
        let length = std::io::Read::read(&mut out, &mut buffer).unwrap();
        assert!(length > 0, "it ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    // What the key does: the terminal sends the signal to whoever is in the foreground.
    terminal.write_all(&[3]).unwrap();
    std::io::Read::read_to_string(&mut out, &mut seen).unwrap();
    assert_eq!(script.wait().unwrap().code(), Some(130), "{seen}");
    assert!(seen.contains("ending in good order"), "{seen}");
    assert!(seen.contains(&format!(" s left), run job at 127.0.0.1:{port}")), "{seen}");
}

#[test]
fn a_progress_bar_is_overwritten_there_and_lines_elsewhere() {
    // As tqdm writes: the carriage return comes first.
    let bar = r"printf '\r 10%%'; printf '\r 55%%'; printf '\r100%%\n'; echo next";
    let line = format!("{RALLYPOINT} run -- sh -c \"{bar}\"");
    let ended = Launcher::spawn(on_a_terminal(&line)).ended().expect(0);
    let text = ended.text();
    // The last state stays; what came before was taken away again, if it was shown at all.
    let stays: Vec<&str> =
        text.split('\n').map(|line| line.rsplit("\u{1b}[K").next().unwrap().trim_end()).collect();
    let prefix = "\u{1b}[36m[0]: \u{1b}[0m";
    assert_eq!(stays.iter().filter(|line| line.starts_with(prefix)).count(), 2, "{text:?}");
    for line in ["100%", "next"] {
        assert!(stays.contains(&&*format!("{prefix}{line}")), "{text:?}");
    }
    let ended = Launcher::run(&["--", "sh", "-c", bar]).expect(0);
    assert_eq!(ended.with("[0]:"), ["[0]:  10%", "[0]:  55%", "[0]: 100%", "[0]: next"]);
}
