//! Tiny models with a generator, and the naive loop beside it.

use std::sync::Arc;

use l2_model::tokenizer::Tokenizer;
use l4_sampler::SamplingParams;
use l4_sampler::guide::{GuideSpec, Guides};
use l4_sampler::stop::{StopReason, StopRules};
use l5_scheduler::engine::{EngineModel, EngineOptions, Startup};
use l5_scheduler::generate::{Choice, GenerateRequest, Generation, Generator};
use l5_scheduler::{EngineRequest, SchedulerConfig};

use crate::naive::{Naive, NaiveChoice};
use crate::tiny::Tiny;

/// The longest sequence.
pub const MAX_LEN: usize = 400;

/// A prompt of ids that every tiny model has words for.
pub const PROMPT: [u32; 10] = [5, 17, 100, 3, 64, 200, 9, 33, 71, 150];

/// Tokens a block; the last holds a whole sequence, as `--state contiguous` does.
pub const BLOCKS: [usize; 4] = [1, 4, 16, 512];

/// A request as tests write it.
#[derive(Clone)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub params: SamplingParams,
    pub stop: StopRules,
    pub guide: Option<GuideSpec>,
    pub n: usize,
    pub best_of: usize,
    pub seed: u64,
    pub first_sample: u32,
    pub continues: bool,
}

impl Request {
    pub fn new(prompt: &[u32], params: &SamplingParams, stop: &StopRules) -> Self {
        Self {
            prompt: prompt.to_vec(),
            params: params.clone(),
            stop: stop.clone(),
            guide: None,
            n: 1,
            best_of: 0,
            seed: 0,
            first_sample: 0,
            continues: false,
        }
    }

    pub fn build(&self) -> GenerateRequest {
        let Self { prompt, params, stop, guide, n, best_of, seed, first_sample, continues } =
            self.clone();
        let request = EngineRequest {
            guide: guide.map(Into::into),
            seed,
            sample: first_sample,
            continues,
            ..EngineRequest::new(prompt, params, stop)
        };
        GenerateRequest { request, n, best_of }
    }
}

impl Tiny {
    pub fn vocab(&self) -> usize {
        self.decoder.config().vocab
    }

    /// A generator with blocks of so many tokens, enough for all of its choices at full length.
    pub fn generator(&self, block_size: usize, choices: usize) -> Generator {
        self.over(block_size, choices, Some(self.tokenizer.clone()))
    }

    pub fn over(
        &self,
        block_size: usize,
        choices: usize,
        tokenizer: Option<Tokenizer>,
    ) -> Generator {
        let options = EngineOptions {
            block_size,
            max_num_seqs: choices,
            max_model_len: Some(MAX_LEN),
            max_num_batched_tokens: 128,
            ..EngineOptions::default()
        };
        Generator::open(self.model(tokenizer), &options).unwrap()
    }

    pub fn model(&self, tokenizer: Option<Tokenizer>) -> EngineModel {
        EngineModel {
            rt: self.rt.clone(),
            decoder: Arc::clone(&self.decoder),
            tokenizer,
            stop_tokens: self.ends.clone(),
            digest: None,
            startup: Startup::default(),
        }
    }

    /// Rules for outputs of so many tokens, whatever the model says.
    pub fn long(&self, max_tokens: usize) -> StopRules {
        StopRules { eos: self.ends.clone(), ignore_eos: true, max_tokens, ..StopRules::default() }
    }

    /// Every choice of a request, each by itself in the naive loop.
    pub fn alone(&self, request: &Request) -> Vec<NaiveChoice> {
        let guides = Guides::new(&self.tokenizer, self.vocab(), &self.ends).unwrap();
        let guide = request.guide.as_ref().map(|spec| guides.compile(spec, "").unwrap());
        let one = |i: u32| {
            let naive = Naive {
                rt: &self.rt,
                decoder: &self.decoder,
                tokenizer: Some(&self.tokenizer),
                max_len: MAX_LEN,
                prompt: &request.prompt,
                params: &request.params,
                stop: &request.stop,
                guide: guide.as_ref(),
                seed: request.seed,
                sample: request.first_sample + i,
                continues: request.continues,
            };
            naive.run()
        };
        (0..request.n as u32).map(one).collect()
    }
}

/// Whether choices are what the naive loop gave, to the bit.
pub fn same(what: &str, got: &[Choice], expected: &[NaiveChoice]) {
    assert_eq!(got.len(), expected.len(), "{what}: number of choices");
    for (got, expected) in got.iter().zip(expected) {
        let what = format!("{what}: choice {}", got.sample);
        assert_eq!(got.tokens, expected.tokens, "{what}: tokens, here and alone");
        assert_eq!(got.text, expected.text, "{what}: text, here and alone");
        assert_eq!(got.logprobs, expected.logprobs, "{what}: log probabilities, here and alone");
        assert_eq!(got.stop.as_ref(), Some(&expected.reason), "{what}: why it ended");
    }
}

/// Why a choice ended.
pub fn reason(choice: &Choice) -> StopReason {
    choice.stop.clone().unwrap()
}

/// The choices, and that what was shown of each is its text.
pub fn answers(generator: &mut Generator, request: &Request) -> Vec<Choice> {
    generate(generator, request).choices
}

pub fn generate(generator: &mut Generator, request: &Request) -> Generation {
    let mut shown = vec![String::new(); request.n.max(request.best_of)];
    let generation = generator.run(&request.build(), |i, text| {
        shown[i].push_str(text);
        true
    });
    let generation = generation.unwrap();
    for choice in &generation.choices {
        let shown = &shown[choice.sample - request.first_sample as usize];
        assert_eq!(shown, &choice.text, "what was shown of choice {}", choice.sample);
    }
    empty(generator, "after a request");
    generation
}

/// Whether nothing is left in a generator: no request, and every block free.
pub fn empty(generator: &Generator, when: &str) {
    let scheduler = generator.scheduler();
    let config: &SchedulerConfig = scheduler.config();
    assert!(!scheduler.has_unfinished(), "a request is left {when}");
    assert_eq!(scheduler.blocks().num_free(), config.capacity(), "free blocks {when}");
}
