//! What goes over the wire: OpenAI's objects, and vLLM's additions to them. Types only; what they mean is decided in
//! [`super::request`] and [`super::chat`].

pub mod chat;
pub mod common;
pub mod completions;
pub mod models;
pub mod refused;
pub mod tokens;
pub mod whole;
