//! Which tables are drawn, and what of them.

use crate::results::{Outcome, Part, Table};

/// Something to draw.
#[derive(Debug, PartialEq)]
pub(crate) struct Plot {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) series: Vec<Series>,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Of x, with the median, the least and the most of y.
    pub(crate) points: Vec<(f64, [f64; 3])>,
    /// Where it went beyond its limit, if it did: nothing was measured there.
    pub(crate) beyond: Option<(f64, f64)>,
    /// A floor, rather than somebody who takes part.
    pub(crate) is_floor: bool,
}

impl Plot {
    pub(crate) fn file(&self) -> String {
        format!("{}.svg", self.name)
    }
}

/// The plots of a part, as far as there are figures for them; some have those of another part beside its own.
pub(crate) fn of(part: &Part, all: &[Part]) -> Vec<Plot> {
    let tables = all.iter().flat_map(|part| &part.tables);
    let table = |id: &str| tables.clone().find(|table| table.id == id).map(series).unwrap_or_default();
    let both = |first: &str, second: &str| table(first).into_iter().chain(table(second)).collect();
    let plots = match part.name.as_str() {
        "formation" => vec![
            Plot {
                name: "formation-time",
                title: "Time to form a group",
                x: "nodes",
                y: "seconds",
                series: both("formation-time", "tasks-time"),
            },
            Plot {
                name: "formation-requests",
                title: "Requests to form a group",
                x: "nodes",
                y: "requests per node",
                series: both("formation-requests", "tasks-requests"),
            },
        ],
        "store" => vec![Plot {
            name: "store-get",
            title: "Store: get, one client",
            x: "keys in the store",
            y: "gets per second",
            series: table("store"),
        }],
        _ => Vec::new(),
    };
    plots.into_iter().filter(|plot| plot.series.iter().any(|series| series.points.len() > 1)).collect()
}

fn series(table: &Table) -> Vec<Series> {
    let one = |(at, name): (usize, &String)| {
        let cells = table.rows.iter().filter_map(|row| Some((row.x?, &row.cells[at])));
        let points = cells.clone().filter_map(|(x, cell)| match cell {
            Outcome::Measured(samples) => Some((x, [samples.median(), samples.least(), samples.most()])),
            _ => None,
        });
        let beyond = cells.clone().find_map(|(x, cell)| match cell {
            Outcome::NotWithin(limit) => Some((x, *limit)),
            _ => None,
        });
        let is_floor = name.contains("floor") || name.contains("raw");
        Series { name: name.clone(), points: points.collect(), beyond, is_floor }
    };
    table.columns.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Samples;
    use crate::results::Row;

    #[test]
    fn a_column_becomes_a_series_that_ends_where_its_limit_was() {
        let row = |x, cells| Row { name: String::new(), x: Some(x), unit: "s".to_owned(), cells };
        let measured = |figure| Outcome::Measured(Samples::one(figure));
        let table = Table {
            columns: vec!["rallypoint".to_owned(), "c10d".to_owned()],
            rows: vec![
                row(2.0, vec![measured(0.1), measured(1.0)]),
                row(4.0, vec![measured(0.2), Outcome::NotWithin(150.0)]),
                row(8.0, vec![measured(0.3), Outcome::NotRun]),
            ],
            ..Table::default()
        };
        let [ours, theirs] = series(&table).try_into().expect("two columns");
        assert_eq!(
            ours.points.iter().map(|(x, y)| (*x, y[0])).collect::<Vec<_>>(),
            [(2.0, 0.1), (4.0, 0.2), (8.0, 0.3)]
        );
        assert_eq!((theirs.points.len(), theirs.beyond), (1, Some((4.0, 150.0))));
    }
}
