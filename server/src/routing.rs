//! Chooses the lane of a request: once, before its prompt is rendered and tokenized, since specialists may have other
//! tokenizers and templates.

use super::error::{ApiError, quoted};
use super::lanes::Lanes;
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
    /// names, as `specialist` or as `model`; otherwise the router's choice.
    ///
    /// # Errors
    /// [`ApiError`]: an unknown model or specialist.
    pub fn route(&self, model: Option<&str>, routing: &Routing) -> Result<Routed, ApiError> {
        routing.check()?;
        let named = self.of_model(model)?;
        if let Some(name) = &routing.specialist {
            return Ok(self.routed(self.of_specialist(name)?, "specialist"));
        }
        match named {
            Some(lane) => Ok(self.routed(lane, "model")),
            None => Ok(self.routed(0, "fallback")),
        }
    }

    /// Index of the lane of a specialist.
    ///
    /// # Errors
    /// [`ApiError`] that lists the specialists.
    pub fn of_specialist(&self, name: &str) -> Result<usize, ApiError> {
        self.index_of_model(name).ok_or_else(|| self.unknown_specialist(name))
    }

    fn routed(&self, lane: usize, why: &str) -> Routed {
        Routed { lane, why: self.ensemble_name().map(|_| why.to_owned()) }
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
