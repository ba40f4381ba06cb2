//! What proptest prints: the reason of the smallest failure, and its input.

/// How the message of a failed property test begins.
const HEAD: &str = "Test failed: ";
const INPUT: &str = "minimal failing input: ";

/// A failed property.
#[derive(Debug, PartialEq, Eq)]
pub struct Property {
    /// Message of the assertion.
    pub reason: String,
    /// `file:line` of the assertion, if it is one of proptest's.
    pub place: Option<String>,
    /// Arguments, each as `name = value`.
    pub input: Vec<String>,
}

/// Parses `Test failed: REASON at FILE:LINE.`, `minimal failing input: INPUT`, and counts. A test that runs proptest
/// itself may put its own words in front.
pub fn read(message: &str) -> Option<Property> {
    let (own, rest) = message.split_once(HEAD)?;
    let is_alone = own.is_empty();
    let (reason, input) = match rest.split_once(INPUT) {
        Some((reason, input)) => (reason, input.split("\n\tsuccesses:").next().unwrap_or_default()),
        // Without an input it is a property only if nothing else is said.
        None if is_alone => (rest, ""),
        None => return None,
    };
    let reason = reason.trim_end().trim_end_matches('.');
    let at = reason.rsplit_once(" at ").filter(|(_, p)| super::panics::split_place(p).is_some());
    let (reason, place) = match at {
        Some((reason, place)) => (reason, Some(place.to_string())),
        None => (reason, None),
    };
    Some(Property { reason: format!("{own}{reason}"), place, input: arguments(&compact(input)) })
}

/// A value printed with `{:#?}` as `{:?}` would print it. Strings have no line breaks in either.
fn compact(pretty: &str) -> String {
    let mut out = String::new();
    for line in pretty.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let closes = line.starts_with([']', ')', '}']);
        let last = out.chars().last();
        if closes && last == Some(',') {
            out.pop();
        }
        let tight =
            out.is_empty() || matches!(last, Some('[' | '(')) || closes && !line.starts_with('}');
        if !tight {
            out.push(' ');
        }
        out.push_str(line);
    }
    out
}

/// Cuts `a = 1, b = (2, 3)` at the commas between arguments.
fn arguments(input: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    for c in input.chars() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '(' | '{') => depth += 1,
            (None, ']' | ')' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                all.push(String::new());
                continue;
            }
            (None, _) => {}
        }
        if let Some(last) = all.last_mut() {
            last.push(c);
        }
    }
    all.iter().map(|a| a.trim().to_string()).filter(|a| !a.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_over_many_lines_becomes_one_line() {
        let pretty = "ops = [\n    (\n        1,\n        7,\n    ),\n    (\n        0,\n        2,\n    ),\n]";
        assert_eq!(compact(pretty), "ops = [(1, 7), (0, 2)]");
        let pretty = "load = Load {\n    a: 0.0,\n    v: [\n        0,\n    ],\n    name: \"x, y = 3\",\n}, n = 1";
        assert_eq!(compact(pretty), "load = Load { a: 0.0, v: [0], name: \"x, y = 3\" }, n = 1");
        assert_eq!(compact("a = 11, v = []"), "a = 11, v = []");
    }

    #[test]
    fn arguments_are_cut_where_no_bracket_is_open() {
        let cut = arguments("load = Load { name: \"x, y\\\" = 3\" }, c = ',', (a, b) = (1, 2)");
        assert_eq!(cut, ["load = Load { name: \"x, y\\\" = 3\" }", "c = ','", "(a, b) = (1, 2)"]);
        assert_eq!(arguments(""), Vec::<String>::new());
    }

    #[test]
    fn the_words_of_a_test_around_it_are_kept() {
        let message = "llama: Test failed: 3 is not 4 at l2-model/tests/d.rs:168.\nminimal failing input: (\n    \
            [\n        7,\n    ],\n    false,\n)";
        let expected = Property {
            reason: "llama: 3 is not 4".into(),
            place: Some("l2-model/tests/d.rs:168".into()),
            input: vec!["([7], false)".into()],
        };
        assert_eq!(read(message), Some(expected));
        assert_eq!(read("the Test failed: it said"), None);
        assert_eq!(read("anything else"), None);
    }
}
