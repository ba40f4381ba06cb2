//! Routes of the server.

use axum::Router;
use axum::routing::{get, post};

use super::app::App;
use super::endpoints::{
    adapters, chat, completions, ensemble, health, lanes, metrics, missing, models, openapi, page,
    state, tokens,
};
use super::middleware;

/// Router of all paths, with all middleware.
pub fn router(app: &App) -> Router {
    let api = Router::new()
        .route("/v1/completions", post(completions::create))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/strata/state", get(state::state))
        .route("/strata/lanes", get(lanes::get).post(lanes::post))
        .route("/strata/ensemble", get(ensemble::get))
        .route("/strata/reload", post(ensemble::reload))
        .route("/strata/slo", get(lanes::slo))
        .route("/v1/embeddings", post(missing::embeddings))
        .route("/v1/responses", post(missing::responses))
        .route("/v1/messages", post(missing::messages));
    let open = Router::new()
        .route("/", get(page::page))
        .route("/lanes", get(page::lanes))
        .route("/page/{file}", get(page::file))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/version", get(health::version))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::openapi));
    middleware::around(app, api, open).with_state(app.clone())
}
