//! How many ids a prompt becomes, with BOS where it belongs or twice.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "bos-ids",
    about: "how many ids a prompt becomes",
    chapter: "l2-model/chat.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let words = draw.between(3, 60);
    let adds = !draw.one_in(3);
    let written = draw.one_in(2);
    let asked = draw.one_in(2);
    let cached = draw.one_in(2).then(|| draw.between(1, 20));

    let added = usize::from(adds && asked);
    let spelled = usize::from(written);
    let ids = words + added + spelled;
    let answer = ids + cached.unwrap_or(0);

    let model = if adds {
        "A tokenizer whose post-processor puts BOS in front"
    } else {
        "A tokenizer without a BOS rule (its post-processor adds nothing)"
    };
    let prompt = if written {
        format!(
            "The prompt is the special token <s>, its BOS, written out, and\nbehind it text of {words} tokens."
        )
    } else {
        format!("The prompt is text of {words} tokens and no special token.")
    };
    let state = match cached {
        Some(n) => format!(
            "The ids are fed to a session that holds {n} tokens. How many does it hold then?"
        ),
        None => "How many ids come?".into(),
    };
    let text = format!("{model}.\n{prompt}\n\nencode(prompt, {asked})\n\n{state}");
    let mut explanation = format!("text: {words}\n");
    explanation += match (adds, asked) {
        (true, true) => "add_special is true: BOS in front, 1\n",
        (true, false) => "add_special is false: nothing in front\n",
        (false, _) => "this model has no BOS rule: nothing in front\n",
    };
    if written {
        explanation += "special tokens written out become their ids: 1\n";
    }
    if let Some(n) = cached {
        explanation += &format!("in the session already: {n}\n");
    }
    explanation += &format!("together {answer}");
    if added + spelled == 2 {
        explanation += "; two of them are BOS, which the model has never seen:\n\
                        encode a rendered template with false";
    }
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "words": words, "written": written, "asked": asked, "adds": adds, "held": cached,
    });
    let mut question = Question::new(text, whole(answer), explanation, facts);
    if added + spelled == 2 {
        question = question
            .mistake(whole(answer - 1), "the second BOS is not removed: it is doubled")
            .mistake(whole(answer - 2), "one BOS was written out and one is added");
    } else if written {
        question = question
            .mistake(whole(answer - 1), "a special token written out becomes its id")
            .mistake(
                whole(answer + 1),
                "nothing is added here; look at add_special and the model's rule",
            );
    } else if added == 1 {
        question = question
            .mistake(whole(answer - 1), "add_special is true, and the model has a BOS rule");
    } else {
        question = question.mistake(
            whole(answer + 1),
            if asked { "this model has no BOS to add" } else { "add_special is false: no BOS" },
        );
    }
    if cached.is_some() {
        question = question.mistake(whole(ids), "the session held some already");
    }
    question.mistake(whole(answer + 2), "one BOS too many at each end: nothing is added behind")
}
