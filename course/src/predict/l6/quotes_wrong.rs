//! How many quotes were wrong.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::l5::drawn::table;

pub const KIND: Kind = Kind {
    name: "quotes-wrong",
    about: "how many quotes were wrong by more than 25%",
    chapter: "l6-ensemble/quotes.md",
    draw,
};

struct Quoted {
    first: usize,
    per_token: usize,
    expected: usize,
    came: usize,
    ended: usize,
}

impl Quoted {
    /// Promised end for so many output tokens.
    fn promise(&self, tokens: usize) -> usize {
        self.first + self.per_token * (tokens - 1)
    }

    /// Whether it ended more than a quarter, and more than 100 ms, before or after a promise.
    fn wrong(&self, promise: usize) -> bool {
        let error = self.ended.abs_diff(promise);
        4 * error > promise && error > 100
    }
}

fn draw(draw: &mut Draw) -> Question {
    let all: Vec<Quoted> = (0..draw.between(4, 5))
        .map(|_| {
            let first = 100 * draw.between(1, 8);
            let per_token = draw.pick(&[10, 20, 30]);
            let (expected, came) = (10 * draw.between(1, 9) + 1, 10 * draw.between(1, 9) + 1);
            let promise = first + per_token * (came - 1);
            // At a quarter itself the answer would hang on a rounding.
            let percent = draw.pick(&[60, 70, 80, 90, 100, 110, 120, 130, 150]);
            Quoted { first, per_token, expected, came, ended: promise * percent / 100 }
        })
        .collect();
    let count = |wrong: &dyn Fn(&Quoted) -> bool| {
        Answer::Whole(all.iter().filter(|quoted| wrong(quoted)).count() as i64)
    };
    let right = count(&|q| q.wrong(q.promise(q.came)));

    let rows: Vec<Vec<usize>> =
        all.iter().map(|q| vec![q.first, q.per_token, q.expected, q.came, q.ended]).collect();
    let columns = ["first token (ms)", "a token (ms)", "expected", "came", "ended (ms)"];
    let text = format!(
        "These requests were quoted a first token and a time for each other one. So\n\
         many output tokens were expected, and so many came:\n\n{}\n\n\
         How many quotes of the end were wrong, for the output that came: by more than\n\
         25%, and by more than 100 ms?",
        table(&columns, &rows)
    );
    let lines: Vec<String> = all
        .iter()
        .map(|q| {
            let promise = q.promise(q.came);
            format!(
                "{} + {} x {} = {promise} ms, ended at {} ms: {}",
                q.first,
                q.came - 1,
                q.per_token,
                q.ended,
                if q.wrong(promise) { "wrong" } else { "right" }
            )
        })
        .collect();
    let facts = json!({
        "quotes": all.iter().map(|q| [q.first, q.per_token, q.expected, q.came, q.ended]).collect::<Vec<_>>(),
    });
    Question::new(text, right, lines.join("\n"), facts)
        .mistake(
            count(&|q| q.wrong(q.promise(q.expected))),
            "the client decides how long its output is: take the tokens that came",
        )
        .mistake(
            count(&|q| q.ended > q.promise(q.came) && q.wrong(q.promise(q.came))),
            "a quote that was too long is wrong, too",
        )
        .mistake(
            count(&|q| q.ended != q.promise(q.came)),
            "up to a quarter a quote counts as right",
        )
        .mistake(
            count(&|q| q.wrong(q.promise(q.came + 1))),
            "the first token is one of the tokens that came",
        )
}
