//! `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM has them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::json::{FromBody, part};

/// Request to load a LoRA adapter.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LoadLoraAdapter {
    /// Name of the adapter, which requests give as `model`: at most 256 bytes, and no name of the model.
    pub lora_name: String,
    /// Directory of the adapter on the server, as PEFT writes it.
    pub lora_path: String,
    /// Whether to replace the adapter of that name, if there is one. Requests that run keep the old one [default: false].
    #[serde(default)]
    pub load_inplace: Option<bool>,
}

/// Request to unload a LoRA adapter.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UnloadLoraAdapter {
    /// Name of the adapter.
    pub lora_name: String,
}

impl FromBody for LoadLoraAdapter {
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        part(body)
    }
}

impl FromBody for UnloadLoraAdapter {
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        part(body)
    }
}
