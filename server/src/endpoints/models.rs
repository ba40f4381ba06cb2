//! `GET /v1/models`.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use l5_scheduler::adapters::AdapterInfo;

use crate::adapters::created;
use crate::error::{ApiError, ErrorResponse};
use crate::lanes::Lanes;
use crate::model::ServedModel;
use crate::openapi::KeyErrors;
use crate::protocol::models::{ModelCard, ModelList};

/// Lists the names of the models: first that of the ensemble, if there is one, and last the LoRA adapters.
#[utoipa::path(get, path = "/v1/models", security((), ("key" = [])), responses(
    (status = 200, description = "The names of the model", body = ModelList),
    KeyErrors,
))]
pub async fn list(State(lanes): State<Lanes>) -> Json<ModelList> {
    let routed = lanes.ensemble_name().map(|name| card(lanes.first().model(), name));
    let cards = |model: &ServedModel| -> Vec<ModelCard> {
        model.names.iter().map(|name| card(model, name)).collect()
    };
    let adapters = lanes.adapters().map(|own| own.registry().list()).unwrap_or_default();
    let adapters = adapters.iter().map(|info| adapter_card(lanes.first().model(), info));
    let lanes = lanes.iter().flat_map(|lane| cards(lane.model()));
    let data = routed.into_iter().chain(lanes).chain(adapters).collect();
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
    State(lanes): State<Lanes>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(name) = name.map_err(|why| ApiError::invalid(why.body_text()))?;
    let lane = lanes.of_model(Some(&name))?.unwrap_or_default();
    let info = lanes.adapters().and_then(|own| own.registry().info(&name));
    if let Some(info) = info {
        return Ok(Json(adapter_card(lanes[lane].model(), &info)));
    }
    Ok(Json(card(lanes[lane].model(), &name)))
}

fn card(model: &ServedModel, name: &str) -> ModelCard {
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: model.created,
        owned_by: "strata",
        root: model.root.clone(),
        parent: None,
        max_model_len: model.max_model_len,
    }
}

/// The card of an adapter: its root is where it was loaded from, its parent the model.
fn adapter_card(model: &ServedModel, info: &AdapterInfo) -> ModelCard {
    ModelCard {
        created: created(info),
        root: info.path.display().to_string(),
        parent: Some(model.name().to_owned()),
        ..card(model, &info.name)
    }
}
