//! The OpenAPI document, made from the types of requests and responses.
//!
//! Each endpoint declares its path, its request and its successful response. Errors are declared here, in groups, since
//! middleware and engine create them.

use std::collections::BTreeMap;

use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Header, OpenApi, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, Modify, ToSchema};

use super::endpoints::{
    adapters, chat, completions, ensemble, health, lanes, metrics, missing, models, openapi, page,
    state, tokens,
};
use super::error::ErrorResponse;
use super::protocol::chat::ChatChunk;
use super::response_headers::{
    CACHED_TOKENS, LOADED_TOKENS, MODEL, QUEUE_MS, REPLICA, ROUTE, SHADOW, SLO_ITL, SLO_TTFT,
    SPECIALIST,
};

/// The OpenAPI document.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Strata",
        description = "An LLM server that speaks OpenAI's API, with vLLM's additions to it. A field of a request \
            that would change the response is honoured, or rejected with a 400 whose `param` names it; an unknown \
            field is ignored.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    paths(
        completions::create,
        chat::create,
        models::list,
        models::one,
        adapters::load,
        adapters::unload,
        tokens::tokenize,
        tokens::detokenize,
        missing::embeddings,
        missing::responses,
        missing::messages,
        health::health,
        health::ready,
        health::version,
        metrics::metrics,
        state::state,
        lanes::get,
        lanes::post,
        lanes::slo,
        ensemble::get,
        ensemble::reload,
        openapi::openapi,
        page::page,
        page::lanes,
        page::file,
    ),
    components(schemas(ErrorResponse, ChatChunk)),
    modifiers(&Names, &EveryResponse, &Generated, &Key)
)]
pub struct Document;

/// Errors of every path.
pub struct CommonErrors;

/// Errors of a path that needs a key: [`CommonErrors`], and those of keys and timeouts.
pub struct KeyErrors;

/// Errors of a path with a request body: [`KeyErrors`], and those of bodies.
pub struct BodyErrors;

/// Errors of a path with which operators change an ensemble: [`KeyErrors`], and those of servers without keys.
pub struct OperatorErrors;

/// Errors of such a path with a request body: [`BodyErrors`], and the same.
pub struct ChangeErrors;

/// Errors of a path about LoRA adapters: [`BodyErrors`], and those of servers without adapters and without room.
pub struct AdapterErrors;

/// Errors of a path that submits to the engine: [`BodyErrors`], and a full queue.
pub struct SubmitErrors;

impl IntoResponses for CommonErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        errors([
            (403, "`Host` is not allowed: the server listens on loopback."),
            (408, "The request's head or body was not received in time."),
            (431, "The request's head is too large."),
            (500, "Internal error, or the engine has failed."),
            (
                503,
                "The server is shutting down, or has too many connections. `Retry-After` says when to retry.",
            ),
        ])
    }
}

impl IntoResponses for KeyErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = CommonErrors::responses();
        all.extend(errors([
            (401, "The API key is missing or invalid."),
            (504, "The request took longer than the server allows."),
        ]));
        all
    }
}

impl IntoResponses for BodyErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = KeyErrors::responses();
        all.extend(errors([
            (400, "The request body is invalid. `param` is the path of the field."),
            (404, "The model does not exist."),
            (413, "The request body is too large."),
            (415, "The content type is not JSON."),
        ]));
        all
    }
}

impl IntoResponses for OperatorErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = KeyErrors::responses();
        all.extend(operator_errors());
        all
    }
}

impl IntoResponses for ChangeErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = BodyErrors::responses();
        all.extend(operator_errors());
        all
    }
}

impl IntoResponses for AdapterErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = BodyErrors::responses();
        all.extend(errors([
            (
                400,
                "The request body is invalid, the adapter cannot be loaded (code `invalid_adapter`), an adapter has \
                 this name (code `adapter_already_loaded`), or there are too many (code `too_many_adapters`).",
            ),
            (
                404,
                "No adapter has this name (code `adapter_not_found`), or the server takes no adapters (code \
                 `lora_disabled`).",
            ),
            (
                503,
                "The server is shutting down, or has too many connections; or there is no room for another adapter in \
                 time (code `adapters_busy`) or in memory (code `out_of_memory`), or the files are not read in time \
                 (code `adapter_timeout`). \
                 `Retry-After` says when to retry.",
            ),
        ]));
        all
    }
}

fn operator_errors() -> BTreeMap<String, RefOr<Response>> {
    errors([
        (
            403,
            "The server has no API keys (code `no_api_keys`), without which nothing can be changed; or `Host` is not \
             allowed: the server listens on loopback.",
        ),
        (404, "The server serves one model, without an ensemble (code `no_ensemble`)."),
    ])
}

impl IntoResponses for SubmitErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = BodyErrors::responses();
        all.extend(errors([
            (422, "No specialist of the ensemble serves the request (code `no_specialist`)."),
            (
                429,
                "The request is refused: `code` says why, `quote` what it could have expected, and `Retry-After` when \
                 to retry.",
            ),
            (
                503,
                "The server is shutting down, or has too many connections; or the specialist or the remote server of \
                 the request has failed; or its LoRA adapter cannot be read, or there is no room for it. `Retry-After` \
                 says when to retry.",
            ),
        ]));
        for status in ["400", "422", "429", "500", "503", "504"] {
            if let Some(RefOr::T(response)) = all.get_mut(status) {
                let routed = "In an ensemble, if the request was routed";
                for (name, what) in [(SPECIALIST, "to which specialist"), (ROUTE, "and why")] {
                    let header = header(Type::String, &format!("{routed}: {what}."));
                    response.headers.insert(name.to_string(), header.into());
                }
            }
        }
        all
    }
}

fn errors<const N: usize>(all: [(u16, &str); N]) -> BTreeMap<String, RefOr<Response>> {
    all.into_iter().map(|(status, why)| (status.to_string(), error(status, why).into())).collect()
}

fn error(status: u16, why: &str) -> Response {
    let schema = Ref::from_schema_name(ErrorResponse::name());
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response = ResponseBuilder::new().description(why).content("application/json", content);
    let again = "Number of seconds after which to retry.";
    match status {
        429 | 503 => response.header("retry-after", header(Type::Integer, again)).build(),
        _ => response.build(),
    }
}

fn header(kind: Type, description: &str) -> Header {
    let schema = ObjectBuilder::new().schema_type(SchemaType::new(kind)).build();
    HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
}

/// Operations are named after method and path: `post_v1_chat_completions`. Their functions' names are not unique.
struct Names;

impl Modify for Names {
    fn modify(&self, document: &mut OpenApi) {
        for (path, item) in &mut document.paths.paths {
            let parts = path.split(|c: char| !c.is_ascii_alphanumeric());
            let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
            for (method, operation) in [("get", &mut item.get), ("post", &mut item.post)] {
                let Some(operation) = operation else { continue };
                let all: Vec<&str> = [method].into_iter().chain(parts.iter().copied()).collect();
                operation.operation_id = Some(all.join("_"));
            }
        }
    }
}

/// Header of every response.
struct EveryResponse;

impl Modify for EveryResponse {
    fn modify(&self, document: &mut OpenApi) {
        let name = "Id of the request: the client's own, or a fresh one.";
        for item in document.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.post];
            for operation in operations.into_iter().flatten() {
                for response in operation.responses.responses.values_mut() {
                    if let RefOr::T(response) = response {
                        let header = header(Type::String, name);
                        response.headers.insert("x-request-id".into(), header.into());
                    }
                }
            }
        }
    }
}

/// Headers of generated responses.
struct Generated;

impl Modify for Generated {
    fn modify(&self, document: &mut OpenApi) {
        for path in ["/v1/completions", "/v1/chat/completions"] {
            let operation = document.paths.paths.get_mut(path).and_then(|item| item.post.as_mut());
            let response = operation.and_then(|own| own.responses.responses.get_mut("200"));
            let Some(RefOr::T(response)) = response else { continue };
            for (name, kind, what) in [
                (MODEL, Type::String, "Name of the model that serves the request."),
                (REPLICA, Type::Integer, "Number of the replica."),
                (
                    QUEUE_MS,
                    Type::Integer,
                    "Milliseconds from the arrival at the engine to the first step, the wait for an adapter included.",
                ),
                (CACHED_TOKENS, Type::Integer, "Number of prompt tokens that were cached."),
                (LOADED_TOKENS, Type::Integer, "Number of those that were loaded from a tier."),
                (
                    SPECIALIST,
                    Type::String,
                    "In an ensemble, name of the specialist that serves the request.",
                ),
                (ROUTE, Type::String, "In an ensemble, why this specialist serves the request."),
                (
                    SHADOW,
                    Type::String,
                    "In an ensemble, name of the specialist for which a shadow of the request is planned: a duplicate \
                     that is compared and thrown away. It may come to nothing, as under load. Absent without one.",
                ),
                (
                    SLO_TTFT,
                    Type::Integer,
                    "95th percentile of the specialist's TTFT, in milliseconds.",
                ),
                (
                    SLO_ITL,
                    Type::Integer,
                    "95th percentile of the specialist's ITL, in milliseconds.",
                ),
            ] {
                response.headers.insert(name.to_string(), header(kind, what).into());
            }
        }
    }
}

/// Authentication by API key.
struct Key;

impl Modify for Key {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let scheme = scheme.description(Some("One of the keys of --api-key, if there are any."));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(scheme.build()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use utoipa::OpenApi;

    use super::Document;

    #[test]
    fn every_route_is_in_the_document_and_nothing_else_is() {
        let routes = include_str!("routes.rs");
        let routed: BTreeSet<String> = routes
            .split(".route(")
            .skip(1)
            .filter_map(|rest| rest.split('"').nth(1))
            // OpenAPI has no notation for "slashes included".
            .map(|path| path.replace("{*", "{"))
            .collect();
        let documented = Document::openapi().paths.paths.into_keys().collect();
        assert_eq!(routed, documented);
    }
}
