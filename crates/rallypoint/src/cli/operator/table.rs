//! Columns of text.

use rallypoint_core::text::plain;

/// Columns as wide as what is in them; those that are empty are left out.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let shown: Vec<usize> =
        (0..columns).filter(|column| rows.iter().skip(1).any(|row| !row[*column].is_empty())).collect();
    let mut text = String::new();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &rows {
        // What is longer than a format can pad is padded all the same.
        let pad = |column: usize| " ".repeat(widths[column] - row[column].chars().count());
        let cells: Vec<String> = shown.iter().map(|column| row[*column].clone() + &pad(*column)).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_as_wide_as_they_need_to_be() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text =
            table(&[row(["RUN", "RACK", "STATE"]), row(["a-long-name", "", "running"]), row(["b", "", "x"])]);
        assert_eq!(text, "RUN          STATE\na-long-name  running\nb            x\n");
        let long = "r".repeat(120_000);
        assert!(
            table(&[row(["RUN", "A", "B"]), row([&long, "\x1b[2J", "x"])]).ends_with("  \\u{1b}[2J  x\n")
        );
    }
}
