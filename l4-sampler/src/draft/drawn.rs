//! Drafts that are drawn from a distribution, by a drafter with a network.
//!
//! A draft that is drawn is accepted more often than the likeliest token when the request samples: with the sum of
//! `min(p, q)`, where `q` is what the draft was drawn from and `p` what the model says ([`crate::verify`]). So the
//! distribution is kept until the draft is verified. The rule holds for every `q`; this one is the drafter's own, after
//! the request's temperature and filters, and limited to [`MAX_DRAWN_FROM`] tokens, so that a draft of a large
//! vocabulary takes two kilobytes and not half a megabyte.

use crate::verify::accepts;
use crate::{Distribution, DrawKey, History, Purpose, Row, SamplingParams};

/// Maximum number of tokens that a draft is drawn from.
pub const MAX_DRAWN_FROM: usize = 256;

/// How the drafts of a request are drawn: its temperature and filters, and its random numbers.
#[derive(Debug)]
pub struct DraftSampling {
    params: SamplingParams,
    seed: u64,
    sample: u32,
    history: History,
}

impl DraftSampling {
    /// Sampling of the drafts of a request with these parameters, this seed and this index among parallel samples.
    /// `None` for a greedy request, whose drafts are the likeliest tokens.
    pub fn new(params: &SamplingParams, seed: u64, sample: u32) -> Option<Self> {
        if params.is_greedy() {
            return None;
        }
        let SamplingParams { temperature, top_k, top_p, min_p, typical_p, .. } = *params;
        let top_k = if top_k == 0 { MAX_DRAWN_FROM } else { top_k.min(MAX_DRAWN_FROM) };
        let filters = SamplingParams::default();
        let params = SamplingParams { temperature, top_k, top_p, min_p, typical_p, ..filters };
        Some(Self { params, seed, sample, history: History::default() })
    }

    /// Sampling that takes the likeliest token, for a greedy row beside rows that are drawn.
    pub fn greedy() -> Self {
        let params = SamplingParams::greedy();
        Self { params, seed: 0, sample: 0, history: History::default() }
    }

    /// Input of the sampler for a draft at `position` of prompt and output together. The random number is that of
    /// [`Purpose::Draw`]. If the draft is verified, nothing else at this position uses it. If it is dropped, the number
    /// may be used again, since nothing that was decided depended on the draft.
    pub fn row(&self, position: usize) -> Row<'_> {
        let Self { params, seed, sample, history } = self;
        let key = DrawKey { seed: *seed, sample: *sample, position: position as u32 };
        Row { params, history, ends: &[], mask: None, key }
    }
}

/// A token that was drawn, and what it was drawn from. The memory is reused.
#[derive(Clone, Debug, Default)]
pub struct Drawn {
    /// The token; `None` if the logits gave none.
    pub token: Option<u32>,
    /// The distribution.
    pub from: Distribution,
}

/// A draft that is verified at its position.
#[derive(Clone, Copy, Debug)]
pub struct Drafted<'a> {
    /// The draft.
    pub token: u32,
    /// Distribution that it was drawn from.
    pub from: &'a Distribution,
}

impl Drafted<'_> {
    /// Token of the position, for which the model says `p`: the draft, if it is accepted, or its replacement.
    pub(crate) fn choose(self, p: &Distribution, key: DrawKey) -> u32 {
        let Self { token, from } = self;
        if accepts(p.prob(token), from.prob(token), key.uniform(Purpose::Accept)) {
            return token;
        }
        p.draw_residual(from, key.uniform(Purpose::Residual))
    }
}
