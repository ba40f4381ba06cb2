//! Fetching models, against a hub in this process: no network, no environment variables, no Python.

mod local;
mod pinned;
mod repository;
mod server;
