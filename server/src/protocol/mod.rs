//! Types of requests and responses: OpenAI's objects, and vLLM's additions to them. [`super::request`] and
//! [`super::chat`] interpret them.

pub mod adapters;
pub mod chat;
pub mod common;
pub mod completions;
pub mod models;
pub mod operator;
pub mod quote;
pub mod refused;
pub mod routing;
pub mod tokens;
pub mod whole;
