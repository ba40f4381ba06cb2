//! The `strata` command. Everything it does is in [`strata::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    strata::cli::main()
}
