//! Stop strings in text that comes in pieces.

use l4_sampler::ParamError;
use l4_sampler::stop::StopMatcher;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::naive;

fn strings(of: &[&str]) -> Vec<String> {
    of.iter().map(ToString::to_string).collect()
}

fn matcher(of: &[&str]) -> StopMatcher {
    StopMatcher::new(&strings(of), false).unwrap()
}

/// What each piece showed, what the end showed, and which string was found.
fn run(mut matcher: StopMatcher, pieces: &[&str]) -> (Vec<String>, String, Option<usize>) {
    let shown = pieces.iter().map(|piece| matcher.push(piece).to_owned()).collect();
    let rest = matcher.finish().to_owned();
    (shown, rest, matcher.stopped())
}

/// The same cases every time.
pub fn runner(cases: u32) -> TestRunner {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn text_without_stop_strings_is_shown_as_it_comes() {
    let (shown, rest, stopped) = run(matcher(&[]), &["some ", "", "text"]);
    assert_eq!(shown, ["some ", "", "text"], "what each piece showed");
    assert_eq!((rest.as_str(), stopped), ("", None), "what the end showed, and what was found");
}

#[test]
fn what_could_become_a_stop_string_waits_and_nothing_else_does() {
    let (shown, rest, stopped) =
        run(matcher(&["<end>"]), &["a<", "e", "x", "b<<en", "<", "e", "n", " <e"]);
    assert_eq!(shown, ["a", "", "<ex", "b<", "<en", "", "", "<en "], "what each piece showed");
    assert_eq!((rest.as_str(), stopped), ("<e", None), "what the end showed, and what was found");
}

#[test]
fn a_stop_string_is_found_across_pieces_and_no_part_of_it_is_shown() {
    for pieces in [
        &["one\n\nHuman: two"][..],
        &["one", "\n\nHu", "man", ": two"],
        &["one\n", "\n", "H", "u", "m", "a", "n", ":", " two", " more"],
    ] {
        let (shown, rest, stopped) = run(matcher(&["\n\nHuman:"]), pieces);
        assert_eq!(shown.concat() + &rest, "one", "all that {pieces:?} showed");
        assert_eq!(stopped, Some(0), "which string was found in {pieces:?}");
    }
}

#[test]
fn a_beginning_that_fails_may_hold_another_beginning() {
    // After "aaa" only the last two may begin it; after "abab" the last two.
    let (shown, rest, stopped) = run(matcher(&["aab"]), &["a", "a", "a", "b", "c"]);
    assert_eq!(shown, ["", "", "a", "", ""], "what each piece of aaabc showed, stop aab");
    assert_eq!((rest.as_str(), stopped), ("", Some(0)), "what the end showed, and what was found");
    let (shown, ..) = run(matcher(&["ababc"]), &["abab", "abc"]);
    assert_eq!(shown, ["", "ab"], "what each piece of abababc showed, stop ababc");
}

#[test]
fn the_string_that_ends_first_wins() {
    let (shown, _, stopped) = run(matcher(&["abcd", "bc"]), &["xabcd"]);
    assert_eq!((shown.concat().as_str(), stopped), ("xa", Some(1)), "xabcd with stops abcd, bc");
    let (shown, _, stopped) = run(matcher(&["abc", "ab"]), &["xabc"]);
    assert_eq!((shown.concat().as_str(), stopped), ("x", Some(1)), "xabc with stops abc, ab");
}

#[test]
fn of_strings_that_end_together_the_longest_wins() {
    for (stops, number) in [(["bc", "abc"], 1), (["abc", "bc"], 0)] {
        let (shown, _, stopped) = run(matcher(&stops), &["xa", "bc"]);
        let what = format!("xabc with stops {stops:?}");
        assert_eq!((shown.concat().as_str(), stopped), ("x", Some(number)), "{what}");
    }
}

#[test]
fn characters_of_several_bytes_are_never_cut() {
    // The crab and the lobster differ in their last byte, é and è too.
    let (shown, rest, stopped) = run(matcher(&["🦀é"]), &["a🦞🦀", "è", "🦀", "é"]);
    assert_eq!(shown, ["a🦞", "🦀è", "", ""], "what each piece showed, stop 🦀é");
    assert_eq!((rest.as_str(), stopped), ("", Some(0)), "what the end showed, and what was found");
}

#[test]
fn with_include_stop_str_the_text_ends_behind_the_string_and_nothing_waits() {
    let including = StopMatcher::new(&strings(&["<end>", "d"]), true).unwrap();
    let (shown, rest, stopped) = run(including.clone(), &["a<e", "n", "b"]);
    assert_eq!(shown, ["a<e", "n", "b"], "what each piece showed: a part of it may be shown");
    assert_eq!((rest.as_str(), stopped), ("", None), "what the end showed, and what was found");
    let (shown, rest, stopped) = run(including, &["a<e", "nd> and more", "b"]);
    assert_eq!(shown, ["a<e", "nd", ""], "what each piece showed");
    assert_eq!((rest.as_str(), stopped), ("", Some(1)), "what the end showed, and what was found");
}

#[test]
fn a_string_that_cannot_be_the_first_to_end_is_not_waited_for() {
    // "<user>" can never be found: "se" ends before it.
    let (shown, _, stopped) = run(matcher(&["<user>", "se"]), &["<u", "s", "e"]);
    assert_eq!(shown, ["<u", "", ""], "what each piece showed");
    assert_eq!(stopped, Some(1), "which string was found");
}

#[test]
fn a_string_counts_from_where_it_may_end() {
    let mut early = matcher(&["<user>", "se"]);
    // Here "se" does not count, so "<user>" may still be found.
    assert_eq!(early.pass("a<us"), "a", "what the first piece showed");
    assert_eq!(early.pass("e"), "", "what the second piece showed");
    assert_eq!(early.push("r> and"), "", "what the third piece showed");
    assert_eq!(early.stopped(), Some(0), "which string was found");
    // Two that overlap: the first does not count, the second does.
    let mut overlapping = matcher(&["aa"]);
    assert_eq!(overlapping.pass("aa"), "a", "what aa showed where aa does not count yet");
    assert_eq!(overlapping.push("a"), "", "what another a showed");
    assert_eq!(overlapping.stopped(), Some(0), "which string was found");
}

#[test]
fn an_empty_stop_string_is_refused() {
    let refused = StopMatcher::new(&strings(&["a", ""]), false).err();
    assert_eq!(refused, Some(ParamError::EmptyStop), "a matcher for the stops \"a\" and \"\"");
}

/// Texts of a few characters, so that parts of strings are everywhere. Two of them share their first bytes.
fn text(length: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    let one = prop::sample::select(vec!['a', 'a', 'b', 'b', 'c', 'é', 'è']);
    prop::collection::vec(one, length).prop_map(|chars| chars.into_iter().collect())
}

#[test]
fn any_strings_in_any_pieces_are_what_they_are_in_the_whole_text() {
    let stops = prop::collection::vec(text(1..6), 0..4);
    let pieces = prop::collection::vec(text(0..5), 0..10);
    let case = (stops, pieces, prop_oneof![2 => Just(0), 1 => 0..6usize], any::<bool>());
    runner(4000)
        .run(&case, |(stops, pieces, early_pieces, include)| {
            let whole = pieces.concat();
            let early = pieces.iter().take(early_pieces).map(String::len).sum();
            let (want, number) = naive::cut(&whole, early, &stops, include);
            let mut matcher = StopMatcher::new(&stops, include).unwrap();
            let (mut came, mut shown) = (String::new(), String::new());
            for (i, piece) in pieces.iter().enumerate() {
                let counts = i >= early_pieces;
                came += piece;
                shown += if counts { matcher.push(piece) } else { matcher.pass(piece) };
                let what =
                    format!("shown of {came:?}, stops {stops:?}, include {include}, early {early}");
                prop_assert!(
                    want.starts_with(&shown),
                    "{what}: {shown:?}, but in the end {want:?}"
                );
                let certain = naive::certain(&came, counts.then_some(early), &stops, include);
                prop_assert_eq!(&shown, certain, "{}", what);
            }
            shown += matcher.finish();
            let what =
                format!("shown of {whole:?}, stops {stops:?}, include {include}, early {early}");
            prop_assert_eq!(&shown, want, "{}", what);
            prop_assert_eq!(matcher.stopped(), number, "which string ended {:?}", whole);
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}
