//! The `strata` command: what stands between a person and a model.
//!
//! * [`hub`] turns the argument of `--model` into files on this disk, fetching them if they are not there.
//! * [`cli`] is the command line: one file for each subcommand. `strata serve` starts [`server`].

pub mod cli;
pub mod hub;
