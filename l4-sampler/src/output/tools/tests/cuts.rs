//! However a text is cut into pieces, the same comes of it; and whatever it is, nothing of it gets lost.

use proptest::prelude::*;

use super::super::ToolFormat;
use super::parse;
use crate::output::event::OutputEvent;

const FORMATS: [ToolFormat; 3] = [ToolFormat::None, ToolFormat::Hermes, ToolFormat::Llama3Json];

/// Words of which texts with calls consist, and texts with almost calls.
const WORDS: [&str; 28] = [
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "<tool_",
    "</too",
    "\n",
    " ",
    "{\"name\": \"now\", \"arguments\": {}}",
    "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Köln\"}}",
    "{\"name\": \"rm\", \"arguments\": {\"a\": \"</tool_call>\"}}",
    "{\"arguments\": {\"a\": [1, {}]}, \"name\": \"now\"}",
    "{\"name\": \"now\", \"arguments\": \"{}\"}",
    "{\"name\": ",
    "\"now\"",
    "\"arguments\"",
    "\"name\"",
    ": ",
    "{",
    "}",
    "[",
    "]",
    ",",
    ";",
    "\"",
    "\\u00e9",
    "é",
    "12.5",
    "true",
];

fn said() -> impl Strategy<Value = String> {
    let words = proptest::collection::vec(proptest::sample::select(&WORDS[..]), 0..16);
    words.prop_map(|words| words.concat())
}

/// A text and places to cut it at.
fn cut_text() -> impl Strategy<Value = (String, Vec<String>)> {
    (said(), proptest::collection::vec(any::<prop::sample::Index>(), 0..12)).prop_map(
        |(said, cuts)| {
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(said.len() + 1)).collect();
            at.retain(|&at| said.is_char_boundary(at));
            at.extend([0, said.len()]);
            at.sort_unstable();
            let pieces = at.windows(2).map(|cut| said[cut[0]..cut[1]].to_owned()).collect();
            (said, pieces)
        },
    )
}

/// How often a character comes.
fn count(text: &str, what: char) -> usize {
    text.chars().filter(|c| *c == what).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn cuts_make_no_difference((said, pieces) in cut_text()) {
        for format in FORMATS {
            let whole = parse(format, [said.as_str()]);
            prop_assert_eq!(&parse(format, pieces.iter().map(String::as_str)), &whole);
            let chars: Vec<String> = said.chars().map(String::from).collect();
            prop_assert_eq!(&parse(format, chars.iter().map(String::as_str)), &whole);
        }
    }

    #[test]
    fn calls_begin_before_their_arguments_and_are_counted(said in said()) {
        for format in FORMATS {
            let mut calls = 0;
            for event in parse(format, [said.as_str()]) {
                match event {
                    OutputEvent::Text(text) => prop_assert!(!text.is_empty()),
                    OutputEvent::ToolCallStart { index, name } => {
                        prop_assert_eq!(index, calls);
                        prop_assert!(!name.is_empty());
                        calls += 1;
                    }
                    OutputEvent::ToolCallArguments { index, arguments } => {
                        prop_assert_eq!(index + 1, calls);
                        prop_assert!(!arguments.is_empty());
                    }
                    other => prop_assert!(false, "a tool parser gave {other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_text_without_calls_comes_out_as_it_is(said in said()) {
        for format in FORMATS {
            let events = parse(format, [said.as_str()]);
            if !events.iter().any(|event| matches!(event, OutputEvent::ToolCallStart { .. })) {
                let want: Vec<_> = (!said.is_empty()).then(|| super::text(&said)).into_iter().collect();
                prop_assert_eq!(events, want);
            }
        }
    }

    #[test]
    fn what_is_said_beside_and_within_calls_is_told(said in said()) {
        // No tag, key or separator has these.
        for format in FORMATS {
            let told: String = parse(format, [said.as_str()]).into_iter().map(|event| match event {
                OutputEvent::Text(text) | OutputEvent::ToolCallArguments { arguments: text, .. } => text,
                _ => String::new(),
            }).collect();
            prop_assert_eq!(count(&told, '5') + count(&told, 'ö'), count(&said, '5') + count(&said, 'ö'));
        }
    }

    #[test]
    fn no_text_is_too_strange(said in "\\PC*") {
        for format in FORMATS {
            let tagged = format!("<tool_call>{said}");
            parse(format, [said.as_str(), tagged.as_str()]);
        }
    }
}
