//! A steady step allocates nothing: counted, with an allocator that counts.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;
#[path = "sampler/given.rs"]
#[allow(dead_code)]
mod given;

use counting::fewest_allocations;
use given::{Asked, SHAPES, Stages, asked, runtime, tensor};
use l1_tensor::cpu::Isa;
use l4_sampler::{Logits, LogprobsOf, LogprobsRequest, Row, Sampled, Sampler};

const VOCAB: usize = 3000;

/// One request of every kind: with and without each of the stages.
fn crowd(n: usize) -> (Vec<Vec<f32>>, Vec<Asked>) {
    let of = |i: usize| {
        let on = |bit: usize| i >> bit & 1 == 0;
        let stages = Stages {
            before: on(0),
            temperature: true,
            top_k: on(1),
            top_p: on(2),
            min_p: on(3),
            typical_p: on(4),
        };
        let mut asked = asked(stages, VOCAB, i as u64);
        if i.is_multiple_of(7) {
            asked.params.temperature = 0.0;
        }
        let of = [LogprobsOf::Raw, LogprobsOf::Processed][i / 2 % 2];
        asked.params.logprobs = on(1).then_some(LogprobsRequest { top: 5, of });
        (SHAPES[i % SHAPES.len()].row(VOCAB, i as u64), asked)
    };
    (0..n).map(of).unzip()
}

#[test]
fn a_steady_step_allocates_nothing_on_any_number_of_threads() {
    let (logits, asked) = crowd(32);
    for threads in [1, 2] {
        let mut sampler = Sampler::new(&runtime(Isa::best(), threads), VOCAB);
        let given = tensor(&logits);
        let mut handed_over = tensor(&logits);
        let rows: Vec<Row<'_>> = asked.iter().map(Asked::row).collect();
        let mut out = vec![Sampled::default(); rows.len()];
        let mut step = || {
            sampler.sample(Logits::Shared(given.view()), &rows, &mut out).unwrap();
            sampler.sample(Logits::Owned(handed_over.view_mut()), &rows, &mut out).unwrap();
        };
        // Which thread has which row is chance: in a few steps each has had one of every kind.
        (0..5).for_each(|_| step());
        let made = fewest_allocations(5, step);
        assert_eq!(made, 0, "two steps of 32 rows on {threads} threads");
        assert!(out.iter().any(|o| o.logprobs.as_ref().is_some_and(|about| about.top.len() == 5)));
    }
}
