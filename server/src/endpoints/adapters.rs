//! `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`.

use std::path::PathBuf;

use axum::extract::State;

use crate::LOG;
use crate::adapters::{Adapters, disabled};
use crate::error::ApiError;
use crate::json::Body;
use crate::lanes::Lanes;
use crate::openapi::AdapterErrors;
use crate::protocol::adapters::{LoadLoraAdapter, UnloadLoraAdapter};

/// Loads a LoRA adapter from a directory of the server. Requests with its name as `model` run with it.
///
/// # Errors
/// 400 for an adapter that cannot be loaded, and for a name that is taken; 404 on a server without adapters; 503 if
/// there is no room for another adapter.
#[utoipa::path(post, path = "/v1/load_lora_adapter", request_body = LoadLoraAdapter, security((), ("key" = [])),
    responses(
        (status = 200, description = "The adapter is loaded", body = String, content_type = "text/plain"),
        AdapterErrors,
    ))]
pub async fn load(
    State(lanes): State<Lanes>,
    Body(request, _memory): Body<LoadLoraAdapter>,
) -> Result<String, ApiError> {
    let adapters = adapters(&lanes)?;
    let LoadLoraAdapter { lora_name, lora_path, load_inplace } = request;
    if lora_path.is_empty() {
        let message = "`lora_path` must be the directory of a LoRA adapter";
        return Err(ApiError::param("lora_path", message));
    }
    let path = PathBuf::from(&lora_path);
    let loaded = adapters.load(lora_name.clone(), path, load_inplace == Some(true)).await?;
    let (rank, digest) = (loaded.weights.rank(), loaded.weights.digest_hex());
    tracing::info!(
        target: LOG,
        "LoRA adapter `{lora_name}` loaded from {lora_path:?}: rank {rank}, sha256 {digest}"
    );
    Ok(format!("Success: LoRA adapter '{lora_name}' added successfully."))
}

/// Unloads a LoRA adapter. Requests that run with it finish.
///
/// # Errors
/// 404 for an adapter that is not loaded, and on a server without adapters.
#[utoipa::path(post, path = "/v1/unload_lora_adapter", request_body = UnloadLoraAdapter, security((), ("key" = [])),
    responses(
        (status = 200, description = "The adapter is unloaded", body = String, content_type = "text/plain"),
        AdapterErrors,
    ))]
pub async fn unload(
    State(lanes): State<Lanes>,
    Body(request, _memory): Body<UnloadLoraAdapter>,
) -> Result<String, ApiError> {
    let UnloadLoraAdapter { lora_name } = request;
    adapters(&lanes)?.unload(lora_name.clone()).await?;
    tracing::info!(target: LOG, "LoRA adapter `{lora_name}` unloaded");
    Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully."))
}

fn adapters(lanes: &Lanes) -> Result<&Adapters, ApiError> {
    lanes.adapters().ok_or_else(disabled)
}
