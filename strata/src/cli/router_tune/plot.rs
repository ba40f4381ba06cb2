//! The curves: precision over coverage, and over score with the proposals.

use std::path::Path;

use anyhow::anyhow;
use l6_ensemble::tune::{CurvePoint, IntentReport, TuneReport};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::cli::error::CliError;
use crate::cli::plot::{BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, TITLE, VERMILLION};

const SIZE: (u32, u32) = (960, 820);
const TEXT: (&str, u32) = ("sans-serif", 14);
/// Colours of intents. Those beyond them are not drawn: those with the most judged records are.
const COLOURS: [RGBColor; 7] = [BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY_BLUE, BLACK];

/// Writes the curves as an SVG.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write(path: &Path, report: &TuneReport) -> anyhow::Result<()> {
    let mut svg = String::new();
    draw(&mut svg, report).map_err(|why| anyhow!("cannot draw the curves: {why}"))?;
    std::fs::write(path, svg)
        .map_err(|reason| CliError::Output { path: path.to_owned(), reason }.into())
}

type Drawn<E> = Result<(), DrawingAreaErrorKind<E>>;

/// The intents that are drawn, with their colours.
type Curves<'a> = Vec<(&'a str, &'a IntentReport, RGBColor)>;

fn draw(svg: &mut String, report: &TuneReport) -> Result<(), String> {
    let message = |e: &dyn std::error::Error| e.to_string();
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|e| message(&e))?;
    let title = format!("Routes against their shadows, {} records", report.lines.records);
    let titled = root.titled(&title, TITLE).map_err(|e| message(&e))?;
    let (above, below) = titled.split_vertically(SIZE.1 / 2);
    let curves = drawn(report);
    over_coverage(&above, &curves).map_err(|e| message(&e))?;
    over_score(&below, &curves, report).map_err(|e| message(&e))?;
    root.present().map_err(|e| message(&e))
}

fn drawn(report: &TuneReport) -> Curves<'_> {
    let mut intents: Vec<_> = report.intents.iter().collect();
    intents.sort_by_key(|(_, intent)| std::cmp::Reverse(intent.judged));
    let coloured = intents.into_iter().filter(|(_, intent)| intent.judged > 0).zip(COLOURS);
    coloured.map(|((name, intent), colour)| (name.as_str(), intent, colour)).collect()
}

/// Least precision that is drawn, in percent: a whole multiple of ten.
fn floor(curves: &Curves<'_>) -> f64 {
    let points = curves.iter().flat_map(|(_, intent, _)| &intent.curve);
    let least = points.filter_map(|point| point.precision).fold(0.9, f64::min);
    (least * 10.0).floor() * 10.0
}

fn over_coverage<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    curves: &Curves<'_>,
) -> Drawn<B::ErrorType> {
    let point = |point: &CurvePoint| Some((point.coverage * 100.0, point.precision? * 100.0));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..100.0, floor(curves)..100.0)?;
    let mesh = &mut chart.configure_mesh();
    mesh.x_desc("coverage, % of requests").y_desc("precision, %").label_style(TEXT).draw()?;
    for (name, intent, colour) in curves {
        let line = LineSeries::new(intent.curve.iter().filter_map(point), colour.stroke_width(2));
        let style = colour.stroke_width(2);
        let mark = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style);
        let label = format!("{} ({} judged)", shortened(name), intent.judged);
        chart.draw_series(line)?.label(label).legend(mark);
    }
    let labels = &mut chart.configure_series_labels();
    let labels = labels.position(SeriesLabelPosition::LowerLeft).label_font(TEXT);
    labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()
}

/// Precision above each score. A vertical line is a proposed `shadow_below` (thin, in the intent's colour) or the
/// router's `min_score` (grey).
fn over_score<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    curves: &Curves<'_>,
    report: &TuneReport,
) -> Drawn<B::ErrorType> {
    let point = |point: &CurvePoint| Some((f64::from(point.threshold), point.precision? * 100.0));
    let least = floor(curves);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..1.0, least..100.0)?;
    let mesh = &mut chart.configure_mesh();
    mesh.x_desc("score of at least (lines: proposed shadow_below; grey: min_score)")
        .y_desc("precision, %")
        .label_style(TEXT)
        .draw()?;
    let mut vertical = |score: f32, style: ShapeStyle| {
        let x = f64::from(score);
        chart.draw_series(LineSeries::new([(x, least), (x, 100.0)], style)).map(|_| ())
    };
    if let Some(score) = report.router.min_score.value {
        vertical(score, BLACK.mix(0.4).stroke_width(4))?;
    }
    for (_, intent, colour) in curves {
        if let Some(score) = intent.shadow_below.value {
            vertical(score, colour.stroke_width(1))?;
        }
    }
    for (_, intent, colour) in curves {
        let line = LineSeries::new(intent.curve.iter().filter_map(point), colour.stroke_width(2));
        chart.draw_series(line)?;
    }
    Ok(())
}

/// Name of an intent, as far as a legend has room for it.
fn shortened(name: &str) -> String {
    name.chars().take(24).collect()
}
