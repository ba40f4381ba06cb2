//! A textual check of hostile code, before a compiler sees it: which files does it name?
//!
//! The check does not know where comments, strings and raw strings are. Whatever it assumed about them, a compiler could
//! see otherwise, and a directive would be hidden in the difference. Instead it looks at every `#` in the text, and
//! requires that what follows is harmless wherever it stands. So code that only mentions `#include "/etc/passwd"` in a
//! string is refused too, which makes its verdict inconclusive and nothing worse.
//!
//! The text is read as after translation phases 1 and 2 (C++ standard, [lex.phases]): trigraphs and spliced lines are
//! undone. Digraphs (`%:`) count as `#`.
//!
//! | what | accepted |
//! |---|---|
//! | `#include`, `#include_next`, `#import`, `__has_include` | a literal relative path without `..` |
//! | `#embed`, `__has_embed` | never |
//! | `#pragma`, `_Pragma("..")`, `__pragma` | a list of pragmas that open no file |
//! | NUL bytes | never |

use std::borrow::Cow;

/// Checks that code names files only by including headers with plain relative names.
///
/// # Errors
/// What is refused, for people; it quotes no text of the code.
///
/// # Example
///
/// ```
/// use server::compile_check::directives::check;
///
/// assert!(check("#include <vector>\n#pragma once\nint x;").is_ok());
/// assert!(check("#include \"/proc/self/environ\"").is_err());
/// assert!(check("#inc\\\nlude </dev/zero>").is_err());
/// ```
pub fn check(code: &str) -> Result<(), &'static str> {
    if code.contains('\0') {
        return Err("a NUL byte");
    }
    let code = joined(code);
    for (at, _) in code.match_indices(['#', '%']) {
        let rest = &code[at..];
        if let Some(rest) = rest.strip_prefix('#').or_else(|| rest.strip_prefix("%:")) {
            directive(rest)?;
        }
    }
    for word in ["__has_include_next", "__has_include", "__has_embed", "_Pragma", "__pragma"] {
        for (at, _) in code.match_indices(word) {
            let (before, rest) = (&code[..at], &code[at + word.len()..]);
            // Part of a longer name.
            if before.ends_with(is_word) || rest.starts_with(is_word) {
                continue;
            }
            operator(word, before, blank(rest))?;
        }
    }
    Ok(())
}

/// Undoes trigraphs of `#` and `\`, and spliced lines. Compilers allow blanks between the backslash and the end of the
/// line.
fn joined(code: &str) -> Cow<'_, str> {
    if !code.contains('\\') && !code.contains("??") {
        return Cow::Borrowed(code);
    }
    let code = code.replace("??=", "#").replace("??/", "\\");
    let mut joined = String::with_capacity(code.len());
    let mut parts = code.split('\\');
    joined.extend(parts.next());
    for part in parts {
        let after = part.trim_start_matches([' ', '\t', '\r', '\x0b', '\x0c']);
        match after.strip_prefix('\n') {
            Some(next) => joined.push_str(next),
            None => {
                joined.push('\\');
                joined.push_str(part);
            }
        }
    }
    Cow::Owned(joined)
}

/// Checks what follows a `#`.
fn directive(rest: &str) -> Result<(), &'static str> {
    let rest = blank(rest);
    let word: &str = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
    let operand = blank(&rest[word.len()..]);
    match word {
        "include" | "include_next" | "import" | "__include_macros" => header(operand)
            .map(drop)
            .ok_or("an include of something else than a header with a plain name"),
        "embed" => Err("#embed"),
        "pragma" => pragma(operand),
        _ => Ok(()),
    }
}

/// Checks an operator of the preprocessor between the text before and after it.
fn operator(word: &str, before: &str, rest: &str) -> Result<(), &'static str> {
    let includes = matches!(word, "__has_include" | "__has_include_next");
    let Some(operand) = rest.strip_prefix('(').map(blank) else {
        // Elsewhere the bare name could become another name of the operator: `#define H __has_include`.
        let asked = !matches!(word, "_Pragma" | "__pragma") && asks_whether_defined(before);
        return if asked {
            Ok(())
        } else {
            Err("an operator of the preprocessor without its operand")
        };
    };
    match word {
        _ if includes => header(operand)
            .map(drop)
            .ok_or("__has_include of something else than a header with a plain name"),
        "_Pragma" => match operand.strip_prefix('"') {
            Some(text) => pragma(text),
            None => Err("_Pragma without a literal"),
        },
        "__pragma" => pragma(operand),
        _ => Err("__has_embed"),
    }
}

/// Whether text ends in what asks whether the next name is defined: `#ifdef`, `defined(`.
fn asks_whether_defined(before: &str) -> bool {
    let before = before.trim_end_matches([' ', '\t']);
    let open = before.strip_suffix('(').unwrap_or(before).trim_end_matches([' ', '\t']);
    if let Some(start) = open.strip_suffix("defined") {
        return !start.ends_with(is_word);
    }
    // With the `#`, since `ifdef` without it is a name like any other.
    ["ifdef", "ifndef", "elifdef", "elifndef"].iter().any(|word| {
        let start = before.strip_suffix(word).map(|start| start.trim_end_matches([' ', '\t']));
        start.is_some_and(|start| start.ends_with('#') || start.ends_with("%:"))
    })
}

/// A header's name: `<vector>`, `"a/b.h"`. `None` for another operand, and for a name that leaves the include roots.
fn header(operand: &str) -> Option<&str> {
    let end = match operand.chars().next()? {
        '<' => '>',
        '"' => '"',
        _ => return None,
    };
    let name = operand.get(1..)?.split(['\n', end]).next()?;
    let closed = operand.get(1 + name.len()..)?.starts_with(end);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | '/');
    let parts = || name.split('/');
    (closed && name.chars().all(plain) && parts().all(|part| !part.is_empty() && part != ".."))
        .then_some(name)
}

/// First words of pragmas that open no file.
const PRAGMAS: [&str; 14] = [
    "once",
    "omp",
    "pack",
    "STDC",
    "region",
    "endregion",
    "warning",
    "message",
    "push_macro",
    "pop_macro",
    "unroll",
    "nounroll",
    "inline",
    "mark",
];

/// Second words of `#pragma GCC` and `#pragma clang` that open no file.
const OF_COMPILERS: [&str; 15] = [
    "diagnostic",
    "optimize",
    "target",
    "push_options",
    "pop_options",
    "reset_options",
    "visibility",
    "unroll",
    "ivdep",
    "novector",
    "loop",
    "fp",
    "attribute",
    "section",
    "poison",
];

/// Checks the words of a pragma.
fn pragma(text: &str) -> Result<(), &'static str> {
    let mut words = text.split(|c| !is_word(c)).filter(|word| !word.is_empty());
    let accepted = match words.next() {
        None => true,
        Some("GCC" | "clang") => words.next().is_some_and(|word| OF_COMPILERS.contains(&word)),
        Some(word) => PRAGMAS.contains(&word),
    };
    if accepted { Ok(()) } else { Err("a pragma that is not on the list of harmless ones") }
}

fn is_word(c: char) -> bool {
    c == '_' || c == '$' || c.is_alphanumeric()
}

/// Text after blanks and comments. A line's end is no blank: it ends a directive. A comment may span lines.
fn blank(mut text: &str) -> &str {
    loop {
        let next = text.trim_start_matches([' ', '\t', '\r', '\x0b', '\x0c']);
        let next = match next.strip_prefix("/*") {
            Some(comment) => comment.split_once("*/").map_or("", |(_, after)| after),
            None => next,
        };
        if next.len() == text.len() {
            return text;
        }
        text = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_code_is_accepted() {
        for code in [
            "",
            "#include <vector>\n#include \"a/b-c.hpp\"\n#  include <c++/x.h> // why\n",
            "#include/**/<vector>",
            "#inc\\\nlude <vec\\  \ntor>",
            "%:include <vector>",
            "#define STR(line) #line\n#define CAT(a, b) a##b\n#if 0\n#endif\n#error no",
            "#pragma once\n#pragma omp parallel for\n#pragma GCC diagnostic ignored \"-Wall\"\n#pragma\n",
            "_Pragma(\"omp simd\") int my_Pragma(int);",
            "#ifdef __has_include\n# if __has_include(<optional>)\n#endif\n#endif\n#if defined(__has_include) && 1\n",
            "const char* s = \"item # 5, 50%: \\n\";",
            "#include_nothing\nint x = 5 % y;",
        ] {
            assert_eq!(check(code), Ok(()), "{code}");
        }
    }

    #[test]
    fn a_file_outside_of_the_include_roots_is_refused_however_it_is_written() {
        for code in [
            "#include \"/etc/passwd\"",
            "#include </dev/zero>",
            "#include \"../secret\"",
            "#include <linux/../../../etc/passwd>",
            "#include <a//b>",
            "# /* */ include /* \n */ \"/etc/passwd\"",
            "int x; /* \n */ #include \"/etc/passwd\"",
            "#inc\\\nlude </etc/passwd>",
            "#inc\\ \t\nlude </etc/passwd>",
            "#include \\\r\n</etc/passwd>",
            "??=include </etc/passwd>",
            "#inc??/\nlude </etc/passwd>",
            "%:include </etc/passwd>",
            "%: include </etc/passwd>",
            "#include_next \"/etc/passwd\"",
            "#import </etc/passwd>",
            "#include __FILE__",
            "#define P </etc/passwd>\n#include P",
            "#include\n",
            "#include \"a\n\"",
            "#embed \"/etc/passwd\"",
            "#embed <a>",
            "#if __has_embed(\"/etc/passwd\")",
            "#if __has_include(\"/etc/shadow\")",
            "#if __has_include ( P )",
            "#define H __has_include\n#if H(</etc/shadow>)",
            "#define ifdef __has_include\n#if ifdef(</etc/shadow>)",
            "#define undefined __has_include\n",
            "#if __has_include_next(</etc/shadow>)",
            "#pragma GCC dependency \"/etc/passwd\"",
            "#pragma GCC pch_preprocess \"/etc/passwd\"",
            "#pragma clang module import x",
            "#pragma clang __debug crash",
            "#pragma GCC",
            "#pragma include_alias(\"a\", \"/etc/passwd\")",
            "_Pragma(\"GCC dependency \\\"/etc/passwd\\\"\")",
            "#define P(x) _Pragma(#x)",
            "_Pragma(R\"(GCC dependency)\")",
            "__pragma(include_alias(1))",
            "#inc\0lude <vector>",
            "const char* s = R\"(\n#include \"/etc/passwd\"\n)\";",
        ] {
            assert!(check(code).is_err(), "{code}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_checked_without_a_panic(code in "(#|%:|\\?\\?=|\\\\|\n|include|_Pragma|\"|<|/\\*|\\*/|\\(|ü| ){0,30}") {
            let _ = check(&code);
        }

        /// Splices, blanks and comments between the tokens of a directive change nothing.
        #[test]
        fn what_separates_tokens_hides_nothing(
            before in "(int x;|/\\* |\n| |\"){0,4}",
            mark in "(#|%:|\\?\\?=)",
            gaps in proptest::collection::vec("( |\t|\\\\\n|\\\\ \n|/\\*x\\*/|/\\*\n\\*/){0,3}", 2),
            splice in 0_usize..7,
        ) {
            let (head, tail) = "include".split_at(splice);
            let code = format!("{before}{mark}{}{head}\\\n{tail}{}\"/etc/passwd\"", gaps[0], gaps[1]);
            proptest::prop_assert!(check(&code).is_err(), "{}", code);
        }
    }
}
