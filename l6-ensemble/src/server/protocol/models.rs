//! `/v1/models` and `/version`.

use serde::Serialize;
use utoipa::ToSchema;

/// The models of this server.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: &'static str,
    /// One for each name.
    pub data: Vec<ModelCard>,
}

/// A model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelCard {
    /// Its name in requests.
    pub id: String,
    /// `model`.
    pub object: &'static str,
    /// When the server began, in seconds since 1970.
    pub created: u64,
    /// `strata`.
    pub owned_by: &'static str,
    /// Where it is from.
    pub root: String,
    /// The most tokens of prompt and answer together.
    pub max_model_len: usize,
}

/// Which program this is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Version {
    /// Of Strata.
    pub version: &'static str,
}
