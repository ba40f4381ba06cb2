//! The `strata` command. Everything it does is in [`l6_ensemble::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    l6_ensemble::cli::main()
}
