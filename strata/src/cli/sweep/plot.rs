//! The plots of a sweep: job seconds over the rate, a panel for each pool; and the speed-up over `fcfs`.
//!
//! Plots are SVG with a title and a description for screen readers. Their black and white follow the reader's colour
//! scheme; the colours of the policies suit both.

use std::fmt::Write as _;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::summary::{Cells, Metric};
use crate::cli::plot::{BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, TITLE, VERMILLION};

/// Size of a panel, and height of the title.
const PANEL: (u32, u32) = (480, 340);
const HEAD: u32 = 34;
/// Height of a row of the legend, and room for a name in it.
const LEGEND: u32 = 24;
const KEY: u32 = 150;

const TEXT: (&str, u32) = ("sans-serif", 13);

/// Colours of the policies; grey, since black follows the colour scheme.
const COLOURS: [RGBColor; 7] =
    [BLUE, VERMILLION, GREEN, PURPLE, SKY_BLUE, ORANGE, RGBColor(128, 128, 128)];

/// Style sheet of a plot: what is black or white follows the colour scheme.
const STYLE: &str = "<style>@media (prefers-color-scheme: dark) { \
    rect[fill=\"#FFFFFF\"] { fill: #16181d; } text[fill=\"#000000\"] { fill: #e6e6e6; } \
    [stroke=\"#000000\"] { stroke: #c8c8c8; } }</style>";

/// What is plotted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Mean job seconds.
    Seconds,
    /// Mean job seconds of `fcfs` divided by those of the policy.
    SpeedUp,
}

impl Kind {
    fn axis(self) -> &'static str {
        match self {
            Self::Seconds => "mean job seconds",
            Self::SpeedUp => "speed-up over fcfs",
        }
    }
}

/// A curve: for each rate the value, and the smallest and largest over the seeds.
type Curve = Vec<(f64, f64, [f64; 2])>;

/// The plot of these pools, as SVG.
///
/// # Errors
/// What plotters cannot draw.
pub(super) fn svg(
    title: &str,
    kind: Kind,
    pools: &[usize],
    cells: &Cells,
) -> Result<String, String> {
    let columns = (pools.len() as u32).min(2);
    let rows = (pools.len() as u32).div_ceil(columns);
    let width = PANEL.0 * columns;
    let keys = (cells.variants.len() as u32).div_ceil(keys_in_a_row(width));
    let size = (width, HEAD + PANEL.1 * rows + LEGEND * keys + 6);
    let mut text = String::new();
    draw(&mut text, size, title, kind, pools, cells).map_err(|e| e.to_string())?;
    Ok(accessible(&text, title, &description(kind, pools, cells)))
}

fn draw(
    text: &mut String,
    size: (u32, u32),
    title: &str,
    kind: Kind,
    pools: &[usize],
    cells: &Cells,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(text, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, below) = root.split_vertically(HEAD);
    head.titled(title, TITLE)?;
    let rows = pools.len().div_ceil(2);
    let (panels, legend) = below.split_vertically(PANEL.1 * rows as u32);
    let areas = panels.split_evenly((rows, pools.len().min(2)));
    for (area, pool) in areas.iter().zip(pools) {
        panel(area, kind, *pool, cells)?;
    }
    keys(&legend, size.0, cells)?;
    root.present()?;
    Ok(())
}

/// The curves of a pool, one for each policy.
fn curves(kind: Kind, pool: usize, cells: &Cells) -> Vec<Curve> {
    let here = || cells.cells.iter().enumerate().filter(|(_, cell)| cell.num_gpu_blocks == pool);
    let point = |number: usize, variant: usize| {
        let value = cells.value(number, variant, Metric::Mean);
        match kind {
            Kind::Seconds => (value.seconds, value.range),
            Kind::SpeedUp => {
                let [least, most] = value.ratio_range;
                (1.0 / cells.to_baseline(number, variant, Metric::Mean), [1.0 / most, 1.0 / least])
            }
        }
    };
    let curve = |variant: usize| {
        let points = here().map(|(number, cell)| {
            let (value, range) = point(number, variant);
            (cell.rate.unwrap_or_default(), value, range)
        });
        points.filter(|(_, value, _)| value.is_finite()).collect()
    };
    (0..cells.variants.len()).map(curve).collect()
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    kind: Kind,
    pool: usize,
    cells: &Cells,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let curves = curves(kind, pool, cells);
    let points = || curves.iter().flatten();
    let (from, to) = bounds(points().map(|(rate, ..)| *rate));
    let highest = points().map(|(.., [_, most])| *most).fold(0.0, f64::max).max(1e-9);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(format!("{pool} blocks"), TEXT)
        .x_label_area_size(36)
        .y_label_area_size(58)
        .build_cartesian_2d(from..to, 0.0..highest * 1.05)?;
    let mesh = &mut chart.configure_mesh();
    mesh.x_desc("jobs per second").y_desc(kind.axis()).label_style(TEXT).x_labels(6).draw()?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let line = curve.iter().map(|(rate, value, _)| (*rate, *value));
        chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?;
        chart.draw_series(line.map(|at| Circle::new(at, 3, colour.filled())))?;
        let ranges = curve.iter().map(|(rate, _, [least, most])| {
            PathElement::new([(*rate, *least), (*rate, *most)], colour.mix(0.6).stroke_width(1))
        });
        chart.draw_series(ranges)?;
    }
    Ok(())
}

/// Bounds of an axis with room on both sides, also around a single value.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    if least > most {
        return (0.0, 1.0);
    }
    let room = if most > least { 0.05 * (most - least) } else { 0.5 * most.abs().max(1.0) };
    ((least - room).max(0.0).min(least), most + room)
}

/// The names of the policies beside their colours.
fn keys<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    width: u32,
    cells: &Cells,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let in_a_row = keys_in_a_row(width) as i32;
    for ((number, variant), colour) in (0..).zip(&cells.variants).zip(COLOURS.iter().cycle()) {
        let (row, column): (i32, i32) = (number / in_a_row, number % in_a_row);
        let (x, y) = (14 + KEY as i32 * column, 12 + LEGEND as i32 * row);
        area.draw(&PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)))?;
        area.draw(&Text::new(variant.to_string(), (x + 24, y - 7), TEXT))?;
    }
    Ok(())
}

/// Number of names in a row of the legend.
fn keys_in_a_row(width: u32) -> u32 {
    ((width - 14) / KEY).max(1)
}

/// What the plot shows, in words: the policies, and for each pool the values at the highest rate.
fn description(kind: Kind, pools: &[usize], cells: &Cells) -> String {
    let mut text = format!("Lines of {} over jobs per second, one for each policy.", kind.axis());
    for pool in pools {
        let curves = curves(kind, *pool, cells);
        let rate = curves.iter().flatten().map(|(rate, ..)| *rate).fold(0.0, f64::max);
        let _ = write!(text, " With {pool} blocks, at {rate} jobs per second:");
        for (curve, variant) in curves.iter().zip(&cells.variants) {
            if let Some((_, value, _)) = curve.last() {
                let _ = write!(text, " {variant} {value:.2},");
            }
        }
        text.pop();
        text.push('.');
    }
    text
}

/// An SVG with a title, a description and a style sheet.
fn accessible(svg: &str, title: &str, description: &str) -> String {
    let Some((begin, end)) = svg.split_once('>') else { return svg.to_owned() };
    let begin =
        begin.replacen("<svg", "<svg role=\"img\" aria-labelledby=\"title description\"", 1);
    format!(
        "{begin}>\n<title id=\"title\">{}</title>\n<desc id=\"description\">{}</desc>\n{STYLE}{end}",
        escaped(title),
        escaped(description)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_room_around_its_values() {
        assert_eq!(bounds([2.0, 12.0].into_iter()), (1.5, 12.5));
        assert_eq!(bounds([4.0].into_iter()), (2.0, 6.0));
        assert_eq!(bounds([0.0].into_iter()), (0.0, 0.5));
        assert_eq!(bounds(std::iter::empty()), (0.0, 1.0));
    }

    #[test]
    fn a_title_is_text() {
        let svg = accessible("<svg width=\"1\">\n</svg>", "a < b", "c & d");
        assert!(svg.starts_with("<svg role=\"img\""), "{svg}");
        assert!(
            svg.contains("<title id=\"title\">a &lt; b</title>") && svg.contains("c &amp; d"),
            "{svg}"
        );
        assert!(svg.ends_with("</style>\n</svg>"), "{svg}");
    }
}
