//! Endpoints, one file each.

pub mod chat;
pub mod completions;
pub mod health;
pub mod metrics;
pub mod missing;
pub mod models;
pub mod openapi;
pub mod page;
pub mod state;
pub mod tokens;

use super::error::{ApiError, quoted};
use super::model::ServedModel;

/// Checks the model that a request names. A request without a model is for the one that is served.
///
/// # Errors
/// OpenAI's 404 for another model.
pub fn check_model(model: &ServedModel, name: Option<&str>) -> Result<(), ApiError> {
    match name {
        Some(name) if !model.is_named(name) => {
            let message = format!(
                "The model `{}` does not exist. This server serves `{}`.",
                quoted(name),
                model.name()
            );
            let mut error = ApiError::not_found(message).with_code("model_not_found");
            error.param = Some("model".into());
            Err(error)
        }
        _ => Ok(()),
    }
}
