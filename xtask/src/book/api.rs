//! Links from the book into the documentation of the crates, so that a type that a page names is one click away.
//!
//! `cargo doc` writes a page for each public type. Its folder is copied into the book (`api/`), and on each page of the
//! book the first `` `Type` `` and the first `` `Type::method` `` become links. A name that several crates have means that
//! of the chapter's crate, and on other pages nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use course::start::copy;

/// Folder of the copy in the built book.
pub const FOLDER: &str = "api";

/// What rustdoc shares between crates.
const SHARED: [&str; 5] =
    ["static.files", "search.index", "search.desc", "trait.impl", "type.impl"];

/// Kinds of types, as the names of their pages begin.
const KINDS: [&str; 3] = ["struct.", "enum.", "trait."];

/// Elements in which nothing becomes a link: links, code blocks, headings, and the titles of folded answers.
const LEFT_ALONE: [&str; 9] = ["a", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "summary"];

/// The documented types of some crates.
#[derive(Debug, Default)]
struct Items {
    /// By name and by crate, the page of a type, relative to the documentation.
    types: BTreeMap<String, BTreeMap<String, String>>,
    /// Anchors of the pages that have been read.
    anchors: BTreeMap<String, BTreeSet<String>>,
    doc: PathBuf,
}

impl Items {
    /// Finds the types of these crates below `doc`, rustdoc's folder.
    fn read(doc: &Path, crates: &[String]) -> Result<Self> {
        let mut items = Self { doc: doc.into(), ..Self::default() };
        for name in crates {
            for file in copy::walk(&doc.join(name))? {
                let page = Path::new(name).join(&file).to_string_lossy().replace('\\', "/");
                let stem = file.file_stem().unwrap_or_default().to_string_lossy();
                let Some(item) = KINDS.iter().find_map(|kind| stem.strip_prefix(kind)) else {
                    continue;
                };
                let of_crate = items.types.entry(item.into()).or_default();
                let known = of_crate.entry(name.clone()).or_insert_with(|| page.clone());
                // A type that is exported again has several pages: the shortest path is the one to use.
                if (page.len(), &page) < (known.len(), known) {
                    *known = page;
                }
            }
        }
        Ok(items)
    }

    /// Where `code` leads, from a page about this crate.
    fn target(&mut self, code: &str, about: Option<&str>) -> Option<String> {
        let (name, member) = match code.split_once("::") {
            Some((name, member)) => (name, Some(member)),
            None => (code, None),
        };
        let by_crate = self.types.get(name)?;
        let own = about.and_then(|about| by_crate.get(about));
        // The fast track has its own small versions of many types.
        let mut others = by_crate.iter().filter(|(of, _)| *of != "nano").map(|(_, page)| page);
        let only = others.next().filter(|_| others.next().is_none());
        let page = own.or(only)?.clone();
        let Some(member) = member else { return Some(page) };
        let anchors = self.anchors.entry(page.clone()).or_insert_with(|| {
            let text = fs::read_to_string(self.doc.join(&page)).unwrap_or_default();
            let ids = text.split(" id=\"").skip(1).filter_map(|rest| rest.split_once('"'));
            ids.map(|(id, _)| id.to_string()).collect()
        });
        let kinds = ["method", "tymethod", "variant", "associatedconstant", "structfield"];
        let anchor = kinds.iter().map(|kind| format!("{kind}.{member}"));
        let anchor = anchor.into_iter().find(|anchor| anchors.contains(anchor))?;
        Some(format!("{page}#{anchor}"))
    }

    /// The text of a page of the book with its links. `root` leads from the page to the book.
    fn link(&mut self, html: &str, root: &str, about: Option<&str>) -> (String, usize) {
        let Some(begin) = html.find("<main>") else { return (html.into(), 0) };
        let (mut out, mut rest) = (html[..begin].to_string(), &html[begin..]);
        let (mut seen, mut links, mut inside) = (BTreeSet::new(), 0, 0usize);
        while let Some(at) = rest.find('<') {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            let Some(end) = rest.find('>') else { break };
            let tag = &rest[..=end];
            let name = tag.trim_start_matches(['<', '/']);
            let name = name.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
            if LEFT_ALONE.contains(&name) {
                inside = if tag.starts_with("</") { inside.saturating_sub(1) } else { inside + 1 };
            }
            let code = (tag == "<code>" && inside == 0)
                .then(|| rest[end + 1..].split_once("</code>"))
                .flatten();
            let target =
                code.filter(|(code, _)| !seen.contains(*code)).and_then(|(code, after)| {
                    self.target(code, about).map(|target| (code, after, target))
                });
            if let Some((code, after, target)) = target {
                seen.insert(code);
                links += 1;
                out.push_str(&format!(
                    "<a href=\"{root}{FOLDER}/{target}\"><code>{code}</code></a>"
                ));
                rest = after;
            } else {
                out.push_str(tag);
                rest = &rest[end + 1..];
            }
        }
        out.push_str(rest);
        (out, links)
    }
}

/// Copies the documentation in `doc` into the built book, and makes links to it on these pages. Returns their number.
pub fn join(doc: &Path, crates: &[String], html: &Path, pages: &[String]) -> Result<usize> {
    let mut items = Items::read(doc, crates)?;
    let api = html.join(FOLDER);
    for entry in fs::read_dir(doc).with_context(|| doc.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() || SHARED.contains(&name.as_str()) || crates.contains(&name) {
            copy_all(&path, &api.join(&name))?;
        }
    }
    for name in crates {
        let sources = Path::new("src").join(name);
        if doc.join(&sources).is_dir() {
            copy_all(&doc.join(&sources), &api.join(&sources))?;
        }
    }
    let mut links = 0;
    for page in pages {
        let path = html.join(page);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let root = "../".repeat(page.matches('/').count());
        let (linked, count) = items.link(&text, &root, about(page, crates));
        if count > 0 {
            fs::write(&path, linked).with_context(|| path.display().to_string())?;
        }
        links += count;
    }
    Ok(links)
}

/// The crate that a page is about: `l3-paged-kv/pool.html` is about `l3_paged_kv`.
fn about<'a>(page: &str, crates: &'a [String]) -> Option<&'a str> {
    let chapter = page.split(['/', '.']).next()?;
    let name = match chapter {
        "fast-track" | "one-token" => "nano",
        "l0-kernels" => "kernels",
        // The folder of layer 1 has a name of its own.
        "l1-tensors" => "l1_tensor",
        other => &other.replace('-', "_"),
    };
    crates.iter().map(String::as_str).find(|of| *of == name)
}

/// Copies a file, or a folder with all that is in it.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        return copy::copy_file(from, to);
    }
    copy::walk(from)?.iter().try_for_each(|file| copy::copy_file(&from.join(file), &to.join(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn types_that_a_page_names_become_links_once() {
        let (doc, html) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(
            doc.path(),
            "l1_tensor/struct.Layout.html",
            "<h4 id=\"x\"></h4><h4 id=\"method.dims\">",
        );
        write(doc.path(), "l1_tensor/layout/struct.Layout.html", "");
        write(doc.path(), "l1_tensor/enum.Error.html", "");
        write(doc.path(), "l2_model/enum.Error.html", "");
        write(doc.path(), "nano/struct.Layout.html", "");
        write(doc.path(), "serde/struct.Value.html", "");
        write(doc.path(), "src/l1_tensor/lib.rs.html", "");
        write(doc.path(), "static.files/a.css", "");
        write(doc.path(), "index.html", "");
        let page = "<nav><code>Layout</code></nav><main><h2><code>Layout</code></h2>\
                    <pre><code>Layout</code></pre><p><code>Layout</code>, <code>Layout::dims</code>, \
                    <code>Layout::none</code>, <code>Layout</code> <code>Error</code> <code>Value</code> \
                    a < b</p></main>";
        write(html.path(), "l2-model/state.html", page);
        write(html.path(), "setup.html", page);
        let crates = ["l1_tensor", "l2_model", "nano"].map(String::from);
        let pages = ["l2-model/state.html", "setup.html"].map(String::from);
        assert_eq!(join(doc.path(), &crates, html.path(), &pages).unwrap(), 3 + 2);
        let linked = fs::read_to_string(html.path().join("l2-model/state.html")).unwrap();
        let layout = "<a href=\"../api/l1_tensor/struct.Layout.html\"><code>Layout</code></a>";
        let dims = "<a href=\"../api/l1_tensor/struct.Layout.html#method.dims\"><code>Layout::dims</code></a>";
        let error = "<a href=\"../api/l2_model/enum.Error.html\"><code>Error</code></a>";
        let expected = page
            .replace(
                "<p><code>Layout</code>, <code>Layout::dims</code>",
                &format!("<p>{layout}, {dims}"),
            )
            .replace("<code>Error</code>", error);
        assert_eq!(linked, expected);
        let elsewhere = fs::read_to_string(html.path().join("setup.html")).unwrap();
        assert!(elsewhere.contains("<code>Error</code> "), "two crates have it: {elsewhere}");
        for file in [
            "index.html",
            "static.files/a.css",
            "nano/struct.Layout.html",
            "src/l1_tensor/lib.rs.html",
        ] {
            assert!(html.path().join("api").join(file).is_file(), "{file}");
        }
        assert!(!html.path().join("api/serde").exists());
    }
}
