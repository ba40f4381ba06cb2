//! `cargo x book`: builds the book as HTML, and tests its code, commands and references.
//!
//! `mdbook test` cannot see the workspace's crates. So the book's directory is a small crate as
//! well, `strata-book`, which includes every chapter as documentation: a Rust block in a chapter is
//! a doc test, and one that no longer compiles fails like any other test. The tests of that crate
//! run the shell commands of the chapters, compare what they print with what is shown, and look up
//! everything that is named.

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use course::shell::{self, cargo, exists, program, root};

const INSTALL: &str = "cargo install mdbook --locked --no-default-features --version 0.5.4";

/// Build the book, or test its code
#[derive(Args)]
pub struct BookArgs {
    /// What to do; without it, both
    action: Option<Action>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Make HTML in book/book
    Build,
    /// Run the Rust code and the commands of the chapters, and check what they refer to
    Test,
}

/// Run the command.
pub fn run(args: &BookArgs) -> Result<()> {
    if args.action != Some(Action::Test) {
        if !exists("mdbook") {
            bail!("mdbook is not installed; install it with\n    {INSTALL}");
        }
        shell::run(program("mdbook").args(["build", "book"]))?;
        eprintln!("the book is at {}", root().join("book/book/index.html").display());
    }
    if args.action != Some(Action::Build) {
        shell::run(cargo("test").args(["--locked", "--package", "strata-book"]))
            .context("the tests of the book")?;
    }
    Ok(())
}
