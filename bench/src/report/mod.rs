//! The report: a page of words and tables, and plots, made from the results and nothing else.

mod draw;
mod growth;
mod plots;
pub(crate) mod text;

use std::io;
use std::path::Path;

use crate::results::Results;

pub(crate) const PAGE: &str = "benchmarks.md";
/// Of the plots and the raw figures, beside the page.
pub(crate) const FOLDER: &str = "benchmarks";

/// Writes the page and its plots into `out`.
pub(crate) fn write(results: &Results, out: &Path) -> io::Result<()> {
    for plot in results.parts.iter().flat_map(|part| plots::of(part, &results.parts)) {
        std::fs::write(out.join(FOLDER).join(plot.file()), draw::svg(&plot))?;
    }
    std::fs::write(out.join(PAGE), text::page(results))
}
