//! Rules and decisions against naive versions of themselves.

use proptest::prelude::*;

use super::super::lexicon::LEXICON;
use super::*;

/// Words and texts around them, so that patterns occur, and nearly occur.
const PIECES: [&str; 30] = [
    "mutex",
    "deadlock",
    "std::vector",
    "vector",
    "malloc",
    "allocator",
    "unique_ptr",
    "epoll_wait",
    "socket",
    "O_RDONLY",
    "template <",
    "typename",
    "is_same_v",
    "CMAKE_BUILD_TYPE",
    "add_library",
    "Dijkstra",
    "graph",
    "O(n",
    "the",
    "of",
    "1",
    "\n#0 0x1",
    "error",
    "a.cpp:3:1: error: x",
    "undefined reference to",
    "Program received signal",
    "diff",
    "\n@@",
    "é",
    "memory leak",
];

/// Occurrences of each pattern, found by looking for it at every word of the text.
fn naive_hits(text: &str, tripwire: Tripwire) -> f32 {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: Vec<(usize, &str)> = {
        let starts =
            text.char_indices().filter(|(i, c)| is_word(*c) && !text[..*i].ends_with(is_word));
        starts
            .map(|(i, _)| {
                (i, &text[i..i + text[i..].find(|c| !is_word(c)).unwrap_or(text.len() - i)])
            })
            .filter(|(_, word)| !word.starts_with(|c: char| c.is_ascii_digit()))
            .collect()
    };
    let known = |word: &str| (0..LEXICON.len()).any(|i| LEXICON.name(i) == word);
    let mut hits = 0.0;
    for i in LEXICON.of(tripwire).filter(|i| *i != LEXICON.frame()) {
        let name = LEXICON.name(i);
        let is = |word: &str| match name.strip_suffix('*') {
            None => word == name,
            Some(prefix) => {
                let longest = word
                    .rmatch_indices('_')
                    .map(|(at, _)| format!("{}*", &word[..=at]))
                    .find(|p| known(p));
                word.starts_with(prefix) && !known(word) && longest.as_deref() == Some(name)
            }
        };
        let at = words.iter().filter(|(at, word)| {
            is(word) && LEXICON.matches(i, &text[..*at], &text[at + word.len()..])
        });
        hits += LEXICON.weight(i) * at.count().min(3) as f32;
    }
    if LEXICON.of(tripwire).any(|i| i == LEXICON.frame()) {
        let frame = |line: &&str| {
            let number = line.trim_start().strip_prefix('#').map(str::trim_start);
            let rest = number
                .map(|n| n.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_'));
            let is_number = number.is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()));
            is_number && rest.is_some_and(|rest| rest.starts_with("  ") || rest.starts_with(" 0x"))
        };
        hits +=
            LEXICON.weight(LEXICON.frame()) * text.split('\n').filter(frame).count().min(3) as f32;
    }
    hits
}

/// The rules of a decision, one after the other.
fn naive_decision(
    findings: &[Finding],
    margin: f32,
    lane: &dyn Fn(Tripwire) -> Option<usize>,
) -> Option<Tripwire> {
    let fired: Vec<&Finding> =
        findings.iter().filter(|f| f.strength >= 1.0 && lane(f.tripwire).is_some()).collect();
    for tripwire in Tripwire::ALL.into_iter().filter(|t| t.is_report()) {
        if fired.iter().any(|f| f.tripwire == tripwire) {
            return Some(tripwire);
        }
    }
    let wins = |a: &&&Finding| {
        fired.iter().all(|b| {
            b.strength <= a.strength
                && (lane(b.tripwire) == lane(a.tripwire)
                    || (b.strength < a.strength && b.strength * margin <= a.strength))
        })
    };
    fired.iter().find(wins).map(|f| f.tripwire)
}

/// What decides between findings of these strengths, when the lane of a tripwire is that of its class.
fn decided(strengths: &[(Tripwire, f32)], margin: f32) -> Option<Tripwire> {
    let finding = |(tripwire, strength): &(Tripwire, f32)| Finding {
        tripwire: *tripwire,
        hits: 1.0,
        density: 0.1,
        strength: *strength,
        evidence: vec![],
    };
    let found = Findings { findings: strengths.iter().map(finding).collect(), diff: false };
    let lane = |t: Tripwire| lanes().iter().position(|lane| *lane == t.default_threshold().class);
    found.decide(margin, lane).map(|finding| finding.tripwire)
}

#[test]
fn the_first_report_that_fired_decides_whatever_is_stronger() {
    let (report, error) = (Tripwire::LinkerError, Tripwire::CompilerError);
    assert_eq!(
        decided(&[(report, 1.0), (error, 9.0), (Tripwire::StlCode, 9.0)], 1.5),
        Some(report)
    );
    assert_eq!(
        decided(&[(report, 0.9), (error, 1.0)], 1.5),
        Some(error),
        "the first has not fired"
    );
}

#[test]
fn a_density_decides_if_it_is_much_stronger_than_those_of_other_lanes() {
    let (stl, algo) = (Tripwire::StlCode, Tripwire::AlgoCode);
    assert_eq!(decided(&[(stl, 3.0), (algo, 2.0)], 1.5), Some(stl), "just as many times as strong");
    assert_eq!(decided(&[(stl, 3.0), (algo, 2.1)], 1.5), None, "close");
    assert_eq!(decided(&[(stl, 3.0), (algo, 0.9)], 9.0), Some(stl), "the other has not fired");
    assert_eq!(decided(&[(stl, 0.9)], 1.0), None);
    assert_eq!(decided(&[(stl, 2.0), (algo, 2.0)], 1.0), None, "two equals, and no margin");
}

proptest! {
    #[test]
    fn hits_are_those_of_a_search_for_every_pattern(
        picked in prop::collection::vec(
            (0..PIECES.len(), prop::sample::select(vec![" ", "(", ":: ", ", ", "_", ""])), 0..40
        ),
    ) {
        let text: String = picked.iter().flat_map(|(i, end)| [PIECES[*i], *end]).collect();
        let found = router("", &[]).findings(&RouteInput { intent: None, parts: &[Part::user(&text)] });
        for tripwire in Tripwire::ALL {
            let hits = found.findings.iter().find(|f| f.tripwire == tripwire).map_or(0.0, |f| f.hits);
            prop_assert_eq!(hits, naive_hits(&text, tripwire), "{} in {:?}", tripwire, text);
        }
    }

    #[test]
    fn a_decision_follows_the_rules_one_by_one(
        strengths in prop::collection::vec(prop::sample::select(vec![0.0_f32, 0.9, 1.0, 1.2, 1.5, 2.0, 3.1]), 14),
        lanes in prop::collection::vec(prop::option::of(0..4_usize), 14),
        margin in prop::sample::select(vec![1.0_f32, 1.5, 2.0]),
    ) {
        let finding = |(tripwire, strength): (Tripwire, &f32)| Finding {
            tripwire, hits: 1.0, density: 0.1, strength: *strength, evidence: vec![],
        };
        let findings: Vec<Finding> = Tripwire::ALL.into_iter().zip(&strengths).map(finding).collect();
        let lane = |t: Tripwire| lanes[t as usize];
        let expected = naive_decision(&findings, margin, &lane);
        let found = Findings { findings, diff: false };
        let decided = found.decide(margin, lane);
        // Of two equally strong for one lane either may be named.
        prop_assert_eq!(decided.map(|f| lane(f.tripwire)), expected.map(lane));
        prop_assert_eq!(decided.map(|f| f.tripwire.is_report()), expected.map(Tripwire::is_report));
    }

    #[test]
    fn first_and_second_are_different_lanes_and_scores_are_probabilities(
        intent in prop::option::of(prop::sample::select(vec!["debug", "build_fix", "codegen", "x"])),
        picked in prop::collection::vec(0..PIECES.len(), 0..20),
        raw in prop::collection::vec(0.01_f32..1.0, 9),
    ) {
        let text: String = picked.iter().flat_map(|i| [PIECES[*i], " "]).collect();
        let sum: f32 = raw.iter().sum();
        let mut classes = lanes();
        classes.push(REJECT.into());
        let scores: Vec<(&str, f32)> = classes.iter().map(String::as_str).zip(raw.iter().map(|x| x / sum)).collect();
        let router = router("", &scores);
        let route = route(&router, intent, &text);
        prop_assert!(route.second.is_some() && route.primary != route.second);
        let sum: f32 = route.scores.iter().sum();
        prop_assert!(route.scores.iter().all(|s| (0.0..=1.0).contains(s)) && sum <= 1.0 + 1e-5);
        let lanes = lanes();
        let named = || lanes.iter().zip(&route.scores).map(|(lane, score)| (Some(lane), *score));
        let score = |of: &Option<String>| named().find(|(l, _)| l.is_some() && *l == of.as_ref()).map(|(_, s)| s);
        let others = named().filter(|(lane, _)| *lane != route.primary.as_ref());
        let best_other = others.map(|(_, score)| score).fold(0.0, f32::max);
        prop_assert_eq!(score(&route.second), Some(best_other));
        if route.primary.is_some() {
            prop_assert_eq!(score(&route.primary), route.score);
        }
        if matches!(route.why, Why::Classifier { .. }) {
            prop_assert!(route.score >= Some(best_other), "the most probable lane wins");
        }
    }
}
