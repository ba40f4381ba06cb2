//! Floor 6 of Strata: what stands between a person and a model.
//!
//! For now this floor holds the `strata` command and the code behind it; the HTTP server, the router and
//! admission move in later, above the floors they need.
//!
//! * [`hub`] turns the word after `--model` into files on this disk, fetching them when they are not here yet.
//! * [`cli`] is the `strata` command: one file for each of its subcommands.

pub mod cli;
pub mod hub;
