//! The page. Its prose is in `bench/notes`; here are only the figures.

use std::fmt::Write as _;

use super::{FOLDER, growth, plots};
use crate::measure::Samples;
use crate::parts::Which;
use crate::results::{Comparison, Outcome, Part, Results, Table};

const INTRODUCTION: &str = include_str!("../../notes/introduction.md");
const SETTINGS: &str = include_str!("../../notes/settings.md");

/// The heading of a part and the notes on it.
fn words(which: Which) -> (&'static str, &'static str) {
    match which {
        Which::Formation => ("Forming a group", include_str!("../../notes/formation.md")),
        Which::Scale => ("Many nodes", include_str!("../../notes/scale.md")),
        Which::Again => ("Meeting again", include_str!("../../notes/again.md")),
        Which::Agents => ("Agents of torchrun", include_str!("../../notes/agents.md")),
        Which::Store => ("The Store", include_str!("../../notes/store.md")),
        Which::Server => ("The embedded server", include_str!("../../notes/server.md")),
        Which::Gateway => ("The gateway", include_str!("../../notes/gateway.md")),
        Which::Launcher => ("The launcher", include_str!("../../notes/launcher.md")),
        Which::WorkerStore => ("The workers' store", include_str!("../../notes/worker-store.md")),
        Which::Restarts => ("Restarts", include_str!("../../notes/restarts.md")),
        Which::Health => ("Heartbeats and health checks", include_str!("../../notes/health.md")),
    }
}

/// The whole page.
pub(crate) fn page(results: &Results) -> String {
    let mut page = format!("{}\n", INTRODUCTION.trim_end());
    let parts: Vec<(Which, &Part)> = Which::ALL
        .into_iter()
        .filter_map(|which| Some((which, results.parts.iter().find(|part| part.name == which.name())?)))
        .collect();
    let machine = &results.machine;
    let _ = writeln!(page, "\n## Where, when, with what\n");
    let _ = writeln!(
        page,
        "- {} cores ({}), {} GB of memory, {}",
        machine.cores, machine.processor, machine.memory_gb, machine.kernel
    );
    let _ = writeln!(page, "- {}", machine.versions.join(", "));
    let _ = writeln!(page, "- all figures: [results.json]({FOLDER}/results.json)\n");
    let _ = writeln!(page, "| part | command | begun | load then | took |\n| --- | --- | --- | --- | --- |");
    for (which, part) in &parts {
        let (heading, _) = words(*which);
        let minutes = part.seconds / 60.0;
        let _ = writeln!(
            page,
            "| {heading} | `{}` | {} | {:.2} | {minutes:.1} min |",
            part.command, part.begun, part.load
        );
    }
    let _ = writeln!(page, "\n{}", promises(&parts));
    for (which, part) in &parts {
        let (heading, notes) = words(*which);
        let _ = writeln!(page, "\n## {heading}\n\n{}\n\n{}", figures(part, &results.parts), notes.trim_end());
    }
    let _ = writeln!(page, "\n{}", SETTINGS.trim_end());
    page
}

/// How many promises there are, and which were not kept.
fn promises(parts: &[(Which, &Part)]) -> String {
    let made =
        parts.iter().flat_map(|(_, part)| &part.comparisons).filter(|one| one.promise.is_some()).count();
    let broken: Vec<String> =
        parts.iter().flat_map(|(_, part)| part.broken_promises()).map(ToString::to_string).collect();
    match broken.as_slice() {
        [] => format!("All {made} promises were kept."),
        [broken] => format!("Of {made} promises, one was not kept: {broken}."),
        broken => format!("Of {made} promises, {} were not kept: {}.", broken.len(), broken.join("; ")),
    }
}

/// What was measured in one part, for a terminal.
pub(crate) fn part(part: &Part) -> String {
    format!("\n{} (`{}`, {})\n\n{}\n", part.name, part.command, part.begun, figures(part, &[]))
}

/// With the plots of it, if there are figures of `all` parts to draw them from.
fn figures(part: &Part, all: &[Part]) -> String {
    let mut blocks = vec![part.setting.iter().map(|line| format!("- {line}")).collect::<Vec<_>>().join("\n")];
    blocks.extend(
        plots::of(part, all).iter().map(|plot| format!("![{}]({FOLDER}/{})", plot.title, plot.file())),
    );
    blocks.extend(part.tables.iter().map(table));
    if !part.comparisons.is_empty() {
        blocks.push(comparisons(&part.comparisons));
    }
    blocks.join("\n\n")
}

fn table(table: &Table) -> String {
    let mut text = format!("{}: median (least - most)\n\n", table.title);
    let _ = writeln!(text, "| {} | {} |", table.rows_are, table.columns.join(" | "));
    let _ = write!(text, "|{}", " --- |".repeat(table.columns.len() + 1));
    for row in &table.rows {
        let cells: Vec<String> = row.cells.iter().map(|cell| outcome(cell, &row.unit)).collect();
        let _ = write!(text, "\n| {} | {} |", row.name, cells.join(" | "));
    }
    if let Some(powers) = growth::powers(table) {
        // Adding 0 makes a negative zero a plain one.
        let round = |power: f64| (power * 10.0).round() / 10.0 + 0.0;
        let cell = |power: &Option<f64>| power.map_or("-".to_owned(), |power| format!("{:.1}", round(power)));
        let cells: Vec<String> = powers.iter().map(cell).collect();
        let _ = write!(text, "\n| *power of N* | {} |", cells.join(" | "));
    }
    text
}

fn comparisons(comparisons: &[Comparison]) -> String {
    let mut text =
        "| what | ours: median (least - most) | rival | rival's: median (least - most) | ratio | promise |\n\
        | --- | --- | --- | --- | --- | --- |"
            .to_owned();
    for row in comparisons {
        let promise = match row.promise {
            None => String::new(),
            Some(promise) if row.kept() => format!("{promise}: kept"),
            Some(promise) => format!("{promise}: NOT KEPT"),
        };
        let _ = write!(
            text,
            "\n| {} | {} | {} | {} | {} | {promise} |",
            row.name,
            samples(&row.ours, &row.unit),
            row.rival,
            outcome(&row.theirs, &row.unit),
            ratio(row)
        );
    }
    text
}

fn ratio(row: &Comparison) -> String {
    let bound = if matches!(row.theirs, Outcome::NotWithin(_)) { "< " } else { "" };
    match row.ratio() {
        ratio if ratio < 0.1 => format!("{bound}{ratio:.3}"),
        ratio => format!("{bound}{ratio:.2}"),
    }
}

fn outcome(outcome: &Outcome, unit: &str) -> String {
    match outcome {
        Outcome::Measured(measured) => samples(measured, unit),
        Outcome::NotWithin(limit) => format!("not within {limit} s"),
        Outcome::Failed(why) => format!("failed: {why}"),
        Outcome::NotRun => "-".to_owned(),
    }
}

fn samples(samples: &Samples, unit: &str) -> String {
    let (median, least, most) = (samples.median(), samples.least(), samples.most());
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
    if least == most {
        return format!("{}{unit}", short(median));
    }
    format!("{}{unit} ({} - {})", short(median), short(least), short(most))
}

/// Three digits are as much as such figures can tell.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 0.1 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Promise, Row};

    #[test]
    fn a_report_has_its_parts_in_order_with_figures_plots_notes_and_what_was_not_kept() {
        let row = |x: f64, cells| Row { name: format!("{x}"), x: Some(x), unit: "s".to_owned(), cells };
        let measured = |figure| Outcome::Measured(Samples::one(figure));
        let formation = Part {
            name: "formation".to_owned(),
            command: "bench/run".to_owned(),
            begun: "2026-11-15 10:02 UTC".to_owned(),
            tables: vec![Table {
                id: "formation-time".to_owned(),
                title: "Time".to_owned(),
                rows_are: "nodes".to_owned(),
                columns: vec!["rallypoint".to_owned(), "torch c10d".to_owned()],
                rows: vec![
                    row(2.0, vec![measured(0.0123), measured(1.0)]),
                    row(256.0, vec![measured(2.0), Outcome::NotWithin(150.0)]),
                ],
            }],
            ..Part::default()
        };
        let limits = Comparison::fixed("start", "ms", Samples::one(60.0), "the promise", 50.0);
        let fine = Comparison::new(
            "set",
            "/s",
            (Samples::one(90.0), "raw put", Samples::one(100.0)),
            Some(Promise::AtLeast(0.8)),
        );
        let store = Part { name: "store".to_owned(), comparisons: vec![fine, limits], ..Part::default() };
        let page = page(&Results { parts: vec![store, formation], ..Results::default() });
        for text in [
            "| 2 | 0.012 s | 1.00 s |",
            "| 256 | 2.00 s | not within 150 s |",
            "![Time to form a group](benchmarks/formation-time.svg)",
            "| set | 90.0 /s | raw put | 100 /s | 0.90 | >= 0.8: kept |",
            "<= 1: NOT KEPT",
            "Of 2 promises, one was not kept: start against the promise (1.20).",
            "| Forming a group | `bench/run` | 2026-11-15 10:02 UTC |",
        ] {
            assert!(page.contains(text), "{text:?} is missing in\n{page}");
        }
        let order = ["# ", "## Forming a group", "## The Store", "## Settings"].map(|text| page.find(text));
        assert!(order.is_sorted() && order.iter().all(Option::is_some), "{order:?}");
        assert!(!page.contains("## The launcher"), "it was not measured");
    }
}
