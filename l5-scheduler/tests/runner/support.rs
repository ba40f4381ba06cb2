//! Tiny models, requests, and somebody who listens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use l4_sampler::guide::{CompiledGuide, GuideSpec, Guides};
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsOf, LogprobsRequest, SamplingParams, TokenLogprobs};
use l5_scheduler::{
    ChoiceJob, EngineCore, Executor, FinishReason, ModelRunner, OutputEnd, OutputSink, Request,
    RequestAdapter, RequestId, Resolved, Scheduler, SchedulerConfig, StepOutput, StepRow, Time,
    TokenDelta,
};

use crate::naive::{Naive, NaiveChoice};
use crate::tiny::Tiny;

/// The longest sequence, unless a test says otherwise.
pub const MAX_LEN: usize = 96;

/// What is asked.
#[derive(Clone)]
pub struct Ask {
    pub prompt: Vec<u32>,
    pub params: SamplingParams,
    pub stop: StopRules,
    pub seed: u64,
    pub sample: u32,
    pub guide: Option<CompiledGuide>,
    pub priority: i64,
    pub max_drafts: Option<usize>,
    pub adapter: Option<RequestAdapter>,
}

impl Ask {
    /// The likeliest tokens, so many of them.
    pub fn greedy(prompt: &[u32], max_tokens: usize) -> Self {
        Self {
            prompt: prompt.to_vec(),
            params: SamplingParams::greedy(),
            stop: StopRules { max_tokens, ..StopRules::default() },
            seed: 0,
            sample: 0,
            guide: None,
            priority: 0,
            max_drafts: None,
            adapter: None,
        }
    }

    pub fn with(self, params: SamplingParams) -> Self {
        Self { params, ..self }
    }

    pub fn seeded(self, seed: u64, sample: u32) -> Self {
        Self { seed, sample, ..self }
    }

    pub fn guided(self, tiny: &Tiny, spec: &GuideSpec) -> Self {
        let guides = Guides::new(&tiny.tokenizer, tiny.vocab(), &tiny.ends).unwrap();
        let stop = StopRules { eos: tiny.ends.clone(), ..self.stop.clone() };
        Self { guide: Some(guides.compile(spec, "").unwrap()), stop, ..self }
    }

    pub fn job(&self, sink: impl OutputSink + 'static) -> ChoiceJob {
        let Self { prompt, params, stop, seed, sample, guide, max_drafts, adapter, .. } =
            self.clone();
        let job = ChoiceJob::new(prompt, params, stop, Box::new(sink));
        ChoiceJob { seed, sample, guide, max_drafts, adapter, ..job }
    }

    pub fn request(&self, id: u64, job: &ChoiceJob) -> Request {
        Request { priority: self.priority, ..job.request(RequestId(id), Time(id as f64)) }
    }
}

/// A prompt: `len` ids that every tiny model has words for, told apart by `which`. Prompts of one `which` begin alike.
pub fn prompt(which: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + (which * 37 + i * (7 + which % 5)) % 200).collect()
}

/// Parameters of several kinds.
pub fn drawn(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, ..SamplingParams::default() }
}

pub fn penalised() -> SamplingParams {
    SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.2,
        top_p: 0.95,
        ..drawn(0.9)
    }
}

pub fn rated(params: SamplingParams, of: LogprobsOf) -> SamplingParams {
    SamplingParams { logprobs: Some(LogprobsRequest { top: 4, of }), ..params }
}

/// All that was told of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub tokens: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<TokenLogprobs>,
    pub ends: Vec<OutputEnd>,
}

impl Told {
    /// Why it ended, the one time that it did.
    pub fn finish(&self) -> Option<FinishReason> {
        assert!(self.ends.len() <= 1, "an end is told once: {:?}", self.ends);
        self.ends.first().map(|end| end.finish)
    }
}

/// Somebody who listens.
#[derive(Clone, Default)]
pub struct Ear(Arc<Mutex<Told>>);

impl Ear {
    pub fn told(&self) -> Told {
        self.0.lock().unwrap().clone()
    }
}

impl OutputSink for Ear {
    fn push(&mut self, news: &TokenDelta<'_>) {
        let mut told = self.0.lock().unwrap();
        assert!(told.ends.is_empty(), "news after the end: {news:?}");
        assert!(!news.tokens.is_empty() || !news.text.is_empty(), "news of nothing");
        told.tokens.extend_from_slice(news.tokens);
        told.text.push_str(news.text);
        told.logprobs.extend_from_slice(news.logprobs);
    }

    fn end(&mut self, end: &OutputEnd) {
        self.0.lock().unwrap().ends.push(end.clone());
    }
}

/// Rows of logits that tokens were chosen from, as bits, by request and place. A row that is computed twice must be the
/// same twice.
#[derive(Clone, Default)]
pub struct Rows(Arc<Mutex<RowsByPlace>>);

type RowsByPlace = HashMap<(u64, usize), Vec<u32>>;

impl Rows {
    pub fn of(&self, id: u64) -> Vec<(usize, Vec<u32>)> {
        let rows = self.0.lock().unwrap();
        let own = rows.iter().filter(|((of, _), _)| *of == id);
        let mut own: Vec<_> = own.map(|((_, at), row)| (*at, row.clone())).collect();
        own.sort();
        own
    }
}

impl Tiny {
    pub fn vocab(&self) -> usize {
        self.decoder.config().vocab
    }

    /// A pool of so many blocks of 4 tokens.
    pub fn config(&self, blocks: usize) -> SchedulerConfig {
        SchedulerConfig {
            max_model_len: MAX_LEN,
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            ..SchedulerConfig::new(blocks, 4)
        }
    }

    pub fn runner(&self, config: &SchedulerConfig) -> ModelRunner {
        let (decoder, tokenizer) = (Arc::clone(&self.decoder), Some(self.tokenizer.clone()));
        let dtype = self.rt.activation_dtype();
        ModelRunner::new(decoder, tokenizer, &self.rt, config, dtype).unwrap()
    }

    /// A runner whose rows of logits are kept.
    pub fn tapped(&self, config: &SchedulerConfig) -> (ModelRunner, Rows) {
        let (mut runner, rows) = (self.runner(config), Rows::default());
        let keep = rows.clone();
        runner.set_tap(Some(Box::new(move |id, at, row| {
            let bits: Vec<u32> = row.iter().map(|x| x.to_bits()).collect();
            let before = keep.0.lock().unwrap().insert((id.0, at), bits.clone());
            assert!(before.is_none_or(|before| before == bits), "{id}, place {at}: another row");
        })));
        (runner, rows)
    }

    pub fn core(&self, config: &SchedulerConfig) -> EngineCore<ModelRunner> {
        EngineCore::new(Scheduler::new(config.clone()).unwrap(), self.runner(config))
    }

    /// The same choice by the naive loop: no scheduler, no blocks, nothing beside it.
    pub fn solo(&self, ask: &Ask, max_len: usize) -> NaiveChoice {
        let naive = Naive {
            rt: &self.rt,
            decoder: &self.decoder,
            tokenizer: Some(&self.tokenizer),
            max_len,
            prompt: &ask.prompt,
            params: &ask.params,
            stop: &ask.stop,
            guide: ask.guide.as_ref(),
            seed: ask.seed,
            sample: ask.sample,
            continues: false,
        };
        naive.run()
    }
}

/// Ask, and listen.
pub fn ask(core: &mut EngineCore<ModelRunner>, id: u64, ask: &Ask) -> Ear {
    let ear = Ear::default();
    let job = ask.job(ear.clone());
    let request = ask.request(id, &job);
    core.add_request(request, job).unwrap();
    ear
}

/// Steps until nobody is left.
pub fn run(core: &mut EngineCore<ModelRunner>) {
    for _ in 0..10_000 {
        if !core.has_unfinished() {
            return;
        }
        core.step().unwrap();
    }
    panic!("after 10,000 steps somebody is still not done: {:?}", core.scheduler());
}

/// The loop, taken apart: what a step was can be looked at between its parts.
pub struct Apart {
    pub scheduler: Scheduler,
    pub runner: ModelRunner,
    pub out: StepOutput,
    pub resolved: Resolved,
}

impl Apart {
    pub fn new(config: &SchedulerConfig, runner: ModelRunner) -> Self {
        let scheduler = Scheduler::new(config.clone()).unwrap();
        Self { scheduler, runner, out: StepOutput::default(), resolved: Resolved::default() }
    }

    pub fn ask(&mut self, id: u64, ask: &Ask) -> Ear {
        let ear = Ear::default();
        let job = ask.job(ear.clone());
        self.scheduler.add_request(ask.request(id, &job)).unwrap();
        self.runner.begin(RequestId(id), job);
        ear
    }

    /// One step. Returns its rows.
    pub fn step(&mut self) -> Vec<StepRow> {
        self.out.clear();
        let rows = self.scheduler.plan(Time(0.0)).rows.clone();
        if rows.is_empty() {
            self.resolved = Resolved::default();
        } else {
            self.runner.execute(&self.scheduler.view(), &mut self.out).unwrap();
            self.scheduler.resolve(&self.out, &mut self.resolved).unwrap();
        }
        self.scheduler.apply(&self.resolved, Time(0.0));
        let Self { scheduler, runner, .. } = self;
        for (id, reason) in scheduler.take_ended() {
            runner.end(id, reason);
        }
        rows
    }

    pub fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.scheduler.has_unfinished() {
                return;
            }
            self.step();
        }
        panic!("after 10,000 steps somebody is still not done: {:?}", self.scheduler);
    }
}
