//! Prometheus' text format.

use std::fmt::{Display, Write as _};

/// Writes a metric with its values, each with its label.
pub(crate) fn metric<L: Display>(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, u64)>,
) {
    // Writing to a string cannot fail.
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (label, value) in values {
        let _ = writeln!(out, "{name}{label} {value}");
    }
}
