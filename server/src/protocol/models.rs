//! `/v1/models` and `/version`.

use serde::Serialize;
use utoipa::ToSchema;

/// List of the model's names.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: &'static str,
    /// One entry for each name.
    pub data: Vec<ModelCard>,
}

/// One name of the model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelCard {
    /// Name in requests.
    pub id: String,
    /// `model`.
    pub object: &'static str,
    /// Start of the server, in seconds since 1970.
    pub created: u64,
    /// `strata`.
    pub owned_by: &'static str,
    /// Path or repository that the model was loaded from.
    pub root: String,
    /// Of a LoRA adapter: name of the model that it changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Maximum number of tokens of prompt and completion together.
    pub max_model_len: usize,
}

/// Version of the program.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Version {
    /// Version of Strata.
    pub version: &'static str,
}
