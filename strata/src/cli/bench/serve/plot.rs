//! The plot: distributions of latencies, and throughput over time.

use std::path::Path;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::client::Record;
use super::measure::tokens_over_time;
use super::report::Report;
use crate::cli::error::CliError;
use crate::cli::plot::{BLUE, GREEN, TITLE, VERMILLION};

const SIZE: (u32, u32) = (960, 760);
const TEXT: (&str, u32) = ("sans-serif", 14);
const COLOURS: [RGBColor; 3] = [BLUE, VERMILLION, GREEN];
/// Points of a curve and of the time.
const POINTS: usize = 400;
const BINS: usize = 60;

/// Write the plot as an SVG.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write(path: &Path, report: &Report, records: &[Record]) -> anyhow::Result<()> {
    let mut svg = String::new();
    draw(&mut svg, report, records).map_err(|why| anyhow!("cannot draw the plot: {why}"))?;
    std::fs::write(path, svg)
        .map_err(|reason| CliError::Output { path: path.to_owned(), reason }.into())
}

type Drawn<E> = Result<(), DrawingAreaErrorKind<E>>;

fn draw(svg: &mut String, report: &Report, records: &[Record]) -> Result<(), String> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let message = |e: &dyn std::error::Error| e.to_string();
    root.fill(&WHITE).map_err(|e| message(&e))?;
    let titled = root.titled(&report.title(), TITLE).map_err(|e| message(&e))?;
    let (above, below) = titled.split_vertically(SIZE.1 / 2);
    distributions(&above, report).map_err(|e| message(&e))?;
    throughput(&below, report.duration(), records).map_err(|e| message(&e))?;
    root.present().map_err(|e| message(&e))
}

/// Cumulative distribution of each latency.
fn distributions<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    report: &Report,
) -> Drawn<B::ErrorType> {
    let curves = report.plotted().map(|(name, spread)| (name, curve(spread.sample().sorted())));
    let values = || curves.iter().flat_map(|(_, points)| points).map(|(ms, _)| *ms);
    // Decades, so that the axis has whole ones.
    let from = values().fold(f64::INFINITY, f64::min).clamp(1e-2, 1e6).log10().floor();
    let to = values().fold(1e-2, f64::max).log10().ceil().max(from + 1.0);
    let range = (10f64.powf(from)..10f64.powf(to)).log_scale();
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(76)
        .build_cartesian_2d(range, 0.0..100.0)?;
    let mesh = &mut chart.configure_mesh();
    mesh.x_desc("latency, ms").y_desc("share of requests, %").label_style(TEXT).draw()?;
    for ((name, points), colour) in curves.into_iter().zip(COLOURS) {
        let line = LineSeries::new(points, colour.stroke_width(2));
        let mark = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2));
        chart.draw_series(line)?.label(name).legend(mark);
    }
    let labels = &mut chart.configure_series_labels();
    let labels = labels.position(SeriesLabelPosition::LowerRight).label_font(TEXT);
    labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()
}

/// Points `(ms, percent)` of a distribution.
fn curve(sorted: &[f64]) -> Vec<(f64, f64)> {
    let last = sorted.len().saturating_sub(1);
    let point = |i: usize| {
        let at = last * i / (POINTS - 1);
        let part = (at + 1) as f64 / sorted.len() as f64;
        Some((sorted.get(at)?.max(1e-2), part * 100.0))
    };
    (0..POINTS).filter_map(point).collect()
}

fn throughput<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    seconds: f64,
    records: &[Record],
) -> Drawn<B::ErrorType> {
    let width = seconds / BINS as f64;
    let rates: Vec<f64> =
        tokens_over_time(records, seconds, BINS).into_iter().map(|n| n / width).collect();
    let most = rates.iter().copied().fold(1.0, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..seconds, 0.0..most)?;
    let mesh = &mut chart.configure_mesh();
    mesh.x_desc("time, s").y_desc("output tokens/s").label_style(TEXT).draw()?;
    let middle = |(i, rate)| ((i as f64 + 0.5) * width, rate);
    let points = rates.into_iter().enumerate().map(middle);
    chart.draw_series(LineSeries::new(points, COLOURS[0].stroke_width(2)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_from_the_shortest_to_the_longest() {
        let sorted: Vec<f64> = (1..=1000).map(f64::from).collect();
        let points = curve(&sorted);
        assert_eq!(points.len(), POINTS);
        assert_eq!((points[0], points[POINTS - 1]), ((1.0, 0.1), (1000.0, 100.0)));
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
        assert!(curve(&[]).is_empty());
        assert_eq!(curve(&[3.0])[0], (3.0, 100.0));
    }
}
