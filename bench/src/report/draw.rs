//! Plots as SVG: both axes logarithmic, so that a line's slope is how it grows.

use plotters::coord::combinators::LogCoord;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::plots::{Plot, Series};

const SIZE: (u32, u32) = (960, 520);
/// Of the part with the lines; their names are to the right of it.
const WIDTH: u32 = 700;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Told apart by those who see few colours, too: ours are blue.
const OURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(86, 180, 233), RGBColor(70, 70, 160)];
const OTHERS: [RGBColor; 5] = [
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
    RGBColor(0, 158, 115),
    RGBColor(120, 94, 40),
];
const FLOOR: RGBColor = RGBColor(120, 120, 120);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, LogCoord<f64>>>;
type Failed = DrawingAreaErrorKind<std::io::Error>;

/// The picture.
pub(crate) fn svg(plot: &Plot) -> String {
    let mut text = String::new();
    draw(plot, &mut text).expect("text can always be written");
    text.trim_end().to_owned() + "\n"
}

fn draw(plot: &Plot, text: &mut String) -> Result<(), Failed> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(WIDTH);
    let (x, y) = ranges(plot);
    let mut chart = ChartBuilder::on(&left)
        .caption(plot.title, (FONT, 22).into_font().color(&INK))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((x.0..x.1).log_scale(), (y.0..y.1).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_desc(plot.x)
        .y_desc(plot.y)
        .axis_desc_style((FONT, 16).into_font().color(&INK))
        .label_style((FONT, 14).into_font().color(&INK))
        .x_label_formatter(&|value| figure(*value))
        .y_label_formatter(&|value| figure(*value))
        .draw()?;
    let mut names = Vec::new();
    let (mut ours, mut others) = (OURS.iter().cycle(), OTHERS.iter().cycle());
    for series in plot.series.iter().filter(|series| !series.points.is_empty()) {
        let color = match series {
            series if series.is_floor => Some(&FLOOR),
            series if series.name.starts_with("rallypoint") => ours.next(),
            _ => others.next(),
        };
        let color = *color.expect("they never end");
        line(&mut chart, series, color)?;
        names.push((series, color));
    }
    // In the order of where the lines end, as the eye goes.
    names.sort_by(|(a, _), (b, _)| end(b).total_cmp(&end(a)));
    legend(&right, &names)?;
    root.present()
}

fn line(chart: &mut Chart<'_, '_>, series: &Series, color: RGBColor) -> Result<(), Failed> {
    let style = color.stroke_width(if series.is_floor { 2 } else { 3 });
    let medians: Vec<(f64, f64)> = series.points.iter().map(|(x, [median, ..])| (*x, *median)).collect();
    if series.is_floor {
        chart.draw_series(DashedLineSeries::new(medians.clone(), 6, 5, style))?;
    } else {
        chart.draw_series(LineSeries::new(medians.clone(), style))?;
    }
    let spread = series.points.iter().map(|(x, [_, least, most])| {
        PathElement::new(vec![(*x, *least), (*x, *most)], color.stroke_width(1))
    });
    chart.draw_series(spread)?;
    chart.draw_series(medians.iter().map(|point| Circle::new(*point, 4, color.filled())))?;
    if let Some(beyond) = series.beyond {
        let last = *medians.last().expect("it has points");
        chart.draw_series(DashedLineSeries::new([last, beyond], 3, 4, color.stroke_width(2)))?;
        chart.draw_series([Cross::new(beyond, 6, color.stroke_width(3))])?;
    }
    Ok(())
}

/// Where the line of a series ends, on the y axis.
fn end(series: &Series) -> f64 {
    let last = series.points.last().map_or(0.0, |(_, [median, ..])| *median);
    series.beyond.map_or(last, |(_, limit)| limit)
}

fn legend(area: &Area<'_>, names: &[(&Series, RGBColor)]) -> Result<(), Failed> {
    let style = (FONT, 15).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    let mut y = 64;
    for (series, color) in names {
        area.draw(&PathElement::new(vec![(0, y), (26, y)], color.stroke_width(3)))?;
        area.draw(&Circle::new((13, y), 4, color.filled()))?;
        area.draw(&Text::new(series.name.clone(), (34, y), &style))?;
        if let Some((_, limit)) = series.beyond {
            y += 19;
            let note = format!("✕ not within {limit} s");
            area.draw(&Text::new(note, (34, y), style.color(color)))?;
        }
        y += 30;
    }
    Ok(())
}

/// From below the least to above the most, on each axis.
fn ranges(plot: &Plot) -> ((f64, f64), (f64, f64)) {
    let points = plot.series.iter().flat_map(|series| {
        let measured = series.points.iter().flat_map(|(x, ys)| ys.iter().map(move |y| (*x, *y)));
        measured.chain(series.beyond)
    });
    let points: Vec<(f64, f64)> = points.filter(|(x, y)| *x > 0.0 && *y > 0.0).collect();
    let range = |values: Vec<f64>| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        (least / 1.3, most * 1.3)
    };
    (range(points.iter().map(|(x, _)| *x).collect()), range(points.iter().map(|(_, y)| *y).collect()))
}

/// `10,000`, `0.01`.
fn figure(value: f64) -> String {
    if value < 1.0 {
        return format!("{}", (value * 1e6).round() / 1e6);
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_names_its_series_and_axes_and_says_who_was_too_slow() {
        let series = |name: &str, beyond| Series {
            name: name.to_owned(),
            points: vec![(2.0, [0.1, 0.1, 0.2]), (256.0, [1.0, 0.9, 1.1])],
            beyond,
            is_floor: name == "the floor",
        };
        let series =
            vec![series("ours", None), series("c10d", Some((512.0, 150.0))), series("the floor", None)];
        let plot = Plot { name: "p", title: "How long", x: "nodes", y: "seconds", series };
        let svg = svg(&plot);
        for word in ["How long", "nodes", "seconds", "ours", "c10d", "not within 150 s", "the floor"] {
            assert!(svg.contains(word), "{word} is missing");
        }
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([0.01, 1.0, 100.0, 10_000.0].map(figure), ["0.01", "1", "100", "10,000"]);
    }
}
