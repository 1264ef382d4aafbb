//! How a column grows: the power of x that it goes with.

use crate::results::{Outcome, Table};

/// Of each column, over so many of its largest sizes.
const SIZES: usize = 4;

/// The power for each column, where enough was measured; nothing for a table whose rows are not sizes.
pub(crate) fn powers(table: &Table) -> Option<Vec<Option<f64>>> {
    let sizes: Option<Vec<f64>> = table.rows.iter().map(|row| row.x).collect();
    let sizes = sizes.filter(|sizes| sizes.len() >= SIZES)?;
    let power = |column: usize| {
        let cells = table.rows.iter().map(|row| &row.cells[column]);
        let measured = sizes.iter().zip(cells).filter_map(|(size, cell)| match cell {
            Outcome::Measured(samples) => Some((*size, samples.median())),
            _ => None,
        });
        let measured: Vec<(f64, f64)> = measured.collect();
        Some(slope(measured.last_chunk::<SIZES>()?))
    };
    Some((0..table.columns.len()).map(power).collect())
}

/// Of the straight line that is nearest to the points, both axes logarithmic.
fn slope(points: &[(f64, f64); SIZES]) -> f64 {
    let logs = points.map(|(x, y)| (x.ln(), y.ln()));
    let mean = |pick: fn(&(f64, f64)) -> f64| logs.iter().map(pick).sum::<f64>() / logs.len() as f64;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    let together: f64 = logs.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    together / logs.iter().map(|(x, _)| (x - x_mean).powi(2)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Samples;
    use crate::results::Row;

    #[test]
    fn a_power_is_that_of_the_largest_sizes_that_were_measured() {
        let row = |x: f64, last| {
            let measured = |figure| Outcome::Measured(Samples::one(figure));
            let cells = vec![measured(3.0 * x * x), measured(if x < 4.0 { 100.0 } else { x }), last];
            Row { name: String::new(), x: Some(x), unit: "s".to_owned(), cells }
        };
        let sizes = [2.0, 4.0, 8.0, 16.0, 32.0];
        let mut table = Table {
            columns: ["square", "straight", "too slow"].map(ToOwned::to_owned).to_vec(),
            rows: sizes.map(|x| row(x, Outcome::NotWithin(150.0))).to_vec(),
            ..Table::default()
        };
        let powers = powers(&table).expect("its rows are sizes");
        assert!((powers[0].unwrap() - 2.0).abs() < 1e-9 && (powers[1].unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(powers[2], None);
        table.rows[0].x = None;
        assert_eq!(super::powers(&table), None);
    }
}
