//! `strata router explain`.

use std::fmt::Write as _;
use std::path::PathBuf;

use l6_ensemble::router::{ExamplePart, Findings, Part, Route, RouteInput, Router};
use serde::{Deserialize, Serialize};

use super::super::out;
use super::RouterOptions;

/// Show where a request would go, and why
///
/// FILE is the text of a user message; or JSON, {"parts": [{"kind", "text", "name"?}, ..], "intent"?}, for a whole
/// request.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The request; `-` reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Intent that the client declares
    #[arg(long, value_name = "INTENT")]
    intent: Option<String>,
    #[command(flatten)]
    router: RouterOptions,
    /// Print JSON: {"route", "findings"}
    #[arg(long)]
    json: bool,
}

/// A request as JSON. Fields of a corpus's line are ignored.
#[derive(Deserialize)]
struct Request {
    parts: Vec<ExamplePart>,
    intent: Option<String>,
}

#[derive(Serialize)]
struct Explanation<'a> {
    route: &'a Route,
    findings: &'a [l6_ensemble::router::Finding],
}

/// Runs the command.
///
/// # Errors
/// What reading reports, and an unknown intent.
pub fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let text = super::read_text(&args.file)?;
    let router = args.router.router(true)?;
    let request: Option<Request> =
        text.trim_start().starts_with('{').then(|| serde_json::from_str(&text).ok()).flatten();
    let declared = request.as_ref().and_then(|request| request.intent.clone());
    let intent = args.intent.clone().or(declared);
    let known = router.config().intents();
    if let Some(intent) = intent.as_deref().filter(|intent| !known.contains(intent)) {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        anyhow::bail!("the intent {intent:?} is unknown: use one of {known}, or configure it");
    }
    let parts: Vec<Part<'_>> = match &request {
        Some(request) => request.parts.iter().map(ExamplePart::as_part).collect(),
        None => vec![Part::user(&text)],
    };
    let input = RouteInput { intent: intent.as_deref(), parts: &parts };
    let (route, findings) = (router.route(&input), router.findings(&input));
    if args.json {
        out::json_line(&Explanation { route: &route, findings: &findings.findings })?;
    } else {
        let fallback = args.router.fallback()?;
        out::text(&sentences(&router, &route, &findings, fallback.as_deref()))?;
    }
    Ok(())
}

fn sentences(
    router: &Router,
    route: &Route,
    findings: &Findings,
    fallback: Option<&str>,
) -> String {
    let name = |lane: &Option<String>| lane.clone().unwrap_or_else(|| "none".to_owned());
    let primary = match (&route.primary, fallback) {
        (None, Some(fallback)) => {
            format!("none: the fallback of the ensemble, {fallback}, serves it")
        }
        (primary, _) => name(primary),
    };
    let mut text = format!(
        "primary    {}\nsecond     {}\nwhy        {}\n",
        primary,
        name(&route.second),
        route.why
    );
    if route.diff {
        text.push_str("diff       yes: the request has a unified diff\n");
    }
    // Writing to a String cannot fail.
    if !findings.findings.is_empty() {
        text.push_str("\ntripwire              hits  density  strength  evidence\n");
    }
    for finding in &findings.findings {
        let _ = writeln!(
            text,
            "{:20}{:>6.1}{:>9.3}{:>10.2}  {}",
            finding.tripwire.name(),
            finding.hits,
            finding.density,
            finding.strength,
            finding.summary()
        );
    }
    if !route.scores.is_empty() {
        text.push_str("\nlane                probability\n");
    }
    for (lane, score) in router.lanes().iter().zip(&route.scores) {
        let _ = writeln!(text, "{lane:20}{score:>11.3}");
    }
    text
}
