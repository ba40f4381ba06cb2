//! Formulas: LaTeX in the pages, MathML in the HTML.
//!
//! A page writes a formula as GitHub reads it, too:
//!
//! * a fence of kind `math` is a formula of its own line;
//! * a code span between two dollars, without a space, is a formula in the text.
//!
//! [`preprocess`] is a preprocessor of mdBook: it gets the whole book and returns it with MathML instead of LaTeX.
//! Every browser typesets MathML, so the HTML needs no script and no network.

use std::convert::Infallible;
use std::ops::Range;

use anyhow::{Context, Result, bail};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use pulldown_latex::config::{DisplayMode, RenderConfig};
use pulldown_latex::{Storage, push_mathml};
use serde_json::Value;

/// The info string of a fence that holds a formula.
const FENCE: &str = "math";

/// A formula of a page.
#[derive(Debug, Clone, PartialEq)]
pub struct Formula {
    /// Line where it begins, counted from 1.
    pub line: usize,
    /// LaTeX, without fence, dollars and backticks.
    pub tex: String,
    /// Whether it has a line of its own: it is a fence.
    pub display: bool,
    /// Bytes of the page that it takes up, with fence, dollars and backticks.
    range: Range<usize>,
}

/// Reads Markdown as mdBook does.
pub fn markdown(text: &str) -> Parser<'_> {
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_HEADING_ATTRIBUTES
        | Options::ENABLE_DEFINITION_LIST
        | Options::ENABLE_GFM;
    Parser::new_ext(text, options)
}

/// Line of a byte of a text, counted from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Whether a code span is between two dollars, and so is a formula.
///
/// # Errors
/// There is only one dollar.
pub fn is_formula(text: &str, span: &Range<usize>) -> Result<bool, String> {
    let before = text[..span.start].ends_with('$') && !text[..span.start].ends_with("\\$");
    let after = text[span.end..].starts_with('$');
    let one = |at| {
        let line = line_of(text, span.start);
        Err(format!("{line}: {} has no `$` {at}: a formula is $`x`$", &text[span.clone()]))
    };
    match (before, after) {
        (true, false) => one("behind it"),
        (false, true) => one("before it"),
        (both, _) => Ok(both),
    }
}

/// The formulas of a page, in order.
///
/// # Errors
/// What is not closed, behind its line.
pub fn formulas(text: &str) -> Result<Vec<Formula>, String> {
    let mut found = Vec::new();
    let mut fence: Option<Formula> = None;
    let mut in_code = false;
    for (event, range) in markdown(text).into_offset_iter() {
        let line = line_of(text, range.start);
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                in_code = true;
                if matches!(&kind, CodeBlockKind::Fenced(info) if info.trim() == FENCE) {
                    let end = range.start + text[range.clone()].trim_end().len();
                    let range = range.start..end;
                    fence = Some(Formula { line, tex: String::new(), display: true, range });
                }
            }
            Event::Text(text) if in_code => {
                if let Some(fence) = &mut fence {
                    fence.tex.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                in_code = false;
                if let Some(fence) = fence.take() {
                    let source = &text[fence.range.clone()];
                    // The last line of a fence without an end is LaTeX, or the first one.
                    if source.lines().count() < 2 || !source.ends_with(['`', '~']) {
                        return Err(format!("{}: the fence is left open", fence.line));
                    }
                    found.push(fence);
                }
            }
            Event::Code(tex) if is_formula(text, &range)? => {
                let range = range.start - 1..range.end + 1;
                found.push(Formula { line, tex: tex.into_string(), display: false, range });
            }
            // A backtick that is text opened nothing: its other end is missing.
            Event::Text(_) => {
                let opened = |at: usize| text[..range.start + at].ends_with('$');
                let source = &text[range.clone()];
                if source.match_indices('`').any(|(at, _)| opened(at)) {
                    return Err(format!("{line}: a formula is left open: it ends with `$"));
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Typesets LaTeX as MathML, in one line that Markdown leaves as it is.
///
/// # Errors
/// The LaTeX is wrong, or uses what is not known.
pub fn mathml(tex: &str, display: bool) -> Result<String, String> {
    if tex.trim().is_empty() {
        return Err("the formula is empty".into());
    }
    // Behind it LaTeX sees a comment, and part of the formula would be missing.
    if tex.replace("\\\\", "").replace("\\%", "").contains('%') {
        return Err("a percent sign is \\%".into());
    }
    let storage = Storage::new();
    let events: Result<Vec<_>, _> = pulldown_latex::Parser::new(tex, &storage).collect();
    let events = events.map_err(|e| {
        let said = e.to_string();
        let first = said.lines().next().unwrap_or_default();
        first.trim_start_matches("parsing error: ").to_string()
    })?;
    let display_mode = if display { DisplayMode::Block } else { DisplayMode::Inline };
    let config = RenderConfig { display_mode, ..RenderConfig::default() };
    let mut html = String::new();
    push_mathml(&mut html, events.into_iter().map(Ok::<_, Infallible>), config)
        .map_err(|e| e.to_string())?;
    Ok(inert(&html))
}

/// HTML whose text has nothing that Markdown would act on: emphasis, links, the cells of a table.
fn inert(html: &str) -> String {
    let mut out = String::with_capacity(html.len() * 2);
    let mut in_tag = false;
    let mut in_reference = false;
    for c in html.chars() {
        match c {
            '\n' => out.push(' '),
            '<' | '>' => {
                in_tag = c == '<';
                in_reference = false;
                out.push(c);
            }
            _ if in_tag => out.push(c),
            '&' => {
                in_reference = true;
                out.push(c);
            }
            ';' if in_reference => {
                in_reference = false;
                out.push(c);
            }
            _ if in_reference => out.push(c),
            c if c.is_ascii_punctuation() => out.push_str(&format!("&#{};", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// A page with all its formulas typeset.
///
/// # Errors
/// All formulas that are wrong, each behind its line.
pub fn typeset(text: &str) -> Result<String, Vec<String>> {
    let formulas = formulas(text).map_err(|e| vec![e])?;
    let mut problems = Vec::new();
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for Formula { line, tex, display, range } in &formulas {
        match mathml(tex, *display) {
            Ok(math) => {
                out.push_str(&text[done..range.start]);
                if *display {
                    // No `<div>`: that would begin an HTML block, which ends only at an empty line.
                    out.push_str(&format!("<span class=\"math-display\">{math}</span>"));
                } else {
                    out.push_str(&math);
                }
                done = range.end;
            }
            Err(e) => problems.push(format!("{line}: {e}: {}", tex.trim())),
        }
    }
    out.push_str(&text[done..]);
    if problems.is_empty() { Ok(out) } else { Err(problems) }
}

/// The preprocessor: what mdBook writes, context and book in one array, in; the book out.
///
/// # Errors
/// A formula of some page is wrong, or this is not a book of mdBook's.
pub fn preprocess(input: &str) -> Result<String> {
    let input: Value = serde_json::from_str(input).context("mdBook's input is no JSON")?;
    let Value::Array(parts) = input else { bail!("mdBook's input is no array") };
    let Ok([_, mut book]) = <[Value; 2]>::try_from(parts) else {
        bail!("mdBook's input should be two things, its context and the book")
    };
    let mut pages = 0;
    let mut problems = Vec::new();
    let items = book.get_mut("items").context("mdBook's book has no `items`: is it mdBook 0.5?")?;
    chapters(items, &mut |page, content| {
        pages += 1;
        match typeset(content) {
            Ok(text) => *content = text,
            Err(found) => problems.extend(found.into_iter().map(|e| format!("{page}:{e}"))),
        }
    });
    if pages == 0 {
        bail!("no page was found in mdBook's book");
    }
    if !problems.is_empty() {
        bail!("formulas that cannot be typeset:\n{}", problems.join("\n"));
    }
    Ok(serde_json::to_string(&book)?)
}

/// Shows every chapter to `page`, with its path and its text.
fn chapters(items: &mut Value, page: &mut impl FnMut(&str, &mut String)) {
    for item in items.as_array_mut().into_iter().flatten() {
        let Some(chapter) = item.get_mut("Chapter") else { continue };
        let path = chapter["path"].as_str().unwrap_or("a chapter without a file").to_string();
        if let Some(Value::String(content)) = chapter.get_mut("content") {
            page(&path, content);
        }
        if let Some(below) = chapter.get_mut("sub_items") {
            chapters(below, page);
        }
    }
}
