//! What a step takes by the cost model.

use serde_json::json;

use super::drawn::table;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{separated, significant};

pub const KIND: Kind = Kind {
    name: "step-time",
    about: "what a step takes by the cost model",
    chapter: "l5-scheduler/simulator.md",
    draw,
};

/// Costs in microseconds, and of a KiB of keys and values in nanoseconds.
#[derive(Clone, Copy)]
struct Costs {
    base: usize,
    prefill: usize,
    decode: usize,
    kv: usize,
    /// KiB of keys and values of a token.
    kib: usize,
}

impl Costs {
    /// Milliseconds of a step.
    fn time(self, prefill: usize, decode: usize, kv: usize) -> f64 {
        let micros = (self.base + self.prefill * prefill + self.decode * decode) as f64;
        (micros + (self.kv * self.kib * kv) as f64 / 1000.0) / 1000.0
    }
}

fn draw(draw: &mut Draw) -> Question {
    let costs = Costs {
        base: draw.between(20, 60) * 100,
        prefill: draw.between(10, 40) * 10,
        decode: draw.between(10, 60) * 10,
        kv: draw.between(8, 40) * 5,
        kib: draw.pick(&[16, 24, 32, 64]),
    };
    let n = draw.between(2, 4);
    let long = draw.below(n);
    let rows: Vec<[usize; 2]> = (0..n)
        .map(|i| {
            let len = if i == long { draw.between(4, 20) } else { 1 };
            let computed = match len {
                1 => draw.between(5, 80) * 10,
                _ if draw.one_in(2) => 0,
                _ => draw.between(1, 20) * 8,
            };
            [computed, len]
        })
        .collect();

    let prefill: usize = rows.iter().map(|[_, len]| *len).filter(|len| *len > 1).sum();
    let decode = n - 1;
    let keys: Vec<usize> = rows.iter().map(|[computed, len]| computed + len).collect();
    let kv: usize = keys.iter().sum();
    let before: usize = rows.iter().map(|[computed, _]| *computed).sum();
    let right = costs.time(prefill, decode, kv);
    let Costs { base, prefill: per_prefill, decode: per_decode, kv: per_kib, kib } = costs;
    let lines: Vec<Vec<usize>> =
        rows.iter().enumerate().map(|(i, [computed, len])| vec![i, *computed, *len]).collect();
    let text = format!(
        "By the cost model a step takes {base} us, {per_prefill} us a prefill token,\n\
         {per_decode} us a request that decodes, and {per_kib} ns a KiB of keys and values that\n\
         are read. A token has {kib} KiB.\n\n{}\n\n\
         How many milliseconds does the step take?",
        table(&["request", "computed", "this step"], &lines)
    );
    let explanation = format!(
        "any step:         {base} us\n\
         prefill tokens:   {prefill} * {per_prefill} us = {} us\n\
         decoding:         {decode} * {per_decode} us = {} us\n\
         keys and values:  ({}) * {kib} KiB * {per_kib} ns = {} us\n\
         together:         {} ms",
        prefill * per_prefill,
        decode * per_decode,
        separated(&keys, " + "),
        significant((kv * kib * per_kib) as f64 / 1000.0),
        significant(right)
    );
    let facts = json!({
        "base": base, "prefill": per_prefill, "decode": per_decode, "kv": per_kib, "kib": kib,
        "rows": rows,
    });
    let real = |ms: f64| Answer::Real(ms);
    Question::new(text, real(right), explanation, facts)
        .mistake(real(right * 1000.0), "those are microseconds")
        .mistake(
            real(costs.time(prefill, decode, before)),
            "a row reads its own new tokens, too: its length after the step",
        )
        .mistake(real(costs.time(prefill, decode, 0)), "keys and values that are read take time")
        .mistake(
            real(Costs { kib: 1, ..costs }.time(prefill, decode, kv)),
            "the price is for a KiB, and a token has more",
        )
        .mistake(
            real(costs.time(0, n, kv)),
            "a row of several tokens is a prefill: each of them counts",
        )
        .mistake(
            real(costs.time(prefill, n, kv)),
            "a prompt does not decode as well in the same step",
        )
        .mistake(
            real(Costs { base: 0, ..costs }.time(prefill, decode, kv)),
            "any step takes something",
        )
}
