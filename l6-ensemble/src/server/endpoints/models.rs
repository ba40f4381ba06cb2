//! `GET /v1/models`: what can be asked.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};

use super::known_model;
use crate::server::app::{App, Shared};
use crate::server::error::{ApiError, ErrorResponse};
use crate::server::openapi::KeyTroubles;
use crate::server::protocol::models::{ModelCard, ModelList};

/// Every name of the model.
#[utoipa::path(get, path = "/v1/models", security((), ("key" = [])), responses(
    (status = 200, description = "The names", body = ModelList),
    KeyTroubles,
))]
pub async fn list(State(app): State<Shared>) -> Json<ModelList> {
    let data = app.model.names.iter().map(|name| card(&app, name)).collect();
    Json(ModelList { object: "list", data })
}

/// One of them.
///
/// # Errors
/// 404 for another.
#[utoipa::path(get, path = "/v1/models/{name}", params(("name" = String, Path, description = "A name, slashes included")),
    security((), ("key" = [])), responses(
    (status = 200, description = "The model", body = ModelCard),
    (status = 404, description = "It is not here", body = ErrorResponse),
    KeyTroubles,
))]
pub async fn one(
    State(app): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(name) = name.map_err(|why| ApiError::invalid(why.body_text()))?;
    known_model(&app, Some(&name))?;
    Ok(Json(card(&app, &name)))
}

fn card(app: &App, name: &str) -> ModelCard {
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: app.model.created,
        owned_by: "strata",
        root: app.model.root.clone(),
        max_model_len: app.model.max_model_len,
    }
}
