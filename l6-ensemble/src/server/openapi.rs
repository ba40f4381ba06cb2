//! The OpenAPI document: what this server understands and answers, made from the types that read and write it.
//!
//! Each endpoint tells its path, its body and what it answers when all goes well; what can go wrong is told here, in
//! groups, since it is decided before an endpoint is reached or after it has handed its work over.

use std::collections::BTreeMap;

use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Header, OpenApi, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, Modify, ToSchema};

use super::endpoints::{
    chat, completions, health, metrics, missing, models, openapi, page, state, tokens,
};
use super::error::ErrorResponse;
use super::protocol::chat::ChatChunk;

/// What this server understands, for programs.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Strata",
        description = "An LLM server that speaks OpenAI's API, with vLLM's additions to it. A field of a request that would change the response is honoured, or refused with a 400 whose `param` names it; a field that is not known is ignored.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    paths(
        completions::create,
        chat::create,
        models::list,
        models::one,
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
        openapi::openapi,
        page::page,
        page::file,
    ),
    components(schemas(ErrorResponse, ChatChunk)),
    modifiers(&Names, &EveryResponse, &Key)
)]
pub struct Document;

/// What a path without a key may answer instead of what it is for.
pub struct Troubles;

/// What a path behind the key may answer instead: [`Troubles`], and the wrong key.
pub struct KeyTroubles;

/// What a path that reads a body may answer instead: [`KeyTroubles`], and what is wrong with bodies.
pub struct BodyTroubles;

/// What a path that gives work to the engine may answer instead: [`BodyTroubles`], and what is wrong with the moment.
pub struct WorkTroubles;

impl IntoResponses for Troubles {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        errors([
            (403, "The server listens on loopback, and `Host` is another name."),
            (408, "The request's head or body did not come in time."),
            (431, "The request's head is too large."),
            (500, "The server's fault, or its engine has failed."),
            (
                503,
                "The server is ending, or has more connections than it takes. `Retry-After` says when to try again.",
            ),
        ])
    }
}

impl IntoResponses for KeyTroubles {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = Troubles::responses();
        all.extend(errors([
            (401, "The server has keys, and the request has none of them."),
            (504, "The request took longer than the server allows."),
        ]));
        all
    }
}

impl IntoResponses for BodyTroubles {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = KeyTroubles::responses();
        all.extend(errors([
            (400, "The request body is invalid. `param` is the path of the field."),
            (404, "The model is not here."),
            (413, "The body is too large."),
            (415, "The body is of a type that is not JSON."),
        ]));
        all
    }
}

impl IntoResponses for WorkTroubles {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = BodyTroubles::responses();
        all.extend(errors([(429, "The queue is full. `Retry-After` says when to try again.")]));
        all
    }
}

fn errors<const N: usize>(told: [(u16, &str); N]) -> BTreeMap<String, RefOr<Response>> {
    told.into_iter().map(|(status, why)| (status.to_string(), error(status, why).into())).collect()
}

fn error(status: u16, why: &str) -> Response {
    let schema = Ref::from_schema_name(ErrorResponse::name());
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response = ResponseBuilder::new().description(why).content("application/json", content);
    let again = "In so many seconds it is worth trying again.";
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
            let words = path.split(|c: char| !c.is_ascii_alphanumeric());
            let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
            for (method, operation) in [("get", &mut item.get), ("post", &mut item.post)] {
                let Some(operation) = operation else { continue };
                let all: Vec<&str> = [method].into_iter().chain(words.iter().copied()).collect();
                operation.operation_id = Some(all.join("_"));
            }
        }
    }
}

/// The header that every response has, whatever it says.
struct EveryResponse;

impl Modify for EveryResponse {
    fn modify(&self, document: &mut OpenApi) {
        let name = "The request's name: the client's own, or a fresh one.";
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

/// The key that a server may ask for.
struct Key;

impl Modify for Key {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let scheme = scheme.description(Some("One of those that --api-key gave, if it gave any."));
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
            // OpenAPI has no word for "slashes included".
            .map(|path| path.replace("{*", "{"))
            .collect();
        let told = Document::openapi().paths.paths.into_keys().collect();
        assert_eq!(routed, told);
    }
}
