//! The tool of the book: formulas and prose.
//!
//! * `strata-book math` is a preprocessor of mdBook, which `book.toml` names: a book comes from stdin, and goes to
//!   stdout with its formulas typeset.
//! * `strata-book prose` prints figures of every page.
//!
//! Readers use `cargo x book`.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use strata_book::{math, prose};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        // mdBook asks for whom: MathML is for browsers.
        ["math", "supports", renderer] => {
            return ExitCode::from(u8::from(renderer != "html"));
        }
        ["math"] => typeset(),
        ["prose"] => report(),
        _ => Err(anyhow::anyhow!("`strata-book math` or `strata-book prose`: see `cargo x book`")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// mdBook's book, typeset.
fn typeset() -> Result<()> {
    let mut book = String::new();
    std::io::stdin().read_to_string(&mut book).context("cannot read mdBook's book")?;
    let book = math::preprocess(&book)?;
    std::io::stdout().write_all(book.as_bytes()).context("cannot write the book")
}

/// Figures of every page, in the order of the book.
fn report() -> Result<()> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |name: &str| {
        let path = src.join(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let summary = read("SUMMARY.md")?;
    let pages: Vec<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(page, _)| page)
        .filter(|page| page.ends_with(".md"))
        .collect();
    if pages.is_empty() {
        bail!("SUMMARY.md lists no page");
    }
    println!("{:<32} {:>6} {:>4} {:>5}  words that are avoided", "page", "words", "min", "ease");
    let mut words = 0;
    for name in pages {
        let text = read(name)?;
        let figures = prose::figures(&text);
        words += figures.words;
        let avoided: usize = figures.avoided.values().sum();
        let list: Vec<String> =
            figures.avoided.iter().map(|(phrase, count)| format!("{phrase} {count}")).collect();
        let list = if list.is_empty() { String::new() } else { format!(": {}", list.join(", ")) };
        let (minutes, ease) = (figures.minutes(), figures.ease);
        println!("{name:<32} {:>6} {minutes:>4} {ease:>5.0}  {avoided}{list}", figures.words);
        for (line, phrase) in prose::banned(&text) {
            println!("{:<32} line {line}: \"{phrase}\" is for quotations only", "");
        }
    }
    let hours = words as f64 / prose::WORDS_A_MINUTE as f64 / 60.0;
    println!("{:<32} {words:>6}      {hours:>5.1} hours", "all pages");
    Ok(())
}
