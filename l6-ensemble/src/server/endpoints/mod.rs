//! One file for each thing that can be asked.

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

use super::app::App;
use super::error::{ApiError, quoted};

/// Whether the model that a request names is this one. A request that names none means the one that is here.
///
/// # Errors
/// OpenAI's 404 for a model that is not here.
pub fn known_model(app: &App, name: Option<&str>) -> Result<(), ApiError> {
    match name {
        Some(name) if !app.model.is_named(name) => {
            let message = format!(
                "The model `{}` does not exist: this server has `{}`.",
                quoted(name),
                app.model.name()
            );
            let mut error = ApiError::not_found(message).with_code("model_not_found");
            error.param = Some("model".into());
            Err(error)
        }
        _ => Ok(()),
    }
}
