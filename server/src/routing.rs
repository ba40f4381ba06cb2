//! Chooses the lane of a request: once, before its prompt is rendered and tokenized, since specialists may have other
//! tokenizers and templates.

use axum::http::StatusCode;
use l6_ensemble::router::{Part, PartKind, RouteInput, Why};

use super::ensemble::Ensemble;
use super::error::{ApiError, quoted, unavailable};
use super::lanes::Lanes;
use super::protocol::chat::{ChatFields, Content};
use super::protocol::completions::PromptField;
use super::protocol::routing::Routing;

/// The lane that serves a request, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    /// Index of the lane.
    pub lane: usize,
    /// Why, as in the header `x-strata-route`. `None`: the server has one lane.
    pub why: Option<String>,
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
            return Ok(Routed { lane: named.unwrap_or_default(), why: None });
        };
        let (lane, by, why) = match (&routing.specialist, named) {
            (Some(name), _) => {
                (self.of_specialist(name)?, "specialist", "the client named the specialist".into())
            }
            (None, Some(lane)) => (lane, "model", "the client named the model".into()),
            (None, None) => self.by_router(ensemble, routing, parts)?,
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
        let (by, why) = match serving == lane {
            true => (by, why),
            false => {
                let name = self[lane].model().name();
                let state = if self[lane].lane.ended().is_some() { "down" } else { "demoted" };
                ("fallback", format!("fallback of {name}, which is {state}; {why}"))
            }
        };
        ensemble.counters().count(serving, by);
        Ok(Routed { lane: serving, why: Some(why) })
    }

    /// The router's choice.
    fn by_router<'a>(
        &self,
        ensemble: &Ensemble,
        routing: &'a Routing,
        parts: impl FnOnce() -> Vec<Part<'a>>,
    ) -> Result<(usize, &'static str, String), ApiError> {
        let intent = routing.intent.as_deref();
        if let Some(intent) = intent.filter(|intent| !ensemble.knows_intent(intent)) {
            let message = format!(
                "`intent` must be one of {}, got `{}`",
                ensemble.intents().join(", "),
                quoted(intent)
            );
            return Err(ApiError::param("intent", message));
        }
        let parts = parts();
        let (route, lane) = ensemble.route(&RouteInput { intent, parts: &parts });
        let by = match &route.why {
            Why::Fallback => "unrouted",
            why => why.name(),
        };
        let why = route.why.to_string();
        let fallback = || ensemble.config().index(ensemble.config().fallback.as_deref()?);
        match (lane, fallback(), &route.why) {
            (Some(lane), ..) => Ok((lane, by, why)),
            (None, Some(lane), _) => Ok((lane, by, why)),
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
        let names: Vec<&str> = self.iter().map(|lane| lane.model().name()).collect();
        let message = format!(
            "The specialist `{}` does not exist. This server has {}.",
            quoted(name),
            names.join(", ")
        );
        ApiError::param("specialist", message).with_code("specialist_not_found")
    }
}

fn rejected(message: String) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request_error", message)
        .with_code("no_specialist")
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
