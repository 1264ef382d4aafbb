//! docs/from-torchrun.md, held against the installed torchrun and against `rallypoint run --help`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod launcher;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::LazyLock;

use launcher::{Launcher, RALLYPOINT};
use rallypoint_testkit::run_python;
use serde::Deserialize;

const PAGE: &str = include_str!("../../../docs/from-torchrun.md");
const READ_TORCHRUN: &str = include_str!("torchrun_table.py");

#[derive(Deserialize)]
struct Torchrun {
    flags: Vec<Flag>,
    variables: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Flag {
    flag: String,
    names: Vec<String>,
    variable: Option<String>,
    default: Option<String>,
    takes: bool,
    choices: Vec<String>,
}

/// Read once: PyTorch takes seconds to start.
static TORCHRUN: LazyLock<Torchrun> = LazyLock::new(|| {
    let printed = run_python(READ_TORCHRUN, &[]);
    serde_json::from_str(printed.lines().last().unwrap()).unwrap()
});

/// The rows of the table under this heading, by their first cell. Code loses its ticks, an empty cell is none.
fn table(heading: &str) -> BTreeMap<String, Vec<Option<String>>> {
    let part = PAGE.split(&format!("\n## {heading}\n")).nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = part.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| {
        let cells = row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
        let cells: Vec<_> = cells.map(|cell| Some(cell).filter(|cell| !cell.is_empty())).collect();
        (cells[0].clone().unwrap(), cells[1..].to_vec())
    });
    let cells: Vec<_> = cells.collect();
    let table: BTreeMap<_, _> = cells.iter().cloned().collect();
    assert_eq!(table.len(), cells.len(), "no flag stands twice under {heading}");
    table
}

fn help() -> String {
    let output = Command::new(RALLYPOINT).args(["run", "--help"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// What the help says of a flag: from its line to the next flag's.
fn help_of<'a>(help: &'a str, flag: &str) -> Option<&'a str> {
    let begins = |line: &str| {
        // What a flag means stands further in, and may begin with the name of another.
        let names = Some(line.trim()).filter(|_| !line.starts_with("         ")).unwrap_or_default();
        let names =
            names.split_once(", ").filter(|(short, _)| short.len() == 2).map_or(names, |(_, long)| long);
        names.starts_with("--").then(|| names.split([' ', '=', '[']).next().unwrap().to_owned())
    };
    let mut at = 0;
    let mut from = None;
    for line in help.split_inclusive('\n') {
        match (begins(line), from) {
            (Some(_), Some(from)) => return Some(&help[from..at]),
            (Some(name), None) if name == flag => from = Some(at),
            _ => {}
        }
        at += line.len();
    }
    from.map(|from| &help[from..])
}

#[test]
fn the_table_has_every_flag_of_torchrun_with_its_variable_and_default() {
    let table = table("Flags");
    let theirs: BTreeSet<&str> = TORCHRUN.flags.iter().map(|flag| flag.flag.as_str()).collect();
    let listed: BTreeSet<&str> = table.keys().map(String::as_str).collect();
    assert_eq!(theirs, listed, "torchrun's flags, and those of docs/from-torchrun.md");
    for flag in &TORCHRUN.flags {
        let row = &table[&flag.flag];
        assert_eq!(row[0], flag.variable, "the variable of {}", flag.flag);
        assert_eq!(row[1], flag.default, "torchrun's default of {}", flag.flag);
    }
}

#[test]
fn what_the_table_says_we_take_is_in_the_help() {
    let (help, table) = (help(), table("Flags"));
    for flag in &TORCHRUN.flags {
        let row = &table[&flag.flag];
        let said = help_of(&help, &flag.flag);
        let means = row[2].as_deref().unwrap();
        match means {
            "same" | "differs" | "no effect" => {
                let said = said.unwrap_or_else(|| panic!("{} is not in the help", flag.flag));
                let variable = format!("PET_{}", flag.flag[2..].replace('-', "_").to_uppercase());
                assert!(said.contains(&format!("[env: {variable}=")), "{variable}: {said}");
                for choice in flag.choices.iter().filter(|_| means == "same") {
                    assert!(said.contains(choice.as_str()), "{} {choice}: {said}", flag.flag);
                }
            }
            "refused" => {}
            other => panic!("{}: {other:?} is not one of the four words", flag.flag),
        }
        // All of torchrun's spellings are taken, or refused by name.
        for name in flag.names.iter().filter(|name| name.starts_with("--")) {
            let value = flag.choices.first().map_or("1", String::as_str);
            let given = if flag.takes { format!("{name}={value}") } else { name.clone() };
            let whole = [given.as_str(), "--nnodes=1", "--", "true"];
            match means {
                "no effect" => {
                    let ended = Launcher::run(&whole).expect(0);
                    assert_eq!(
                        ended.with(&format!("{} has no effect", flag.flag)).len(),
                        1,
                        "{}",
                        ended.text()
                    );
                }
                "refused" => {
                    let ended = Launcher::run(&whole).expect(2);
                    assert!(ended.text().contains(&flag.flag), "{}", ended.text());
                }
                _ => {}
            }
        }
    }
}

#[test]
fn the_table_has_every_variable_that_torchruns_launcher_reads() {
    let table = table("Variables");
    let listed: BTreeSet<String> = table.keys().cloned().collect();
    assert_eq!(TORCHRUN.variables, listed, "torchrun's variables, and those of docs/from-torchrun.md");
    for (variable, row) in &table {
        let means = row[0].as_deref().unwrap();
        assert!(["same", "differs", "no effect"].contains(&means), "{variable}: {means:?}");
    }
}

/// argparse takes the beginning of a flag for it; whoever relies on that is told what to write.
#[test]
fn a_shortened_flag_is_refused_with_the_whole_one() {
    let flags: Vec<&str> = TORCHRUN.flags.iter().map(|flag| flag.flag.as_str()).collect();
    let (table, help) = (table("Flags"), help());
    for flag in flags.iter().filter(|flag| table[**flag][2].as_deref() != Some("refused")) {
        // The shortest one that torchrun takes for this flag.
        let alone = |end: &usize| flags.iter().filter(|other| other.starts_with(&flag[..*end])).count() == 1;
        let Some(end) = (4..flag.len()).find(alone) else { continue };
        let short = &flag[..end];
        if help_of(&help, short).is_some() {
            continue;
        }
        let output = Command::new(RALLYPOINT).args(["run", short, "true"]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{short}: {text}");
        assert!(text.lines().count() == 1 && text.contains(*flag), "{short} for {flag}: {text}");
    }
}
