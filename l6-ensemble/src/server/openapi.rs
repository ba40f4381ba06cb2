//! The OpenAPI document, made from the types.

use utoipa::OpenApi;

use super::endpoints;

/// What this server understands, for programs.
#[derive(OpenApi)]
#[openapi(
    info(title = "Strata", description = "An OpenAI-compatible server."),
    paths(endpoints::completions::create, endpoints::chat::create)
)]
pub struct Document;
