//! Models that are a formula, what they say worked out slowly, and a loop around them that drafts and verifies.

use l1_tensor::{Precision, PrecisionRequest, Runtime, RuntimeOptions, Tensor};
use l4_sampler::{
    Draft, DrawKey, History, Proposal, Purpose, Row, RowError, Sampler, SamplingParams, Verified,
};

pub type Verdicts = Vec<Result<Verified, RowError>>;

pub fn sampler(vocab: usize, threads: usize) -> Sampler {
    let rt = Runtime::new(RuntimeOptions {
        precision: PrecisionRequest::Exactly(Precision::F32),
        threads: Some(threads),
        ..Default::default()
    });
    Sampler::new(&rt.unwrap(), vocab)
}

/// Rows of logits, one after the other.
pub fn tensor(rows: &[Vec<f32>]) -> Tensor {
    Tensor::from_slice(&rows.concat(), &[rows.len(), rows[0].len()]).unwrap()
}

/// Judge proposals over these rows.
pub fn verify(sampler: &mut Sampler, rows: &[Vec<f32>], proposals: &[Proposal<'_>]) -> Verdicts {
    let mut out = Vec::new();
    sampler.verify(tensor(rows).view(), proposals, &mut out).unwrap();
    out
}

/// A row that no guide or end token has anything to do with.
pub fn row<'a>(params: &'a SamplingParams, history: &'a History, key: DrawKey) -> Row<'a> {
    Row { params, history, ends: &[], mask: None, key }
}

/// The key of sequence `i` at its first token.
pub fn key(i: usize) -> DrawKey {
    DrawKey { seed: i as u64, sample: 0, position: 0 }
}

/// A number in `[-1, 1)` that looks random: number `i` of series `seed`. Mixed from its bits by SplitMix64 (Steele, Lea,
/// Flood, "Fast Splittable Pseudorandom Number Generators", 2014), which no law here is about.
pub fn noise(seed: u32, i: u32) -> f32 {
    let mut z = (u64::from(seed) << 32 | u64::from(i)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ z >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// A model whose logits follow from the last token alone, and a draft for it that is `off` between 0 (the model itself)
/// and 1 (something else altogether).
#[derive(Clone, Copy, Debug)]
pub struct Toy {
    pub vocab: usize,
    pub seed: u32,
    /// The largest logit there may be, and minus the smallest.
    pub spread: f32,
    pub off: f32,
}

impl Toy {
    /// What the model says behind `last`.
    pub fn target(&self, last: u32) -> Vec<f32> {
        (0..self.vocab as u32).map(|i| self.spread * noise(self.seed, last * 1000 + i)).collect()
    }

    /// What the draft says behind `last`.
    pub fn draft(&self, last: u32) -> Vec<f32> {
        let other = Self { seed: self.seed + 1000, ..*self }.target(last);
        let mix = |(p, q): (f32, f32)| p * (1.0 - self.off) + q * self.off;
        self.target(last).into_iter().zip(other).map(mix).collect()
    }
}

/// Probabilities of a row by the definitions: temperature, top-k, top-p, min-p. In f64, over a sorted row.
pub fn law(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let t = f64::from(params.temperature);
    let mut shares: Vec<(usize, f64)> =
        logits.iter().map(|x| (f64::from(*x) / t).exp()).enumerate().collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    if params.top_k > 0 {
        shares.truncate(params.top_k);
    }
    let total: f64 = shares.iter().map(|s| s.1).sum();
    let mut before = 0.0;
    if params.top_p < 1.0 {
        shares.retain(|(_, share)| {
            let kept = before < f64::from(params.top_p) * total;
            before += share;
            kept
        });
    }
    let least = shares[0].1 * f64::from(params.min_p);
    shares.retain(|(_, share)| *share >= least);
    let total: f64 = shares.iter().map(|s| s.1).sum();
    let mut probs = vec![0.0; logits.len()];
    for (id, share) in shares {
        probs[id] = share / total;
    }
    probs
}

/// How a loop drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drafting {
    /// The likeliest token of the draft model.
    Certain,
    /// A draw from the draft model.
    Sampled,
}

/// A request that is answered by drafts of `k` tokens.
#[derive(Clone, Copy)]
pub struct Speculation<'a> {
    pub toy: Toy,
    pub params: &'a SamplingParams,
    pub drafting: Drafting,
    pub k: usize,
    /// The prompt's only token.
    pub prompt: u32,
}

/// An answer so far.
pub struct Answer {
    pub tokens: Vec<u32>,
    history: History,
    key: DrawKey,
    /// Verifications that it took.
    pub rounds: usize,
}

/// A draft, and what both models say along it.
struct Drafted {
    tokens: Vec<u32>,
    target: Vec<Vec<f32>>,
    draft: Tensor,
}

impl Speculation<'_> {
    /// Answers of at least `len` tokens, one for each key, all in one batch.
    pub fn answers(
        &self,
        sampler: &mut Sampler,
        keys: impl Iterator<Item = DrawKey>,
        len: usize,
    ) -> Vec<Answer> {
        let begin = |key| {
            let history = History::new(&[self.prompt], len + self.k + 1);
            Answer { tokens: Vec::new(), history, key, rounds: 0 }
        };
        let mut answers: Vec<Answer> = keys.map(begin).collect();
        loop {
            let mut open: Vec<&mut Answer> =
                answers.iter_mut().filter(|answer| answer.tokens.len() < len).collect();
            if open.is_empty() {
                return answers;
            }
            let drafts: Vec<Drafted> = open.iter().map(|a| self.draft(sampler, a)).collect();
            let rows: Vec<Vec<f32>> = drafts.iter().flat_map(|d| d.target.clone()).collect();
            let propose = |(answer, drafted)| self.proposal(answer, drafted);
            let proposals: Vec<Proposal<'_>> =
                open.iter().map(|a| &**a).zip(&drafts).map(propose).collect();
            let verdicts = verify(sampler, &rows, &proposals);
            drop(proposals);
            for ((answer, drafted), verdict) in open.iter_mut().zip(&drafts).zip(verdicts) {
                let Verified { accepted, token } = verdict.unwrap();
                for token in drafted.tokens[..accepted].iter().chain([&token]) {
                    answer.tokens.push(*token);
                    answer.history.push(*token);
                }
                answer.key = answer.key.ahead(accepted as u32 + 1);
                answer.rounds += 1;
            }
        }
    }

    fn draft(&self, sampler: &mut Sampler, answer: &Answer) -> Drafted {
        let mut last = *answer.tokens.last().unwrap_or(&self.prompt);
        let mut history = answer.history.clone();
        let likeliest = SamplingParams { temperature: 0.0, ..self.params.clone() };
        let params = match self.drafting {
            Drafting::Certain => &likeliest,
            Drafting::Sampled => self.params,
        };
        let (mut tokens, mut rows) = (Vec::new(), Vec::new());
        let mut target = vec![self.toy.target(last)];
        for i in 0..self.k {
            let logits = self.toy.draft(last);
            let row = row(params, &history, answer.key.ahead(i as u32));
            let q = sampler.distribution(&logits, &row).unwrap();
            last = q.draw(row.key.uniform(Purpose::Draw));
            history.push(last);
            tokens.push(last);
            rows.push(logits);
            target.push(self.toy.target(last));
        }
        Drafted { tokens, target, draft: tensor(&rows) }
    }

    fn proposal<'a>(&'a self, answer: &'a Answer, drafted: &'a Drafted) -> Proposal<'a> {
        let draft = match self.drafting {
            Drafting::Certain => Draft::Certain,
            Drafting::Sampled => Draft::Logits(drafted.draft.view()),
        };
        let row = row(self.params, &answer.history, answer.key);
        Proposal { tokens: &drafted.tokens, draft, row, masks: &[] }
    }
}
