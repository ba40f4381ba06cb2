//! What comes out has the law of plain sampling, whatever the draft. Chi-square tests over 100,000 verifications each, at
//! the significance stated in `support/chi_square.rs`.

use l4_sampler::{Draft, History, Proposal, Purpose, SamplingParams};

use super::chi_square::check_draws;
use super::toy::{Drafting, Speculation, Toy, key, law, row, sampler, tensor};

const DRAWS: usize = 100_000;
const BATCH: usize = 1000;

/// Parameters that leave more or less of a row.
fn settings() -> Vec<(&'static str, SamplingParams)> {
    let plain = SamplingParams::default;
    vec![
        ("plain", plain()),
        ("temperature 0.6", SamplingParams { temperature: 0.6, ..plain() }),
        ("temperature 1.7, top-k 3", SamplingParams { temperature: 1.7, top_k: 3, ..plain() }),
        ("top-p 0.8", SamplingParams { top_p: 0.8, ..plain() }),
        ("min-p 0.2, temperature 0.9", SamplingParams { min_p: 0.2, temperature: 0.9, ..plain() }),
        ("top-k 4, top-p 0.9", SamplingParams { top_k: 4, top_p: 0.9, ..plain() }),
    ]
}

/// What came of many drafts of one token, over the same two rows.
struct Counts {
    /// The token at the draft's place, accepted or in place of it.
    first: Vec<u64>,
    /// The token behind an accepted one.
    bonus: Vec<u64>,
    /// Drafts that were rejected, and accepted.
    fate: [u64; 2],
}

/// Verify `DRAWS` drafts of one token behind token 0: drawn from the draft model, or always `certain`.
fn drafts_of_one(toy: Toy, params: &SamplingParams, certain: Option<u32>) -> Counts {
    let mut sampler = sampler(toy.vocab, 2);
    let history = History::default();
    let (target, draft) = (toy.target(0), toy.draft(0));
    // The second row may say what it likes; here it does not depend on the draft.
    let logits = tensor(&vec![[target, toy.target(1)]; BATCH].concat());
    let q = sampler.distribution(&draft, &row(params, &history, key(0))).unwrap();
    let draft = tensor(&[draft]);
    let mut counts = Counts { first: vec![0; toy.vocab], bonus: vec![0; toy.vocab], fate: [0; 2] };
    let mut verdicts = Vec::new();
    for batch in 0..DRAWS / BATCH {
        let rows = (0..BATCH).map(|i| row(params, &history, key(batch * BATCH + i)));
        let drafted: Vec<_> = rows
            .map(|row| (row, certain.unwrap_or_else(|| q.draw(row.key.uniform(Purpose::Draw)))))
            .collect();
        let proposals: Vec<Proposal<'_>> = drafted
            .iter()
            .map(|(row, token)| Proposal {
                tokens: std::slice::from_ref(token),
                draft: if certain.is_some() { Draft::Certain } else { Draft::Logits(draft.view()) },
                row: *row,
                masks: &[],
            })
            .collect();
        sampler.verify(logits.view(), &proposals, &mut verdicts).unwrap();
        for ((_, token), verdict) in drafted.iter().zip(&verdicts) {
            let verdict = verdict.as_ref().unwrap();
            counts.fate[verdict.accepted] += 1;
            let first = if verdict.accepted == 1 { *token } else { verdict.token };
            counts.first[first as usize] += 1;
            if verdict.accepted == 1 {
                counts.bonus[verdict.token as usize] += 1;
            }
        }
    }
    counts
}

/// Three laws at once: of the token at the draft's place, of the bonus, and of acceptance, `sum of min(p, q)`.
fn check(what: &str, toy: Toy, params: &SamplingParams, certain: Option<u32>) {
    let counts = drafts_of_one(toy, params, certain);
    let p = law(&toy.target(0), params);
    let q = match certain {
        Some(token) => (0..toy.vocab).map(|i| f64::from(u8::from(i == token as usize))).collect(),
        None => law(&toy.draft(0), params),
    };
    let accepted: f64 = p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum();
    check_draws(format!("{what}: the first token"), &counts.first, &p);
    check_draws(
        format!("{what}: rejected (token 0 here) and accepted (token 1)"),
        &counts.fate,
        &[1.0 - accepted, accepted],
    );
    let bonus = law(&toy.target(1), params);
    if counts.fate[1] > 0 {
        check_draws(format!("{what}: the bonus token"), &counts.bonus, &bonus);
    }
}

#[test]
fn a_sampled_draft_leaves_the_law_as_it_is() {
    for (i, (name, params)) in settings().into_iter().enumerate() {
        let toy = Toy { vocab: 7, seed: 10 + i as u32, spread: 2.0, off: 0.3 + 0.1 * i as f32 };
        check(&format!("{name}, {toy:?}"), toy, &params, None);
    }
}

#[test]
fn a_certain_draft_leaves_the_law_as_it_is() {
    for (i, (name, params)) in settings().into_iter().enumerate() {
        let toy = Toy { vocab: 5, seed: 30 + i as u32, spread: 1.5, off: 0.0 };
        let token = i as u32 % 5;
        check(&format!("{name}, draft always {token}, {toy:?}"), toy, &params, Some(token));
    }
}

#[test]
fn a_vocabulary_of_many_blocks_keeps_its_law() {
    let toy = Toy { vocab: 300, seed: 70, spread: 3.0, off: 0.5 };
    check(&format!("{toy:?}"), toy, &SamplingParams::default(), None);
    let params = SamplingParams { top_k: 40, temperature: 0.8, ..SamplingParams::default() };
    check(&format!("top-k 40, temperature 0.8, {toy:?}"), toy, &params, None);
}

#[test]
fn a_draft_that_is_the_model_is_always_accepted() {
    let toy = Toy { vocab: 7, seed: 3, spread: 2.0, off: 0.0 };
    let counts = drafts_of_one(toy, &SamplingParams::default(), None);
    assert_eq!(counts.fate, [0, DRAWS as u64], "drafts rejected and accepted, q the same as p");
}

/// The law of an answer's first `n` tokens, by multiplying along each of them.
fn joint(spec: &Speculation<'_>, n: usize, penalized: fn(&mut [f32], &[u32])) -> Vec<f64> {
    let mut answers = vec![(Vec::new(), 1.0)];
    for _ in 0..n {
        answers = answers
            .into_iter()
            .flat_map(|(tokens, prob): (Vec<u32>, f64)| {
                let mut logits = spec.toy.target(*tokens.last().unwrap_or(&spec.prompt));
                penalized(&mut logits, &tokens);
                let p = law(&logits, spec.params);
                (0..spec.toy.vocab as u32)
                    .map(move |t| ([&tokens[..], &[t]].concat(), prob * p[t as usize]))
            })
            .collect();
    }
    answers.into_iter().map(|(_, prob)| prob).collect()
}

/// Answer `DRAWS` requests by drafts, and hold the first `n` tokens against their joint law.
fn check_joint(what: &str, spec: Speculation<'_>, n: usize, penalized: fn(&mut [f32], &[u32])) {
    let mut sampler = sampler(spec.toy.vocab, 2);
    let want = joint(&spec, n, penalized);
    let mut counts = vec![0; want.len()];
    for batch in 0..DRAWS / BATCH {
        let keys = (0..BATCH).map(|i| key(batch * BATCH + i));
        for answer in spec.answers(&mut sampler, keys, n) {
            let place = |place, token: &u32| place * spec.toy.vocab + *token as usize;
            counts[answer.tokens[..n].iter().fold(0, place)] += 1;
        }
    }
    let digits = format!("answers of {n} tokens, numbered in base {}", spec.toy.vocab);
    check_draws(format!("{what}, k {}: {digits}", spec.k), &counts, &want);
}

#[test]
fn whole_answers_have_their_joint_law() {
    let params = SamplingParams { temperature: 0.9, ..SamplingParams::default() };
    let toy = Toy { vocab: 4, seed: 50, spread: 1.5, off: 0.6 };
    for drafting in [Drafting::Sampled, Drafting::Certain] {
        let spec = Speculation { toy, params: &params, drafting, k: 2, prompt: 0 };
        check_joint(&format!("{drafting:?}, {toy:?}"), spec, 3, |_, _| ());
    }
}

#[test]
fn answers_under_penalties_have_their_joint_law() {
    let params = SamplingParams { presence_penalty: 1.5, ..SamplingParams::default() };
    let toy = Toy { vocab: 4, seed: 51, spread: 1.5, off: 0.4 };
    let spec = Speculation { toy, params: &params, drafting: Drafting::Sampled, k: 2, prompt: 0 };
    check_joint(&format!("presence penalty 1.5, {toy:?}"), spec, 3, |logits, answer| {
        for (id, logit) in logits.iter_mut().enumerate() {
            if answer.contains(&(id as u32)) {
                *logit -= 1.5;
            }
        }
    });
}
