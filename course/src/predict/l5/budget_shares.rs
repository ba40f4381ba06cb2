//! How the tokens of a step are dealt out.

use serde_json::json;

use super::drawn::table;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::joined;

pub const KIND: Kind = Kind {
    name: "budget-shares",
    about: "tokens each request gets of a step",
    chapter: "l5-scheduler/budget.md",
    draw,
};

/// What decides: all of a step, the threshold, whether prompts may be cut.
#[derive(Clone, Copy)]
struct Rules {
    budget: usize,
    /// 0 for none.
    threshold: usize,
    /// Whether the threshold is lifted for a request that is alone.
    alone_is_free: bool,
    chunked: bool,
}

impl Rules {
    /// The tokens of each: those who run first. `running` of `wanted` run.
    fn deal(self, wanted: &[usize], running: usize) -> Vec<usize> {
        let free = self.threshold == 0 || (self.alone_is_free && wanted.len() == 1);
        let most = if free { usize::MAX } else { self.threshold };
        let mut left = self.budget;
        let mut stopped = false;
        let get = |(i, wanted): (usize, &usize)| {
            let wanted = (*wanted).min(most);
            stopped |= i >= running && !self.chunked && wanted > left;
            let get = if stopped { 0 } else { wanted.min(left) };
            left -= get;
            get
        };
        wanted.iter().enumerate().map(get).collect()
    }
}

fn draw(draw: &mut Draw) -> Question {
    let chunked = !draw.one_in(4);
    let budget = draw.between(4, 10) * 4;
    let threshold = if draw.one_in(3) { 0 } else { draw.between(5, budget / 2 + 3) };
    let rules = Rules { budget, threshold, alone_is_free: true, chunked };
    let alone = threshold > 0 && draw.one_in(8);
    // Some write, one may be in the midst of its prompt, and some wait.
    let writing = if alone { 0 } else { draw.between(0, 3) };
    let midst = usize::from(chunked && !alone && writing > 0 && draw.one_in(2));
    let waiting = if alone { 1 } else { draw.between(1, 3).max(2 - (writing + midst).min(2)) };
    let mut wanted = vec![1; writing];
    for _ in 0..midst + waiting {
        let most = if chunked { 2 * budget } else { budget - 1 };
        wanted.push(draw.between(3, most));
    }
    let running = writing + midst;
    let right = rules.deal(&wanted, running);
    if right.len() > 1 && right == wanted {
        return self::draw(draw);
    }

    let rows: Vec<Vec<String>> = wanted
        .iter()
        .enumerate()
        .map(|(i, wanted)| {
            let is = if i < running { "runs" } else { "waits" };
            vec![i.to_string(), is.into(), wanted.to_string()]
        })
        .collect();
    let cut = match (threshold, chunked) {
        (0, true) => "no long_prefill_token_threshold".into(),
        (0, false) => "no long_prefill_token_threshold; no chunked prefill".into(),
        (t, true) => format!("long_prefill_token_threshold {t}"),
        (t, false) => format!("long_prefill_token_threshold {t}; no chunked prefill"),
    };
    let text = format!(
        "A step has {budget} tokens; {cut}.\n\
         There are blocks and seats for all of these requests:\n\n{}\n\n\
         How many tokens does each get?",
        table(&["request", "", "tokens to compute"], &rows)
    );
    let mut explanation = match threshold {
        0 => String::new(),
        _ if wanted.len() == 1 => "It is alone, so the threshold does not count.\n".to_string(),
        t => format!("There is more than one request, so none gets more than {t}.\n"),
    };
    let mut left = budget;
    for (i, get) in right.iter().enumerate() {
        let why = match get {
            0 if left == 0 => "nothing is left",
            0 if i > running && right[i - 1] == 0 => "it waits behind that one",
            0 => "it needs all of its tokens at once, and so many are not left",
            _ => "",
        };
        explanation += &match get {
            0 => format!("request {i}: 0; {why}\n"),
            _ => format!("request {i}: {get} of {left}\n"),
        };
        left -= get;
    }
    explanation += &joined(&right);
    let list = |shares: &[usize]| Answer::List(shares.iter().map(|n| *n as i64).collect());
    let facts = json!({
        "budget": budget, "threshold": threshold, "chunked": chunked,
        "wanted": wanted, "writing": writing, "running": running,
    });
    let with = |rules: Rules| list(&rules.deal(&wanted, running));
    let undiminished: Vec<usize> = wanted
        .iter()
        .map(|n| (*n).min(if threshold == 0 { usize::MAX } else { threshold }).min(budget))
        .collect();
    let mut even = right.clone();
    even.fill(budget / wanted.len());
    let reversed: Vec<usize> = {
        let swapped: Vec<usize> =
            wanted[running..].iter().chain(&wanted[..running]).copied().collect();
        let mut shares = rules.deal(&swapped, 0);
        shares.rotate_left(waiting);
        shares
    };
    Question::new(text, list(&right), explanation, facts)
        .mistake(with(Rules { threshold: 0, ..rules }), "the threshold limits the tokens of each request")
        .mistake(
            with(Rules { alone_is_free: false, ..rules }),
            "the threshold does not count for a request that is alone",
        )
        .mistake(
            list(&undiminished),
            "what one got is gone: the next one gets of what is left",
        )
        .mistake(
            with(Rules { chunked: !chunked, ..rules }),
            if chunked {
                "a prompt may be computed in pieces"
            } else {
                "a waiting request gets all that it asks for, or it waits, and so do those behind it"
            },
        )
        .mistake(list(&reversed), "those who run come first")
        .mistake(list(&wanted), "a step has no more tokens than that")
        .mistake(list(&even), "shares are not even: each takes what it can use, in order")
}
