use super::*;
use crate::check::report_fixture;

fn number(draw: &mut Draw) -> Question {
    let n = draw.below(100) as i64;
    Question::new(format!("{n}?"), Answer::Whole(n), n.to_string(), Value::Null)
}

const fn kind(name: &'static str, chapter: &'static str) -> Kind {
    Kind { name, about: "a number", chapter, draw: number }
}

static KINDS: [Kind; 3] = [kind("one", "c.md"), kind("two", "d.md#section"), kind("three", "e.md")];
static LAYER: Layer = Layer { name: "l1", kinds: &KINDS };

fn pages(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| n.to_string()).collect()
}

#[test]
fn a_seed_that_is_drawn_for_known_pages_asks_about_them_and_repeats_by_itself() {
    let known = pages(&["d.md", "e.md"]);
    let mut asked = BTreeSet::new();
    for random in 0..200 {
        let seed = LAYER.seed_among(&known, random, 200);
        assert!(seed < 200);
        asked.insert(LAYER.kind_for(seed).unwrap().name);
    }
    assert_eq!(asked, BTreeSet::from(["two", "three"]), "both, and no other");
}

#[test]
fn without_a_known_page_any_seed_will_do() {
    assert_eq!(LAYER.seed_among(&pages(&[]), 17, 200), 17);
    assert_eq!(LAYER.seed_among(&pages(&["other.md"]), 17, 200), 17);
}

#[test]
fn pages_are_known_of_exercises_that_are_done_tried_or_next() {
    let (_dir, mut workspace) = report_fixture::workspace();
    workspace.members[0].layer.exercises[1].chapter = "d.md".into();
    let mut state = State::load(&workspace);
    assert_eq!(pages_read(&workspace, &state, "l1"), pages(&["c.md"]), "the next one");
    assert_eq!(pages_read(&workspace, &state, "l2"), pages(&[]), "not a layer of this workspace");
    state.change("l1.b", |r| r.hints = 1);
    assert_eq!(pages_read(&workspace, &state, "l1"), pages(&["c.md", "d.md"]), "tried");
    state.verified("l1.a", true);
    state.verified("l1.b", true);
    assert_eq!(pages_read(&workspace, &state, "l1"), pages(&[]), "all done: all pages");
    workspace.learner = None;
    assert_eq!(pages_read(&workspace, &state, "l1"), pages(&[]), "the reference workspace");
}

#[test]
fn what_a_question_counts_from_is_in_its_words() {
    let from = |text: &str| {
        let answer = Answer::Whole(1);
        Question::new(text.into(), answer, String::new(), Value::Null).counts_from()
    };
    assert_eq!(from("Which token (counted\nfrom 0) is it?"), Some(0));
    assert_eq!(from("Which, counted from 1?"), Some(1));
    assert_eq!(from("Which seat does it get? The first seat is 0."), Some(0));
    assert_eq!(from("The first is 10. How many?"), None);
    assert_eq!(from("How many?"), None);
}
