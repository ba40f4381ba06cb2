//! Floor 6 of Strata: what stands between a person and a model.
//!
//! This floor holds the `strata` command and the HTTP server; the router and admission to several engines move in
//! later, above the floors they need.
//!
//! * [`hub`] turns the word after `--model` into files on this disk, fetching them when they are not here yet.
//! * [`server`] answers OpenAI's API over HTTP.
//! * [`cli`] is the `strata` command: one file for each of its subcommands.

pub mod cli;
pub mod hub;
pub mod server;
