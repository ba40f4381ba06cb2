//! The tools of the book: formulas become MathML that survives Markdown, and prose is measured.

use strata_book::math::{Formula, formulas, mathml, preprocess, typeset};
use strata_book::prose::{self, Kind, figures};

fn found(text: &str) -> Vec<(usize, String, bool)> {
    let formulas = formulas(text).unwrap_or_else(|e| panic!("{e}"));
    formulas.into_iter().map(|Formula { line, tex, display, .. }| (line, tex, display)).collect()
}

/// The page as Markdown reads it after typesetting: the HTML that is in it, and the text.
fn read_back(text: &str) -> (Vec<String>, String) {
    use pulldown_cmark::{Event, Options, Parser};
    let typeset = typeset(text).unwrap_or_else(|e| panic!("{e:?}"));
    let mut tags = Vec::new();
    let mut said = String::new();
    for event in Parser::new_ext(&typeset, Options::ENABLE_TABLES) {
        match event {
            Event::InlineHtml(tag) => tags.push(tag.into_string()),
            Event::Text(text) => said.push_str(&text),
            Event::Html(html) => panic!("an HTML block: {html}"),
            Event::SoftBreak => said.push('\n'),
            Event::Start(tag) => said.push_str(&format!("{tag:?}").replace("Paragraph", "")),
            _ => {}
        }
    }
    (tags, said)
}

#[test]
fn formulas_are_found_in_paragraphs_lists_quotations_and_tables() {
    let text = "Here is $`x_i`$ and `code`.\n\n\
        ```math\n\\frac{a}{b}\n```\n\n\
        * an item\n\n  ```math\n  a\n    + b\n  ```\n\n  1. nested $`n`$\n\n     ~~~math\n     c\n     ~~~\n\n\
        > ```math\n> d\n> + e\n> ```\n\n\
        | | |\n|---|---|\n| $`\\|x\\|`$ | `$y` |\n\n\
        ```text\n$`not`$\n```\n\n```rust\nlet a = 1;\n```\n";
    let expected = [
        (1, "x_i", false),
        (3, "\\frac{a}{b}\n", true),
        (9, "a\n  + b\n", true),
        (14, "n", false),
        (16, "c\n", true),
        (20, "d\n+ e\n", true),
        (27, "|x|", false),
    ];
    assert_eq!(found(text), expected.map(|(line, tex, display)| (line, tex.to_string(), display)));
}

#[test]
fn a_dollar_or_a_backtick_alone_is_no_formula() {
    assert_eq!(found("It costs $5, `$HOME` and \\$`price` and 3 $ `a` `b` $."), []);
    assert_eq!(found("<!-- $`x -->\n\n\\`x`$"), []);
}

#[test]
fn what_is_left_open_is_an_error_with_its_line() {
    for (text, said) in [
        ("a\n\nthen $`x_i and more", "3: a formula is left open"),
        ("a $`x_i` and", "1: `x_i` has no `$` behind it"),
        ("a\nb `x_i`$ and", "2: `x_i` has no `$` before it"),
        ("a\n\n```math\nx\n", "3: the fence is left open"),
        ("```math\n", "1: the fence is left open"),
    ] {
        let error = typeset(text).unwrap_err();
        assert!(error.len() == 1 && error[0].starts_with(said), "{text:?}: {error:?}");
    }
}

#[test]
fn wrong_latex_is_an_error_that_shows_the_formula() {
    for (tex, said) in [
        ("\\nosuchcommand x", "unknown primitive"),
        ("\\frac{a}{b", "unbalanced group"),
        ("x_i_j", "subscript twice"),
        ("\\begin{nothing}\\end{nothing}", "environment"),
        ("2.7 %", "percent"),
        (" ", "empty"),
    ] {
        let text = format!("First $`a`$.\n\n```math\n{tex}\n```\n");
        let error = typeset(&text).unwrap_err();
        assert_eq!(error.len(), 1);
        assert!(error[0].starts_with("3: ") && error[0].contains(said), "{tex:?}: {error:?}");
        assert!(error[0].ends_with(tex.trim()), "{error:?}");
    }
    let two = typeset("$`\\no`$ and\n$`\\never`$").unwrap_err();
    assert_eq!(two.len(), 2, "{two:?}");
    assert!(mathml("100\\,\\%", false).is_ok());
    assert!(mathml("a \\\\% b", false).is_err());
}

#[test]
fn markdown_leaves_mathml_alone() {
    let page = "a $`x_i * y_j * z < 1 \\& [a](b) | \\#`$ b_1_ `c`\n\n\
        ```math\n\\text{`_c_` *d* <b> &lt; \\_} \\quad\n```\n";
    let (tags, said) = read_back(page);
    assert!(tags.iter().all(|tag| tag.starts_with('<') && tag.ends_with('>')), "{tags:?}");
    assert_eq!(tags.first().map(String::as_str), Some("<math display=\"inline\">"));
    assert_eq!(tags.last().map(String::as_str), Some("</span>"));
    for kept in ["x", "∗", "<", "[", "|", "#", "`_c_`", "*d*", "<b>"] {
        assert!(said.contains(kept), "{kept} in {said}");
    }
    for mark in ["Emphasis", "Link", "Code"] {
        assert!(!said.contains(mark), "{said}");
    }
}

#[test]
fn a_formula_stays_in_its_cell_its_item_and_its_quotation() {
    let (tags, said) = read_back("| a | b |\n|---|---|\n| $`\\|x\\| + \\max(y)`$ | c |\n");
    assert_eq!(said.matches("TableCell").count(), 4, "{said}");
    assert!(tags.len() > 4);
    let (_, said) =
        read_back("* one\n  ```math\n  a\n  ```\n  after\n* two\n\n  ```math\n  b\n  ```\n");
    assert_eq!(said.matches("Item").count(), 2, "{said}");
    assert!(said.contains("one\n") && said.contains("\nafter"), "{said}");
    let (_, said) = read_back("> before\n>\n> ```math\n> a\n> ```\n>\n> behind\n\nbelow $`x`$\n");
    assert_eq!(said.matches("BlockQuote").count(), 1, "{said}");
    assert!(said.contains("behind") && said.ends_with('x') && said.contains("below"), "{said}");
}

#[test]
fn a_formula_on_its_own_line_is_a_block_that_can_scroll() {
    let page = typeset("a\n\n```math\n\\sum_i\nx_i\n```\n\nb\n").unwrap();
    let lines: Vec<&str> = page.lines().collect();
    assert_eq!(lines.len(), 5, "{page}");
    assert!(lines[2].starts_with("<span class=\"math-display\"><math display=\"block\""), "{page}");
    assert!(lines[2].ends_with("</math></span>"), "{page}");
}

#[test]
fn the_preprocessor_typesets_every_chapter_and_nothing_else() {
    let input = r##"[{"root":"/r","config":{},"renderer":"html","mdbook_version":"0.5.4"},
        {"items":[{"Chapter":{"name":"A `x`","content":"$`x`$","number":[1],"path":"a.md",
        "sub_items":[{"Chapter":{"name":"B","content":"# B\n\n```math\ny\n```\n","path":"b/c.md",
        "sub_items":[],"parent_names":[]}}],"parent_names":[]}},"Separator",{"PartTitle":"$`P`$"}]}]"##;
    let book: serde_json::Value = serde_json::from_str(&preprocess(input).unwrap()).unwrap();
    let chapter = &book["items"][0]["Chapter"];
    assert!(chapter["content"].as_str().unwrap().starts_with("<math"), "{book}");
    assert_eq!(chapter["number"][0], 1);
    let below = chapter["sub_items"][0]["Chapter"]["content"].as_str().unwrap();
    assert!(below.starts_with("# B\n\n<span class=\"math-display\">"), "{book}");
    assert_eq!(book["items"][2]["PartTitle"], "$`P`$");

    let wrong = input.replace("$`x`$", "a\\n$`\\\\no`$").replace("ny", "n\\\\never");
    let error = preprocess(&wrong).unwrap_err().to_string();
    assert!(error.contains("\na.md:2: ") && error.contains("\nb/c.md:3: "), "{error}");
    for input in ["", "{}", "[1]", "[{},{}]", "[{},{\"items\":[]}]"] {
        assert!(preprocess(input).is_err(), "{input}");
    }
}

const PAGE: &str = "# A heading of five words\n\n\
    Cats sleep, and `cargo x` runs $`x_i`$. A [link](a.md) is text!\n\n\
    * One item\n* \"Nobody\" is quoted here; somebody is not\n\n\
    > A quotation counts.\n\n\
    | a | For\n|---|---|\n| for now | nothing |\n\n\
    ```text\nwhoever runs this\n```\n\n\
    <details>\n<summary>not counted</summary>\n\nFolded text. Everybody's is a word of its own.\n\n</details>\n\n\
    ![whoever](a.svg)\n";

#[test]
fn prose_is_counted_without_code_tables_and_headings() {
    let figures = figures(PAGE);
    // 8 (code and x are one word each) + 4 + 2 + 6 + 3 + 2 + 7.
    assert_eq!(figures.words, 11 + 2 + 6 + 3 + 9, "{:?}", prose::blocks(PAGE));
    assert_eq!(figures.minutes(), 1);
    let kinds = prose::blocks(PAGE);
    assert_eq!(kinds.iter().filter(|b| b.kind == Kind::Other).count(), 6, "{kinds:?}");
    let easy = prose::figures("The cat sat. The dog ran.").ease;
    let hard =
        prose::figures("Implementations necessitate considerable sophistication, incidentally.")
            .ease;
    // 206.835 - 1.015 * 3 words a sentence - 84.6 * 1 syllable a word.
    assert!((easy - 119.19).abs() < 0.01, "{easy}");
    assert!(hard < 0.0, "{hard}");
    assert_eq!(prose::figures("```text\na\n```\n").words, 0);
}

#[test]
fn banned_words_are_found_everywhere_but_in_quotations_and_code() {
    let banned = prose::banned(PAGE);
    assert_eq!(banned, [(6, "somebody"), (12, "for now"), (25, "whoever")]);
    assert_eq!(prose::banned("It is for\nnow; before nowhere."), [(1, "for now")]);
}

#[test]
fn avoided_words_are_counted() {
    let figures =
        figures("| What was told |\n|---|\n| news |\n\nThe answer is told. An answerer is not.");
    let counts: Vec<_> = figures.avoided.into_iter().collect();
    assert_eq!(counts, [("answer", 1), ("news", 1), ("told", 2)]);
}
