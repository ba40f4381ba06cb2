//! Finds the C++ code in a response: fenced code blocks as in CommonMark.
//!
//! The longest C++ block is checked, and the first of several such. Blocks are not joined: a response often has several
//! versions of one function, or two files with a `main` each, which do not compile as one text.
//!
//! A block is C++ if the first word after its fence says so (`cpp`, `c++`, `cc`, `cxx`, `hpp`, ...). A block whose fence
//! says nothing is C++ if it contains what only C++ contains.

/// C++ code in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code<'a> {
    /// Text of the block, without its fences.
    pub text: &'a str,
    /// Whether the closing fence was found. A block without it was cut by a length limit or a stop string.
    pub closed: bool,
}

impl Code<'_> {
    /// Whether the code includes no header: it is a part of a program, and is checked after a prelude of standard
    /// headers.
    pub fn is_fragment(&self) -> bool {
        !self.text.lines().any(|line| {
            let line = line.trim_start();
            line.strip_prefix('#').is_some_and(|rest| rest.trim_start().starts_with("include"))
        })
    }
}

/// Words after a fence that mean C++.
const NAMES: [&str; 8] = ["cpp", "c++", "cc", "cxx", "hpp", "h++", "hxx", "hh"];

/// Texts that show C++ in a block without a name.
const MARKS: [&str; 7] = [
    "#include <",
    "std::",
    "using namespace ",
    "template <",
    "template<",
    "int main(",
    "constexpr ",
];

/// Returns the longest C++ block of a response, or `None` if it has none.
///
/// # Example
///
/// ```
/// use server::compile_check::extract::cpp;
///
/// let code = cpp("Try this:\n```cpp\nint f();\n```\nDone.").unwrap();
/// assert_eq!((code.text, code.closed), ("int f();\n", true));
/// assert!(code.is_fragment());
/// assert_eq!(cpp("```python\nprint(1)\n```"), None);
/// ```
pub fn cpp(response: &str) -> Option<Code<'_>> {
    let mut best: Option<Code<'_>> = None;
    let mut lines = Lines { text: response, at: 0 };
    while let Some((_, line)) = lines.next() {
        let Some(open) = Fence::opening(line) else { continue };
        let (start, mut end, mut closed) = (lines.at, lines.at, false);
        while let Some((at, line)) = lines.next() {
            end = lines.at;
            if open.is_closed_by(line) {
                (end, closed) = (at, true);
                break;
            }
        }
        let text = &response[start..end];
        let longer = best.is_none_or(|best| best.text.len() < text.len());
        if open.is_cpp(text) && !text.trim().is_empty() && longer {
            best = Some(Code { text, closed });
        }
    }
    best
}

/// Lines with their ends, and where the next one begins.
struct Lines<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lines<'a> {
    /// The next line, and where it begins.
    fn next(&mut self) -> Option<(usize, &'a str)> {
        let start = self.at;
        let rest = self.text.get(start..).filter(|rest| !rest.is_empty())?;
        let length = rest.find('\n').map_or(rest.len(), |at| at + 1);
        self.at += length;
        Some((start, rest[..length].trim_end()))
    }
}

/// The line that opens a block.
struct Fence<'a> {
    mark: char,
    length: usize,
    name: &'a str,
}

impl<'a> Fence<'a> {
    fn opening(line: &'a str) -> Option<Self> {
        // Blocks within a list are indented. CommonMark ends at three spaces, models do not.
        let line = line.trim_start();
        let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let info = line.trim_start_matches(mark);
        let length = line.len() - info.len();
        // "```x```" on a line is text.
        if length < 3 || (mark == '`' && info.contains('`')) {
            return None;
        }
        let word = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | ',' | ':');
        let name = info.split(word).find(|word| !word.is_empty()).unwrap_or_default();
        Some(Self { mark, length, name: name.trim_start_matches('.') })
    }

    fn is_closed_by(&self, line: &str) -> bool {
        let line = line.trim_start();
        line.len() >= self.length && line.chars().all(|c| c == self.mark)
    }

    fn is_cpp(&self, text: &str) -> bool {
        if self.name.is_empty() {
            return MARKS.iter().any(|mark| text.contains(mark));
        }
        NAMES.iter().any(|name| self.name.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(response: &str) -> Option<&str> {
        cpp(response).map(|code| code.text)
    }

    #[test]
    fn every_name_of_the_language_opens_a_block() {
        for info in
            ["cpp", "c++", "cc", "cxx", "CPP", " C++ ", "cpp title=a.cc", "{.cpp}", "cpp:a.cc"]
        {
            assert_eq!(text(&format!("```{info}\nint x;\n```\n")), Some("int x;\n"), "{info}");
            assert_eq!(text(&format!("~~~~{info}\r\nint x;\n~~~~\n")), Some("int x;\n"), "{info}");
        }
        for info in ["c", "rust", "python", "cppp", "text", "cmake"] {
            assert_eq!(text(&format!("```{info}\nstd::vector<int> x;\n```\n")), None, "{info}");
        }
    }

    #[test]
    fn a_block_without_a_name_needs_the_look_of_the_language() {
        assert_eq!(text("```\n#include <vector>\n```"), Some("#include <vector>\n"));
        assert_eq!(text("```\n$ make\n```"), None);
    }

    #[test]
    fn the_longest_block_is_taken_and_the_first_of_equals() {
        let response = "```cpp\nint a;\n```\n```python\nxxxxxxxxxxxxxxxxx\n```\n```cc\nint bcd;\n```\n```cc\nint efg;\n```";
        assert_eq!(text(response), Some("int bcd;\n"));
    }

    #[test]
    fn a_fence_is_closed_by_its_own_kind_only() {
        let inner = "// ~~~\n// ```\n```x\n";
        let response = format!("````cpp\n{inner}```\n~~~~\n  ````  \nafter");
        assert_eq!(text(&response), Some(format!("{inner}```\n~~~~\n").as_str()));
    }

    #[test]
    fn a_block_that_is_cut_is_known_to_be_cut() {
        for (response, closed) in [("```cpp\nint x", false), ("```cpp\nint x;\n```", true)] {
            assert_eq!(cpp(response).unwrap().closed, closed, "{response}");
        }
    }

    #[test]
    fn prose_and_empty_blocks_have_no_code() {
        for response in
            ["", "std::vector", "`cpp`", "```cpp int x; ```", "```cpp\n \n```", "```cpp"]
        {
            assert_eq!(cpp(response), None, "{response:?}");
        }
    }

    #[test]
    fn a_fragment_includes_nothing() {
        let fragment = |text| Code { text, closed: true }.is_fragment();
        assert!(fragment("int f();") && fragment("// #include <vector>"));
        assert!(!fragment(" # include <vector>\nint f();"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic_and_the_code_is_a_part_of_it(
            response in "(```|~~~|cpp|\\n|ü| |int x;){0,40}"
        ) {
            if let Some(code) = cpp(&response) {
                proptest::prop_assert!(response.contains(code.text));
            }
        }

        #[test]
        fn a_block_comes_back_as_it_was_written(
            before in "[a-z \\n]{0,20}", body in "[a-z;{}#<>\\n ]{1,60}", after in "[a-z \\n]{0,20}",
        ) {
            let response = format!("{before}\n```cpp\n{body}\n```\n{after}");
            let expected = (!body.trim().is_empty()).then(|| format!("{body}\n"));
            proptest::prop_assert_eq!(text(&response).map(str::to_owned), expected);
        }
    }
}
