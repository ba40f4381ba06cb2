//! One choice alone, by the simplest loop there is: contiguous state, one token at a time, every token sampled. There is no
//! scheduler, no block, no runner and no state machine of a choice in it: it is what those are compared with.

use l1_tensor::Runtime;
use l2_model::tokenizer::Tokenizer;
use l2_model::{Decoder, Session};
use l4_sampler::guide::CompiledGuide;
use l4_sampler::stop::{AnswerStream, StopReason, StopRules};
use l4_sampler::{
    DrawKey, History, Logits, Row, Sampled, Sampler, SamplingParams, TokenLogprobs, TokenMask,
};

/// What is asked of a model.
pub struct Naive<'a> {
    pub rt: &'a Runtime,
    pub decoder: &'a Decoder,
    pub tokenizer: Option<&'a Tokenizer>,
    pub max_len: usize,
    pub prompt: &'a [u32],
    pub params: &'a SamplingParams,
    pub stop: &'a StopRules,
    pub guide: Option<&'a CompiledGuide>,
    pub seed: u64,
    pub sample: u32,
    pub continues: bool,
}

/// What the model gave.
#[derive(Clone, Debug, PartialEq)]
pub struct NaiveChoice {
    pub tokens: Vec<u32>,
    pub text: String,
    pub reason: StopReason,
    pub logprobs: Vec<TokenLogprobs>,
}

impl Naive<'_> {
    pub fn run(&self) -> NaiveChoice {
        let Self { rt, decoder, tokenizer, prompt, params, seed, sample, .. } = *self;
        let room = self.stop.max_tokens.min(self.max_len - prompt.len());
        let rules = StopRules { max_tokens: usize::MAX, ..self.stop.clone() };
        let mut stream = match self.continues {
            true => AnswerStream::continuing(&rules, tokenizer, prompt).unwrap(),
            false => AnswerStream::answering(&rules, tokenizer).unwrap(),
        };
        let mut guide = self.guide.map(CompiledGuide::start);
        let mut session = Session::new(decoder, rt, self.max_len).unwrap();
        let mut sampler = Sampler::new(rt, decoder.config().vocab);
        let (mut history, ends) = (History::new(prompt, room), self.stop.ends());
        let (mut tokens, mut text, mut logprobs) = (vec![], String::new(), vec![]);
        let mut feed = prompt.to_vec();
        loop {
            let mut mask = TokenMask::default();
            if let Some(guide) = &mut guide {
                guide.mask(&mut mask).unwrap();
            }
            let position = (prompt.len() + tokens.len()) as u32;
            let row = Row {
                params,
                history: &history,
                ends: &ends,
                mask: guide.is_some().then_some(&mask),
                key: DrawKey { seed, sample, position },
            };
            let logits = session.feed(&feed).unwrap();
            let logits = logits.reshape(&[1, decoder.config().vocab]).unwrap();
            let mut sampled = [Sampled::default()];
            sampler.sample(Logits::Shared(logits), &[row], &mut sampled).unwrap();
            let [Sampled { token, logprobs: rated }] = sampled;
            let token = token.unwrap();
            tokens.push(token);
            history.push(token);
            logprobs.extend(rated);
            let (shown, mut reason) = stream.push(token);
            text.push_str(shown);
            if let (None, Some(guide)) = (&reason, &mut guide) {
                guide.advance(token).unwrap();
                reason = guide.is_finished().then_some(StopReason::Guide);
            }
            if let Some(reason) = reason.or((tokens.len() >= room).then_some(StopReason::Length)) {
                let (rest, reason) = stream.end(reason);
                text.push_str(rest);
                return NaiveChoice { tokens, text, reason, logprobs };
            }
            feed = vec![token];
        }
    }
}
