//! How many keys a query sees.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{joined, wrapped};

pub const KIND: Kind = Kind {
    name: "keys-seen",
    about: "how many keys each query of a step sees",
    chapter: "l3-paged-kv/attention.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let computed = draw.pick(&[0, 1, 3, 8, 14, 16, 20]) + draw.between(0, 3);
    let q_len = draw.between(2, 4);
    let window = draw.one_in(2).then(|| draw.between(3, 12));

    let kv_len = computed + q_len;
    let behind = |i: usize| kv_len - q_len + i + 1;
    let seen = |keys: usize| window.map_or(keys, |w| keys.min(w));
    let slides = match window {
        Some(w) => {
            format!("The layer has a sliding window of {w} tokens, the query's own included. ")
        }
        None => String::new(),
    };
    let text = wrapped(&format!(
        "A sequence with {computed} tokens stored brings {q_len} more in this step: q_len = {q_len}, \
         kv_len = {kv_len}. {slides}How many keys does each of its queries see?"
    ));
    let mut explanation =
        "Query i has position kv_len - q_len + i and sees every key up to its own.\n".to_string();
    for i in 0..q_len {
        let all = behind(i);
        explanation += &format!("query {i}: position {}, keys 0 to {}", all - 1, all - 1);
        explanation += &match window {
            Some(w) if w < all => format!(", of which the window leaves {w}\n"),
            _ => format!(": {all}\n"),
        };
    }
    let each =
        |keys: &dyn Fn(usize) -> usize| Answer::List((0..q_len).map(|i| keys(i) as i64).collect());
    let facts = json!({ "computed": computed, "q_len": q_len, "window": window });
    let numbers: Vec<usize> = (0..q_len).map(|i| seen(behind(i))).collect();
    explanation += &joined(&numbers);
    Question::new(text, each(&|i| seen(behind(i))), explanation, facts)
        .mistake(each(&|_| seen(kv_len)), "a query does not see the keys behind it")
        .mistake(each(&|i| seen(i + 1)), "what is stored is seen too: the mask begins at computed")
        .mistake(each(&|_| seen(computed)), "a query sees the step's keys up to its own")
        .mistake(each(&|i| seen(computed + i)), "a query sees its own key")
        .mistake(each(&behind), "the window ends that many tokens back")
        .mistake(
            each(&|i| window.map_or(behind(i), |w| behind(i).min(w + 1))),
            "the window counts the query's own key",
        )
}
