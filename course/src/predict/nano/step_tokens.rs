//! The rows of a step with two requests.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "step-tokens",
    about: "tokens of two requests in one step",
    chapter: "one-token.md#two-requests-in-one-batch",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let budget = draw.pick(&[4, 6, 8, 8, 10, 16]);
    // (prompt, output tokens, computed) of request A, which runs.
    let decodes = !draw.one_in(3);
    let a = if decodes {
        let (prompt, output) = (draw.between(3, 9), draw.between(1, 5));
        (prompt, output, prompt + output - 1)
    } else {
        let computed = budget * draw.between(1, 2);
        (computed + draw.between(2, budget + 2), 0, computed)
    };
    // B waits, or it is in its prompt, too.
    let waits = !decodes || draw.one_in(2);
    let b = if waits {
        (draw.between(3, budget + 4), 0, 0)
    } else {
        let computed = budget - 1;
        (computed + draw.between(2, budget + 3), 0, computed)
    };

    let left = |request: (usize, usize, usize)| request.0 + request.1 - request.2;
    let first = left(a).min(budget);
    let second = left(b).min(budget - first);
    let line = |name: &str, does: &str, (prompt, output, computed): (usize, usize, usize)| {
        let output = match output {
            0 => "no output yet".into(),
            1 => "1 output token".into(),
            n => format!("{n} output tokens"),
        };
        format!("{name} {does}   prompt of {prompt}, {output}, {computed} computed")
    };
    let text = format!(
        "A step computes {budget} tokens at most, those of A first. The pool has room.\n\n\
         {}\n{}\n\n\
         How many tokens does the next step compute for A, and how many for B?",
        line("A", "runs ", a),
        line("B", if waits { "waits" } else { "runs " }, b)
    );
    let explain = |name: &str, request: (usize, usize, usize), room: usize, gets: usize| {
        let (prompt, output, computed) = request;
        let end = match gets {
            0 => "nothing of the step is left: 0".into(),
            n if n < left(request) => format!("{room} fit: {n}"),
            n => n.to_string(),
        };
        format!(
            "{name}: {prompt} + {output} - {computed} = {} not computed yet; {end}",
            left(request)
        )
    };
    let explanation = format!(
        "{}\n{}\nA prompt and decoding share a step: that is continuous batching.",
        explain("A", a, budget, first),
        explain("B", b, budget - first, second)
    );
    let list = |a: usize, b: usize| Answer::List(vec![a as i64, b as i64]);
    let request =
        |(prompt, output, computed): (usize, usize, usize)| json!([prompt, output, computed]);
    let facts = json!({ "budget": budget, "a": request(a), "b": request(b), "waits": waits });
    let alone = second.max(left(b).min(budget));
    Question::new(text, list(first, second), explanation, facts)
        .mistake(list(left(a), left(b)), "a step has no more tokens than that, both together")
        .mistake(list(first, alone), "what A has is gone: B has the rest of the step")
        .mistake(list(a.0 + a.1, b.0), "computed tokens are in the cache, and not computed again")
        .mistake(
            list(a.0 + a.1, second),
            "computed tokens are in the cache, and not computed again",
        )
        .mistake(list(0, alone), "a request that runs goes on while others are in their prompt")
        .mistake(list(first, 0), "B has the rest of the step; it need not wait for A's end")
        .mistake(list(first, 1), "a prompt is computed many tokens at a time, not one a step")
        .mistake(list(budget / 2, budget / 2), "shares are not even: each takes what it can use")
        .mistake(list(second, first), "first A, then B")
}
