//! `GET /v1/models`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};

use super::check_model;
use crate::error::{ApiError, ErrorResponse};
use crate::model::ServedModel;
use crate::openapi::KeyErrors;
use crate::protocol::models::{ModelCard, ModelList};

/// Lists the names of the model.
#[utoipa::path(get, path = "/v1/models", security((), ("key" = [])), responses(
    (status = 200, description = "The names of the model", body = ModelList),
    KeyErrors,
))]
pub async fn list(State(model): State<Arc<ServedModel>>) -> Json<ModelList> {
    let data = model.names.iter().map(|name| card(&model, name)).collect();
    Json(ModelList { object: "list", data })
}

/// Retrieves one name of the model.
///
/// # Errors
/// 404 for any other name.
#[utoipa::path(get, path = "/v1/models/{name}", params(("name" = String, Path, description = "A name of the model, \
    slashes included")),
    security((), ("key" = [])), responses(
    (status = 200, description = "The model", body = ModelCard),
    (status = 404, description = "The model does not exist", body = ErrorResponse),
    KeyErrors,
))]
pub async fn one(
    State(model): State<Arc<ServedModel>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(name) = name.map_err(|why| ApiError::invalid(why.body_text()))?;
    check_model(&model, Some(&name))?;
    Ok(Json(card(&model, &name)))
}

fn card(model: &ServedModel, name: &str) -> ModelCard {
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: model.created,
        owned_by: "strata",
        root: model.root.clone(),
        max_model_len: model.max_model_len,
    }
}
