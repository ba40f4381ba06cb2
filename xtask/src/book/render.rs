//! `cargo x book render`: opens every page in a browser, as a phone and as a desk show it.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::browser::Browser;

/// Widths of the window: a phone, and a screen beside whose text the list of chapters is open.
const WIDTHS: [u32; 2] = [400, 1400];

const HEIGHT: u32 = 900;

/// Returns what is wrong with the page that is open, as a list of sentences.
///
/// `body` and the box of the text hide or scroll what is too wide, so the width of the document alone says little:
/// every element must end where the text ends, or be inside of something that scrolls and ends there.
const SCRIPT: &str = r#"(async () => {
    await document.fonts.ready;
    const problems = [];
    const root = document.documentElement;
    if (root.scrollWidth > innerWidth) {
        problems.push(`the document is ${root.scrollWidth} px wide`);
    }
    const main = document.querySelector("main");
    if (!main) {
        return ["there is no text: no <main>"];
    }
    const content = main.parentElement;
    if (content.scrollWidth > content.clientWidth) {
        problems.push(`the text is ${content.scrollWidth} px wide, and its box ${content.clientWidth}`);
    }
    const end = content.getBoundingClientRect().right + 0.5;
    const scrolls = (element) => getComputedStyle(element).overflowX !== "visible";
    const look = (element) => {
        const box = element.getBoundingClientRect();
        if (box.width > 0 && box.right > end) {
            const text = element.textContent.trim().replace(/\s+/g, " ").slice(0, 60);
            const name = element.localName + (element.className ? "." + element.className : "");
            problems.push(`<${name}> ends ${Math.ceil(box.right - end)} px outside: ${text || element.src || ""}`);
        } else if (!(box.width > 0 && scrolls(element))) {
            [...element.children].forEach(look);
        }
    };
    [...main.children].forEach(look);
    for (const image of main.querySelectorAll("img")) {
        await image.decode().catch(() => {});
        if (!image.naturalWidth && !image.closest(".img-wrapper")) {
            problems.push(`a picture did not load: ${image.getAttribute("src")}`);
        }
    }
    for (const error of main.querySelectorAll("merror")) {
        problems.push(`a formula is wrong: ${error.textContent}`);
    }
    for (const { name } of performance.getEntriesByType("resource")) {
        if (!/^(file|data|blob):/.test(name)) {
            problems.push(`it needs the network: ${name}`);
        }
    }
    return problems;
})()"#;

/// Look at every page of a built book.
///
/// # Errors
/// Something is wrong with a page, or with the browser.
pub fn check(browser: &str, html: &Path) -> Result<()> {
    let pages = super::pages(html)?;
    let started = Instant::now();
    let problems = look(browser, html, &pages)?;
    for problem in &problems {
        println!("{problem}");
    }
    let seconds = started.elapsed().as_secs();
    let widths = WIDTHS.map(|width| format!("{width}")).join(" and ");
    let summary = format!("{} pages at {widths} px in {seconds} s", pages.len());
    if !problems.is_empty() {
        bail!("{} problems on {summary}", problems.len());
    }
    println!("{summary}: nothing is too wide, and all pictures are there");
    Ok(())
}

/// What is wrong with these pages, with page and width.
fn look(browser: &str, html: &Path, pages: &[String]) -> Result<Vec<String>> {
    let mut browser = Browser::start(browser)?;
    let mut problems = Vec::new();
    for width in WIDTHS {
        browser.resize(width, HEIGHT)?;
        for page in pages {
            let said = browser.ask(&html.join(page), SCRIPT).with_context(|| page.clone())?;
            let Value::Array(said) = said else { bail!("{page}: the script said {said}") };
            let said = said.iter().map(|s| s.as_str().unwrap_or_default());
            problems.extend(said.map(|s| format!("{page} at {width} px: {s}")));
        }
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PICTURE: &str = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'></svg>";

    #[test]
    fn what_is_too_wide_or_missing_is_found_and_what_scrolls_is_not() {
        let Ok(browser) = super::super::browser::find() else {
            println!("not run: there is no browser");
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let wide = "<div style='width: 600px'>wide</div>";
        let page = |name: &str, body: &str| {
            let style = "body { overflow-x: hidden } #content { overflow-y: auto }";
            let html = format!("<style>{style}</style><div id='content'><main>{body}</main></div>");
            fs::write(dir.path().join(name), html).unwrap();
            name.to_string()
        };
        fs::write(dir.path().join("picture.svg"), PICTURE).unwrap();
        let pages = [
            page(
                "fine.html",
                &format!("<p>a<div style='overflow-x: auto'>{wide}</div><img src='picture.svg'>"),
            ),
            page("wide.html", wide),
            page("missing.html", "<img src='missing.svg'>"),
            page("network.html", "<img src='http://strata.invalid/a.svg'>"),
        ];
        let problems = look(&browser, dir.path(), &pages).unwrap();
        let of = |name: &str| {
            let of = problems.iter().filter(|problem| problem.starts_with(name));
            of.map(String::as_str).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(of("fine.html"), "");
        assert!(of("wide.html").contains("at 400 px: <div> ends"), "{problems:#?}");
        assert!(!of("wide.html").contains("at 1400 px"), "{problems:#?}");
        assert!(of("missing.html").contains("did not load: missing.svg"), "{problems:#?}");
        assert!(of("network.html").contains("needs the network"), "{problems:#?}");
    }
}
