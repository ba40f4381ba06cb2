//! A bad draft for a small model: `cargo run -p l4-sampler --example speculate`.
//!
//! No model is needed to see that the draft does not show: two rows of logits are enough.

use l1_tensor::{Runtime, RuntimeOptions, Tensor};
use l4_sampler::{
    Draft, DrawKey, History, Proposal, Purpose, Result, Row, Sampler, SamplingParams,
};

const WORDS: [&str; 5] = ["the", "a", "one", "no", "every"];
const DRAFTS: usize = 100_000;

fn main() -> Result<()> {
    let mut sampler = Sampler::new(&Runtime::new(RuntimeOptions::default())?, WORDS.len());
    let (params, history) = (SamplingParams::default(), History::default());
    let row = |i: usize| {
        let key = DrawKey { seed: i as u64, sample: 0, position: 0 };
        Row { params: &params, history: &history, ends: &[], mask: None, key }
    };
    // What the model says at the draft's place, and behind it; and what the draft model says.
    let model = [[2.0f32, 1.0, 0.5, 0.0, -1.0], [0.0, 0.0, 3.0, 0.0, 0.0]].concat();
    let guess = [0.5f32, 1.0, 1.0, 1.5, -3.0];
    let p = sampler.distribution(&model[..WORDS.len()], &row(0))?;
    let q = sampler.distribution(&guess, &row(0))?;

    let drafted: Vec<u32> =
        (0..DRAFTS).map(|i| q.draw(row(i).key.uniform(Purpose::Draw))).collect();
    let guess = Tensor::from_slice(&guess, &[1, WORDS.len()])?;
    let proposals: Vec<Proposal<'_>> = (0..DRAFTS)
        .map(|i| Proposal {
            tokens: &drafted[i..=i],
            draft: Draft::Logits(guess.view()),
            row: row(i),
            masks: &[],
        })
        .collect();
    let model = Tensor::from_slice(&model.repeat(DRAFTS), &[2 * DRAFTS, WORDS.len()])?;
    let mut verdicts = Vec::new();
    sampler.verify(model.view(), &proposals, &mut verdicts)?;

    let (mut accepted, mut came) = (0, [0; WORDS.len()]);
    for (draft, verdict) in drafted.iter().zip(verdicts) {
        let verdict = verdict?;
        accepted += verdict.accepted;
        let token = if verdict.accepted == 1 { *draft } else { verdict.token };
        came[token as usize] += 1;
    }
    println!("         model   draft   came out, of {DRAFTS} drafts");
    for (id, word) in WORDS.iter().enumerate() {
        let share = came[id] as f64 / DRAFTS as f64;
        println!("{word:7} {:.4}  {:.4}  {share:.4}", p.prob(id as u32), q.prob(id as u32));
    }
    let expected: f64 = (0..WORDS.len() as u32).map(|id| p.prob(id).min(q.prob(id))).sum();
    println!(
        "accepted {:.4} of them; the sum of min(p, q) is {expected:.4}",
        accepted as f64 / DRAFTS as f64
    );
    Ok(())
}
