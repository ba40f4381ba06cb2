//! `cargo x book`: builds the book as HTML, and tests its code, commands, references and looks.
//!
//! `mdbook test` cannot see the workspace's crates. So the book's directory is a small crate as
//! well, `strata-book`, which includes every chapter as documentation: a Rust block in a chapter is
//! a doc test, and one that no longer compiles fails like any other test. The tests of that crate
//! run the shell commands of the chapters, compare what they print with what is shown, and look up
//! everything that is named. Its program typesets the formulas while mdBook builds (`book.toml`
//! names it as a preprocessor), and measures the prose.

mod api;
mod browser;
mod edit;
mod map;
mod render;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

use course::shell::{self, cargo, exists, program, root};
use course::workspace::Workspace;

const INSTALL: &str =
    "cargo install mdbook --locked --no-default-features --features search --version 0.5.4";

/// The package of the book, and its program.
const PACKAGE: &str = "strata-book";

/// Build the book, or test its code
#[derive(Args)]
pub struct BookArgs {
    /// What to do; without it, build and test
    action: Option<Action>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Make HTML in book/book
    Build,
    /// Run the Rust code and the commands of the chapters, and check what they refer to
    Test,
    /// Build, and look at every page in headless Chromium ($CHROME), narrow and wide: what is too wide, or not loaded
    Render,
    /// Draw the map of the exercises
    Map,
    /// Print length, reading ease and avoided words of every page
    Prose,
}

/// Run the command.
pub fn run(args: &BookArgs) -> Result<()> {
    match args.action {
        Some(Action::Build) => build(),
        Some(Action::Test) => test(),
        Some(Action::Render) => {
            // First, so that a machine without a browser says so at once.
            let browser = browser::find()?;
            build()?;
            ensure!(
                is_searchable(&html())?,
                "the book has no search index: this mdbook was built without search. Install it with\n    {INSTALL}"
            );
            render::check(&browser, &html())
        }
        Some(Action::Map) => map::write(&Workspace::open()?, &root().join("book/src/img")),
        Some(Action::Prose) => shell::run(cargo("run").args([
            "--quiet",
            "--locked",
            "--package",
            PACKAGE,
            "--",
            "prose",
        ])),
        None => build().and_then(|()| test()),
    }
}

/// Where mdBook puts the book.
fn html() -> PathBuf {
    root().join("book/book")
}

fn build() -> Result<()> {
    if !exists("mdbook") {
        bail!("mdbook is not installed; install it with\n    {INSTALL}");
    }
    // mdBook would take a preprocessor that does not compile for one that has nothing to do.
    shell::run(cargo("build").args(["--quiet", "--locked", "--package", PACKAGE, "--bins"]))?;
    // mdBook starts its preprocessors in the book's directory, where a relative path would be another one.
    let target = shell::target_dir()?;
    let mut mdbook = program("mdbook");
    mdbook.args(["build", "book"]).env("CARGO_TARGET_DIR", &target);
    let remote = shell::quiet_output(program("git").args(["remote", "get-url", "origin"]));
    if let Some(template) = remote.ok().as_deref().and_then(edit::template) {
        mdbook.env(edit::VARIABLE, template);
    }
    shell::run(&mut mdbook)?;
    let untypeset = untypeset(&html())?;
    ensure!(untypeset.is_empty(), "formulas were not typeset on {}", untypeset.join(", "));
    if !is_searchable(&html())? {
        eprintln!(
            "warning: the book cannot be searched: this mdbook was built without search. Install it with\n    {INSTALL}"
        );
    }
    let documented = crates(&target.join("doc"))?;
    if documented.iter().any(|name| name == "l1_tensor") {
        let links = api::join(&target.join("doc"), &documented, &html(), &pages(&html())?)?;
        eprintln!("{links} links lead into the documentation of the crates");
    } else {
        eprintln!(
            "no links into the documentation of the crates: `cargo doc --workspace --no-deps` writes it, then build again"
        );
    }
    eprintln!("the book is at {}", html().join("index.html").display());
    Ok(())
}

fn test() -> Result<()> {
    shell::run(cargo("test").args(["--locked", "--package", PACKAGE]))
        .context("the tests of the book")
}

/// The crates of the workspace that have documentation in this folder of rustdoc.
fn crates(doc: &Path) -> Result<Vec<String>> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let manifest: toml::Value = toml::from_str(&manifest)?;
    let members = manifest.get("workspace").and_then(|w| w.get("members")?.as_array());
    let names = members.into_iter().flatten().filter_map(toml::Value::as_str);
    let names = names.map(|name| name.replace('-', "_"));
    Ok(names.filter(|name| doc.join(name).join("index.html").is_file()).collect())
}

/// Every page of a built book, relative to it, in order. The page to print is all of them once more, the list of
/// chapters is a part of each, and the documentation of the crates is none of it.
fn pages(html: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![html.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.extend((path != html.join(api::FOLDER)).then_some(path));
            } else if path.extension().is_some_and(|e| e == "html") {
                let parts = path.strip_prefix(html)?.components();
                let parts: Vec<_> = parts.map(|c| c.as_os_str().to_string_lossy()).collect();
                found.push(parts.join("/"));
            }
        }
    }
    found.retain(|page| !["print.html", "toc.html"].contains(&page.as_str()));
    found.sort();
    ensure!(!found.is_empty(), "there is no page in {}", html.display());
    Ok(found)
}

/// The pages of a built book on which a formula is still LaTeX.
fn untypeset(html: &Path) -> Result<Vec<String>> {
    let mut found = pages(html)?;
    let mut error = None;
    found.retain(|page| match fs::read_to_string(html.join(page)) {
        Ok(text) => text.contains("class=\"language-math") || text.contains("$<code>"),
        Err(e) => {
            error.get_or_insert(e);
            false
        }
    });
    error.map_or(Ok(found), |e| Err(e).context("a page of the book"))
}

/// Whether a built book has an index of its words.
fn is_searchable(html: &Path) -> Result<bool> {
    for entry in fs::read_dir(html).with_context(|| html.display().to_string())? {
        if entry?.file_name().to_string_lossy().starts_with("searchindex") {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn pages_are_those_that_a_reader_opens() {
        let book = book(&[
            ("b/c.html", ""),
            ("a.html", ""),
            ("print.html", ""),
            ("api/l1_tensor/index.html", ""),
            ("toc.html", ""),
            ("a.css", ""),
        ]);
        assert_eq!(pages(book.path()).unwrap(), ["a.html", "b/c.html"]);
        assert!(pages(&book.path().join("nowhere")).is_err());
    }

    #[test]
    fn a_formula_that_is_still_latex_is_found() {
        let book = book(&[
            ("a.html", "<pre><code class=\"language-math\">x</code></pre>"),
            ("b.html", "<p>$<code>x</code>$</p>"),
            ("c.html", "<p>It costs 5 $ (<code>language-math</code>): <math></math></p>"),
        ]);
        assert_eq!(untypeset(book.path()).unwrap(), ["a.html", "b.html"]);
    }

    #[test]
    fn a_book_without_an_index_cannot_be_searched() {
        let with = book(&[("searchindex-1a2b.js", "")]);
        assert!(is_searchable(with.path()).unwrap());
        let without = book(&[("a.html", "")]);
        assert!(!is_searchable(without.path()).unwrap());
    }
}
