//! Endpoints, one file each.

pub mod adapters;
pub mod chat;
pub mod completions;
pub mod ensemble;
mod generating;
pub mod health;
pub mod lanes;
pub mod metrics;
pub mod missing;
pub mod models;
pub mod openapi;
pub mod page;
pub mod state;
pub mod tokens;
