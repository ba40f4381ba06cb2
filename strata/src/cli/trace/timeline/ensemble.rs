//! The page of an ensemble's run: the data of each engine's page, and the ways of requests to them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use l5_scheduler::trace::{
    EngineRun, EnsembleRun, QuoteEvent, RefusedEvent, RequestAt, Route, Summary,
};
use serde::Serialize;

use super::super::template;
use super::page::{Clock, Page};

#[derive(Serialize)]
struct EnsemblePage<'a> {
    title: &'a str,
    ensemble: &'a str,
    end: f64,
    dropped: u64,
    left_out: usize,
    /// Beginnings and ends of the steps of all engines, in the order of their beginnings.
    steps: AllSteps,
    engines: Vec<EngineData<'a>>,
    routes: Vec<RouteData<'a>>,
}

#[derive(Default, Serialize)]
struct AllSteps {
    at: Vec<f64>,
    end: Vec<f64>,
}

#[derive(Serialize)]
struct EngineData<'a> {
    lane: &'a str,
    replica: u32,
    recorded: bool,
    #[serde(flatten)]
    page: Page<'a>,
}

#[derive(Serialize)]
struct RouteData<'a> {
    number: u64,
    at: f64,
    decided: f64,
    admitted: Option<f64>,
    lane: Option<&'a str>,
    by: &'a str,
    what: Option<&'a str>,
    primary: Option<&'a str>,
    second: Option<&'a str>,
    score: Option<f32>,
    scores: &'a [(String, f32)],
    refused: Vec<RefusedData<'a>>,
    /// `[engine, request]`
    requests: Vec<[usize; 2]>,
    /// Engine, request, time of submission and reason.
    shadow: Option<(usize, usize, f64, &'a str)>,
    /// Time at which it left the router, to an engine or refused.
    left: f64,
    /// Lane that was to have a shadow.
    shadow_lane: Option<&'a str>,
}

#[derive(Serialize)]
struct RefusedData<'a> {
    lane: Option<&'a str>,
    at: f64,
    code: &'a str,
    quote: Option<&'a QuoteEvent>,
}

/// Writes the page.
///
/// # Errors
/// Those of `out`.
pub fn write(run: &EnsembleRun, title: &str, mut out: &mut dyn Write) -> io::Result<()> {
    let style = [include_str!("style.css"), include_str!("ensemble.css")].concat();
    let parts = [
        ("title", template::escaped(title)),
        ("style", style),
        ("data", template::data(&EnsemblePage::new(run, title))?),
        ("scale", include_str!("scale.js").to_owned()),
        ("charts", include_str!("charts.js").to_owned()),
        ("words", include_str!("words.js").to_owned()),
        ("rows", include_str!("ensemble_rows.js").to_owned()),
        ("view", include_str!("ensemble.js").to_owned()),
    ];
    template::fill(include_str!("ensemble.html"), &parts, &mut out)
}

impl<'a> EnsemblePage<'a> {
    fn new(run: &'a EnsembleRun, title: &'a str) -> Self {
        let bounds = run.bounds();
        let clock = Clock { began: bounds.0 };
        let steps = run.engines.iter().flat_map(|engine| &engine.run.steps);
        let mut steps: Vec<_> = steps.map(|step| (step.start, step.end)).collect();
        steps.sort_unstable();
        let (at, end) = steps.iter().map(|(at, end)| (clock.at(*at), clock.at(*end))).unzip();
        let engines = run.engines.iter().map(|engine| {
            let EngineRun { lane, replica, recorded, run } = engine;
            let page = Page::new(run, title, bounds);
            EngineData { lane, replica: *replica, recorded: *recorded, page }
        });
        Self {
            title,
            ensemble: &run.header.ensemble,
            end: clock.at(bounds.1),
            dropped: run.dropped,
            left_out: run.left_out,
            steps: AllSteps { at, end },
            engines: engines.collect(),
            routes: run.routes.iter().map(|route| RouteData::new(run, route, clock)).collect(),
        }
    }
}

impl<'a> RouteData<'a> {
    fn new(run: &EnsembleRun, route: &'a Route, clock: Clock) -> Self {
        let event = &route.event;
        let at = |us: f64| clock.at((us * 1000.0).round() as u64);
        let pair = |at: &RequestAt| [at.engine, at.request];
        let refused = event.refused.iter().map(|refused| {
            let RefusedEvent { lane, at_us, code, quote } = refused;
            RefusedData { lane: lane.as_deref(), at: at(*at_us), code, quote: quote.as_ref() }
        });
        Self {
            number: event.route,
            at: at(event.arrived_us),
            decided: at(event.decided_us),
            admitted: event.admitted_us.map(at),
            lane: event.lane.as_deref(),
            by: &event.by,
            what: event.what.as_deref(),
            primary: event.primary.as_deref(),
            second: event.second.as_deref(),
            score: event.score,
            scores: &event.scores,
            refused: refused.collect(),
            requests: route.requests.iter().map(pair).collect(),
            shadow: route.shadow.as_ref().map(|(shadow, place)| {
                (place.engine, place.request, at(shadow.at_us), shadow.reason.as_str())
            }),
            left: clock.at(run.left_router(route)),
            shadow_lane: event.shadow.as_deref(),
        }
    }
}

/// The run in a few numbers: the ways of requests, and each engine.
pub fn summary(run: &EnsembleRun) -> String {
    let mut text = String::new();
    let list = |counts: BTreeMap<&str, usize>| {
        let all: Vec<_> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        all.join(", ")
    };
    let mut by: BTreeMap<&str, usize> = BTreeMap::new();
    let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
    for Route { event, .. } in &run.routes {
        match event.refused.first().filter(|_| event.admitted_us.is_none()) {
            // The client gets the refusal of the first choice.
            Some(first) => *refused.entry(first.code.as_str()).or_default() += 1,
            None => *by.entry(event.by.as_str()).or_default() += 1,
        }
    }
    let shadows = run.routes.iter().filter(|route| route.shadow.is_some()).count();
    let counts = [run.routes.len(), refused.values().sum(), shadows];
    let _ = writeln!(text, "ensemble {}", run.header.ensemble);
    let _ = writeln!(text, "routes       {:>10}   {}", counts[0], list(by));
    let _ = writeln!(text, "refused      {:>10}   {}", counts[1], list(refused));
    let _ = writeln!(text, "shadows      {:>10}", counts[2]);
    if run.dropped > 0 {
        let _ =
            writeln!(text, "dropped      {:>10}   lines: the file could not keep up", run.dropped);
    }
    for EngineRun { lane, replica, recorded, run } in &run.engines {
        let _ = writeln!(text, "\n{lane}, replica {replica}");
        match recorded {
            true => text += &Summary::of(run).to_string(),
            false => {
                let requests = run.lanes.len();
                let _ = writeln!(text, "requests     {requests:>10}   on another server");
            }
        }
    }
    // Columns without text behind the number.
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
