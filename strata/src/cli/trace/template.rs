//! Filling a page: one file that needs nothing else.

use std::io::{self, Write};

use serde::Serialize;

/// Writes `page` with its places filled. A place is `<!--[name]-->`; `base` is what all pages share, and a name that is
/// not there leaves its place empty.
///
/// # Errors
/// Those of `out`.
pub fn fill(page: &str, parts: &[(&str, String)], out: &mut impl Write) -> io::Result<()> {
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("<!--[") {
        let (name, after) = after.split_once("]-->").unwrap_or((after, ""));
        out.write_all(before.as_bytes())?;
        let part = match name {
            "base" => include_str!("base.css"),
            name => parts.iter().find(|(n, _)| *n == name).map_or("", |(_, part)| part),
        };
        out.write_all(part.as_bytes())?;
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// Data for a script element, as JSON.
///
/// # Errors
/// Error of a value that cannot be written as JSON.
pub fn data(value: &impl Serialize) -> io::Result<String> {
    // In a string of JSON, `<` may be written as an escape; then nothing in it can end the element.
    Ok(serde_json::to_string(value)?.replace('<', "\\u003c"))
}

/// Text between the tags of HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
