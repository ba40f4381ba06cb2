//! Chooses the lane of a request: once, before its prompt is rendered and tokenized, since specialists may have other
//! tokenizers and templates.

use std::cell::LazyCell;
use std::sync::Arc;

use axum::http::StatusCode;
use l6_ensemble::calibration::{DecidedBy, InputDigest};
use l6_ensemble::router::{Part, PartKind, Route, RouteInput, Why};

use super::ensemble::Ensemble;
use super::error::{ApiError, listed, quoted, unavailable};
use super::lanes::Lanes;
use super::protocol::chat::{ChatFields, Content};
use super::protocol::completions::PromptField;
use super::protocol::routing::Routing;

/// Maximum size of the text whose digest stands for an input, and of a prompt in the calibration stream, in bytes.
const MAX_DIGEST_BYTES: usize = 256 << 10;

/// The lane that serves a request, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    /// Index of the lane.
    pub lane: usize,
    /// Index of the lane that was chosen first: another one if that is down or demoted, or has refused the request.
    pub first: usize,
    /// Why, as in the header `x-strata-route`. `None`: the server has one lane.
    pub why: Option<String>,
    /// What decided, as in `strata:routes_total`. `None`: the server has one lane.
    pub by: Option<&'static str>,
    /// The router's choice. `None`: it was not asked.
    pub choice: Option<Arc<RouterChoice>>,
    /// Name of the lane that has a shadow of the request.
    pub shadow: Option<String>,
}

/// What the router found, for spill, shadow and calibration stream.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterChoice {
    /// Declared intent, or `unspecified`.
    pub intent: String,
    /// Calibrated score of the first choice. Without a classifier it is 1: a rule or an intent is certain.
    pub score: f32,
    /// Name of the rule that decided, or the intent.
    pub what: Option<String>,
    /// Scores of all lanes.
    pub scores: Vec<(String, f32)>,
    /// What decided.
    pub decided_by: DecidedBy,
    /// Digest of the input.
    pub digest: InputDigest,
    /// The input, if the calibration stream stores prompts.
    pub prompt: Option<String>,
    /// The second choice.
    pub second: Option<usize>,
    /// The lane to which the request may spill: it is up, and no breaker has demoted it.
    pub spill: Option<usize>,
    /// The lane of a shadow: the second choice or, if another lane serves in place of the first choice, that one.
    pub shadow: Option<usize>,
}

impl Routed {
    /// What decided, as in the calibration stream.
    pub fn decided_by(&self) -> DecidedBy {
        match (self.by, self.choice.as_deref()) {
            (Some("fallback" | "spill"), _) => DecidedBy::Fallback,
            (_, Some(choice)) => choice.decided_by,
            (_, None) => DecidedBy::Override,
        }
    }
}

impl Lanes {
    /// Chooses the lane of a request that names `model` and has these routing fields: the specialist that the request
    /// names, as `specialist` or as `model`; otherwise the router's choice by its `parts`.
    ///
    /// # Errors
    /// [`ApiError`]: an unknown model, specialist or intent; a request that no specialist serves; specialists that are
    /// down.
    pub fn route<'a>(
        &self,
        model: Option<&str>,
        routing: &'a Routing,
        parts: impl FnOnce() -> Vec<Part<'a>>,
    ) -> Result<Routed, ApiError> {
        routing.check()?;
        let named = self.of_model(model)?;
        let Some(ensemble) = self.router() else {
            if let Some(name) = &routing.specialist {
                self.of_specialist(name)?;
            }
            let lane = named.unwrap_or_default();
            let (why, by, choice, shadow) = (None, None, None, None);
            return Ok(Routed { lane, first: lane, why, by, choice, shadow });
        };
        let (mut asked, parts) = (None, LazyCell::new(parts));
        let (lane, by, why) = match (&routing.specialist, named) {
            (Some(name), _) => {
                (self.of_specialist(name)?, "specialist", "the client named the specialist".into())
            }
            (None, Some(lane)) => (lane, "model", "the client named the model".into()),
            (None, None) => {
                let (route, lane, by) = self.by_router(ensemble, routing, &parts)?;
                let why = self.why(&route);
                asked = Some(route);
                (lane, by, why)
            }
        };
        // A client that names a specialist gets it although its breaker is open.
        let serving = match by {
            "specialist" | "model" if self[lane].lane.ended().is_none() => Some(lane),
            _ => ensemble.serving(lane, self),
        };
        let Some(serving) = serving else {
            let name = self[lane].model().name();
            let message =
                format!("The specialist `{name}` has failed, and no fallback can take its place.");
            return Err(unavailable(message, "specialist_failed"));
        };
        let named = matches!(by, "specialist" | "model");
        let (by, why) = match serving == lane {
            true if !named && ensemble.is_unreplaced(lane, self) => {
                let name = self[lane].model().name();
                (by, format!("{name} is demoted and has no fallback that can serve; {why}"))
            }
            true => (by, why),
            false => {
                let name = self[lane].model().name();
                let state = if self[lane].lane.ended().is_some() { "down" } else { "demoted" };
                ("fallback", format!("fallback of {name}, which is {state}; {why}"))
            }
        };
        let choice = asked.map(|route| {
            Arc::new(self.choice(
                ensemble,
                routing.intent.as_deref(),
                &route,
                (lane, serving),
                &parts,
            ))
        });
        let (why, by) = (Some(why), Some(by));
        Ok(Routed { lane: serving, first: lane, why, by, choice, shadow: None })
    }

    /// Why the router chose a lane, for clients: where it chose none, the fallback of the ensemble serves.
    fn why(&self, route: &Route) -> String {
        let best = || {
            let scores = self.iter().zip(&route.scores);
            let best = scores.max_by(|a, b| a.1.total_cmp(b.1));
            best.map_or("none", |(lane, _)| lane.model().name())
        };
        match &route.why {
            Why::Rejected { score } => format!(
                "fallback of the ensemble: no lane is sure enough (best: {} with probability {score:.2})",
                best()
            ),
            Why::Fallback => format!("fallback of the ensemble: {}", route.why),
            why => why.to_string(),
        }
    }

    /// What follows from the router's decision beside the lane. `serving` serves in place of the lane `first`, or is the
    /// same.
    fn choice(
        &self,
        ensemble: &Ensemble,
        intent: Option<&str>,
        route: &Route,
        (first, serving): (usize, usize),
        parts: &[Part<'_>],
    ) -> RouterChoice {
        let config = ensemble.config();
        let up = |lane: usize| self[lane].lane.ended().is_none();
        let other = |lane: &usize| *lane != serving;
        let best = || {
            let others = route.scores.iter().enumerate().filter(|(lane, _)| *lane != serving);
            others.max_by(|a, b| a.1.total_cmp(b.1)).map(|(lane, _)| lane)
        };
        let second = route.second.as_deref().and_then(|name| config.index(name)).filter(other);
        let second = second.or_else(best).or_else(|| config.fallback_of(serving)).filter(other);
        let replaced = Some(first).filter(other).filter(|lane| up(*lane));
        let names = config.specialists.iter().map(|own| own.name.clone());
        let stream = self.calibration();
        let salt = stream.map_or(ensemble.salt(), |stream| stream.salt());
        RouterChoice {
            intent: intent.unwrap_or("unspecified").to_owned(),
            score: route.score.unwrap_or(1.0).clamp(0.0, 1.0),
            scores: names.zip(route.scores.iter().copied()).collect(),
            decided_by: match &route.why {
                Why::DeclaredIntent { .. } => DecidedBy::Intent,
                Why::Rule { .. } => DecidedBy::Rule,
                Why::Classifier { .. } => DecidedBy::Classifier,
                _ => DecidedBy::Rejected,
            },
            what: match &route.why {
                Why::DeclaredIntent { intent } => Some(intent.clone()),
                Why::Rule { name, .. } => Some(name.to_string()),
                _ => None,
            },
            digest: digest(salt, parts),
            prompt: stream.filter(|stream| stream.stores_prompts()).and_then(|_| prompt(parts)),
            second,
            spill: second.filter(|lane| up(*lane) && ensemble.may_serve(*lane)),
            shadow: replaced.or(second),
        }
    }

    /// The router's choice.
    fn by_router<'a>(
        &self,
        ensemble: &Ensemble,
        routing: &'a Routing,
        parts: &[Part<'a>],
    ) -> Result<(Route, usize, &'static str), ApiError> {
        let intent = routing.intent.as_deref();
        if let Some(intent) = intent.filter(|intent| !ensemble.knows_intent(intent)) {
            let message = format!(
                "`intent` must be one of {}, got `{}`",
                ensemble.intents().join(", "),
                quoted(intent)
            );
            return Err(ApiError::param("intent", message));
        }
        let (route, lane) = ensemble.route(&RouteInput { intent, parts });
        let by = match &route.why {
            Why::Fallback => "unrouted",
            why => why.name(),
        };
        let fallback = || ensemble.config().index(ensemble.config().fallback.as_deref()?);
        match (lane, fallback(), &route.why) {
            (Some(lane), ..) | (None, Some(lane), _) => Ok((route, lane, by)),
            (None, None, Why::Rejected { score }) => {
                let message = format!(
                    "No specialist serves this request: the best one has probability {score:.2}. Name a \
                     `specialist` or an `intent`."
                );
                Err(rejected(message))
            }
            (None, None, _) => {
                let message =
                    "No rule of the router fits this request. Name a `specialist` or an `intent`.";
                Err(rejected(message.to_owned()))
            }
        }
    }

    /// Index of the lane of a specialist.
    ///
    /// # Errors
    /// [`ApiError`] that lists the specialists.
    pub fn of_specialist(&self, name: &str) -> Result<usize, ApiError> {
        self.index_of_model(name).ok_or_else(|| self.unknown_specialist(name))
    }

    fn unknown_specialist(&self, name: &str) -> ApiError {
        let names = listed(self.iter().map(|lane| lane.model().name()));
        let message =
            format!("The specialist `{}` does not exist. This server has {names}.", quoted(name));
        ApiError::param("specialist", message).with_code("specialist_not_found")
    }
}

fn rejected(message: String) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request_error", message)
        .with_code("no_specialist")
}

/// Digest of an input: of its last texts, as many as are read in a fraction of a millisecond, and of its length.
fn digest(salt: &str, parts: &[Part<'_>]) -> InputDigest {
    let mut left = MAX_DIGEST_BYTES;
    let bytes: usize = parts.iter().map(|part| part.text.len()).sum();
    let length = format!("{} {bytes}", parts.len());
    let texts = parts.iter().rev().map_while(|part| {
        let mut from = part.text.len().saturating_sub(left);
        while !part.text.is_char_boundary(from) {
            from += 1;
        }
        let text = Some(&part.text[from..]).filter(|_| left > 0);
        left = left.saturating_sub(part.text.len());
        text
    });
    InputDigest::new(salt.as_bytes(), std::iter::once(length.as_str()).chain(texts))
}

/// The input as one text, unless it is too long for a record.
fn prompt(parts: &[Part<'_>]) -> Option<String> {
    let bytes: usize = parts.iter().map(|part| part.text.len()).sum();
    let texts = || parts.iter().map(|part| part.text).collect::<Vec<_>>().join("\n\n");
    (bytes <= MAX_DIGEST_BYTES).then(texts)
}

/// Parts of a chat that the router looks at.
pub fn parts_of_chat(own: &ChatFields) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    for document in own.documents.iter().flatten() {
        let field = |names: [&str; 2]| names.iter().find_map(|name| document.get(*name)?.as_str());
        if let Some(text) = field(["text", "content"]) {
            let name = field(["path", "title"]);
            parts.push(Part { kind: PartKind::Snippet, text, name });
        }
    }
    for message in &own.messages {
        let kind = match message.role.as_str() {
            "system" | "developer" => PartKind::System,
            "assistant" => PartKind::Assistant,
            "tool" => PartKind::Tool,
            _ => PartKind::User,
        };
        let name = message.more.get("name").and_then(|name| name.as_str());
        let mut push = |text| parts.push(Part { kind, text, name });
        match &message.content {
            None => {}
            Some(Content::Text(text)) => push(text),
            Some(Content::Parts(all)) => {
                all.iter().filter_map(|p| p.text.as_deref()).for_each(push)
            }
        }
    }
    parts
}

/// Parts of a completion that the router looks at: prompts as text. Token ids say nothing to it.
pub fn parts_of_prompt(prompt: &PromptField) -> Vec<Part<'_>> {
    match prompt {
        PromptField::Text(text) => vec![Part::user(text)],
        PromptField::Texts(texts) => texts.iter().map(|text| Part::user(text)).collect(),
        PromptField::Ids(_) | PromptField::IdLists(_) => Vec::new(),
    }
}
