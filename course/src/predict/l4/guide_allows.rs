//! What a guide lets a model say next.

use serde_json::json;

use super::drawn::{Table, listed};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "guide-allows",
    about: "tokens that a list of choices allows",
    chapter: "l4-sampler/guides.md",
    draw,
};

/// Choices that begin alike, or are the beginning of another.
const CHOICES: [&[&str]; 9] = [
    &["red", "green", "grey"],
    &["car", "cart", "cat"],
    &["yes", "yesterday", "no"],
    &["on", "one", "only"],
    &["north", "northwest", "south"],
    &["low", "lower", "long"],
    &["one", "two", "ten", "three"],
    &["true", "false", "null"],
    &["left", "right", "rise"],
];

/// Tokens in a vocabulary, without the one that ends an answer.
const WORDS: usize = 7;

fn draw(draw: &mut Draw) -> Question {
    let choices = draw.pick(&CHOICES);
    let written = draw.pick(choices);
    let so_far = &written[..draw.between(0, written.len())];
    let rests: Vec<&str> = choices.iter().filter_map(|c| c.strip_prefix(so_far)).collect();
    // Where one letter must come, the guide says itself how it is spelled: nothing is asked then.
    let open = rests.iter().any(|rest| rest.get(..1) != rests[0].get(..1));
    let Some(words) = words(draw, choices, &rests).filter(|_| open || rests.contains(&"")) else {
        return self::draw(draw);
    };

    let allowed = |passes: &dyn Fn(&str) -> bool, end: bool| {
        let words = (0..WORDS).filter(|i| passes(&words[*i]));
        Answer::Rows(words.chain(end.then_some(WORDS)).map(|id| id as i64).collect())
    };
    let leads_on = |word: &str| rests.iter().any(|rest| rest.starts_with(word));
    let may_end = rests.contains(&"");
    let quoted =
        |texts: &[&str]| listed(&texts.iter().map(|t| format!("\"{t}\"")).collect::<Vec<_>>());
    let ids: Vec<usize> = (0..=WORDS).collect();
    let texts: Vec<&str> = words.iter().map(String::as_str).chain(["(end)"]).collect();
    let table = Table::new().row("token", &ids).row("text", &texts);
    let text = format!(
        "A guide allows the answers {}. The vocabulary is\n\n{table}\n\n\
         The answer so far is \"{so_far}\". Which tokens does the guide allow next?\n\
         In ascending order.",
        quoted(choices)
    );
    let mut left: Vec<&str> = rests.iter().copied().filter(|rest| !rest.is_empty()).collect();
    left.sort_unstable();
    let go_on = match left.as_slice() {
        [] => "Nothing can follow".to_string(),
        rests => format!(
            "What can follow is {}; a token may be a beginning of one of these",
            quoted(rests)
        ),
    };
    let end = match may_end {
        true => format!("\"{so_far}\" is an answer: it may end."),
        false => format!("\"{so_far}\" is no answer yet: it may not end."),
    };
    let right = allowed(&leads_on, may_end);
    if right == Answer::Rows(Vec::new()) {
        // A vocabulary that cannot say what is allowed is an error, and no question.
        return self::draw(draw);
    }
    let explanation = format!("{}\n{end}\nAllowed: {right}", wrapped(&format!("{go_on}.")));
    let facts = json!({ "choices": choices, "so_far": so_far, "words": words });
    let mut question = Question::new(text, right, explanation, facts);
    for (turn, why) in [
        (
            allowed(&leads_on, !may_end),
            if may_end {
                "what is an answer may end, even if it could go on"
            } else {
                "it may end only where the answer is complete"
            },
        ),
        (
            allowed(&|word| rests.contains(&word), may_end),
            "a token need not complete an answer: others may follow",
        ),
        (
            allowed(&|word| leads_on(word) && word.len() == 1, may_end),
            "a token may be several letters, as long as an answer goes on so",
        ),
        (
            allowed(&|word| choices.iter().any(|choice| choice.starts_with(word)), may_end),
            "the token goes on behind what is written, it does not begin again",
        ),
        (
            allowed(
                &|word| {
                    let said = |rest: &&str| !rest.is_empty() && word.starts_with(rest);
                    leads_on(word) || rests.iter().any(said)
                },
                may_end,
            ),
            "a token may not say more than any answer does",
        ),
        (
            allowed(&|word| rests.iter().any(|rest| rest.starts_with(&word[..1])), may_end),
            "all of a token's letters must fit, not the first alone",
        ),
        (
            allowed(&|word| written[so_far.len()..].starts_with(word), may_end),
            "every choice that begins so is open yet",
        ),
    ] {
        // Nothing at all cannot be answered.
        if turn != Answer::Rows(Vec::new()) {
            question = question.mistake(turn, why);
        }
    }
    question
}

/// Words of which some go on, some go too far and some are wrong; `None` if there are too few.
fn words(draw: &mut Draw, choices: &[&str], rests: &[&str]) -> Option<Vec<String>> {
    let mut pool: Vec<String> = Vec::new();
    for rest in rests {
        pool.extend((1..=rest.len().min(4)).map(|n| rest[..n].to_string()));
        pool.push(format!("{rest}s"));
        if !rest.is_empty() {
            pool.push(format!("{}a", &rest[..1]));
        }
    }
    for choice in choices {
        pool.extend([&choice[..1], &choice[..2], &choice[choice.len() - 1..]].map(String::from));
    }
    pool.sort_unstable();
    pool.dedup();
    if pool.len() < WORDS {
        return None;
    }
    Some((0..WORDS).map(|_| pool.swap_remove(draw.below(pool.len()))).collect())
}
