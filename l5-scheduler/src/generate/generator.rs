//! The loop over [`EngineCore`] on the caller's thread.

use std::sync::Arc;
use std::time::Instant;

use l4_sampler::stop::StopReason;
use l4_sampler::{LogprobsOf, LogprobsRequest, ParamError};

use super::receiver::{Output, Receiver, WorkCounter};
use super::{Choice, GenerateRequest, Generation, Work, rank};
use crate::engine::{
    EngineModel, EngineOptions, ModelFacts, RequestValidator, StartError, SubmitError, ValidRequest,
};
use crate::{
    DraftCounts, EngineCore, ExecuteError, FinishReason, ModelRunner, Rejection, RequestId,
    Scheduler,
};

/// Why a request gave no choices. Nothing of it is left in the engine.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The request is invalid, or does not fit. Nothing was run.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// `best_of` with log probabilities of another kind than it ranks by. Nothing was run.
    #[error("best_of ranks choices by raw log probabilities: ask for raw ones, or for none")]
    Ranking,
    /// A step failed.
    #[error(transparent)]
    Step(#[from] ExecuteError),
    /// A choice failed: no token is allowed, or its guide cannot be followed.
    #[error("{0}")]
    Choice(String),
}

/// Generates choices on the caller's thread: a scheduler, a runner and nothing between them and the caller.
///
/// ```
/// use l5_scheduler::engine::{EngineModel, EngineOptions, EngineRequest};
/// use l5_scheduler::generate::{GenerateRequest, Generator};
/// use l5_scheduler::llm::{SamplingParams, StopRules};
///
/// let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama");
/// let model = EngineModel::open(tiny.as_ref(), Default::default())?;
/// let options = EngineOptions { max_model_len: Some(64), max_num_seqs: 4, ..Default::default() };
/// let mut generator = Generator::open(model, &options)?;
///
/// let stop = StopRules { max_tokens: 8, ..Default::default() };
/// let prompt = vec![5, 17, 100, 3];
/// let request = EngineRequest::new(prompt, SamplingParams::default(), stop);
/// let mut text = String::new();
/// let generation = generator.run(&GenerateRequest { n: 3, ..request.into() }, |choice, new| {
///     if choice == 0 {
///         text.push_str(new);
///     }
///     true // go on
/// })?;
/// assert_eq!(generation.choices.len(), 3);
/// assert_eq!(generation.choices[0].text, text);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Generator {
    core: EngineCore<ModelRunner>,
    validator: RequestValidator,
    counter: WorkCounter,
    next_id: u64,
    /// Choices of the request that runs.
    live: Vec<(RequestId, Receiver)>,
}

/// Receives the number of a choice and its new text, and returns whether to continue that choice.
type OnText<'f> = dyn FnMut(usize, &str) -> bool + 'f;

impl Generator {
    /// Creates a generator for a model, with memory for `options.max_num_seqs` choices at once.
    ///
    /// # Errors
    /// [`StartError`], which says what is missing.
    pub fn open(model: EngineModel, options: &EngineOptions) -> Result<Self, StartError> {
        let facts = model.facts();
        let (core, _) = model.core(options)?;
        Ok(Self::new(core, facts))
    }

    /// Creates a generator over a scheduler and a runner that have no requests.
    pub fn new(mut core: EngineCore<ModelRunner>, facts: ModelFacts) -> Self {
        let counter = WorkCounter::default();
        core.set_observer(Some(Box::new(counter.clone())));
        let validator = RequestValidator::new(core.scheduler().config().clone(), facts)
            .with_adapters(core.executor().adapter_limits());
        Self { core, validator, counter, next_id: 0, live: Vec::new() }
    }

    /// The scheduler, with its blocks and limits.
    pub fn scheduler(&self) -> &Scheduler {
        self.core.scheduler()
    }

    /// The scheduler, to observe its blocks or reset its cache.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        self.core.scheduler_mut()
    }

    /// Checks whether [`run`](Self::run) would take a request.
    ///
    /// # Errors
    /// [`GenerateError::Refused`], [`GenerateError::Ranking`].
    pub fn check(&self, request: &GenerateRequest) -> Result<(), GenerateError> {
        self.validate(request).map(drop)
    }

    /// Generates the choices of a request. `on_text` gets the text of each choice as it becomes certain: the choice,
    /// counted from 0, and its new text, which may be empty, since it is called for every new token. It returns whether
    /// to continue that choice.
    ///
    /// # Errors
    /// [`GenerateError`]. The next request is not affected.
    pub fn run(
        &mut self,
        request: &GenerateRequest,
        mut on_text: impl FnMut(usize, &str) -> bool,
    ) -> Result<Generation, GenerateError> {
        let valid = self.validate(request)?;
        // A panic of the last `on_text` may have left requests behind.
        self.clear();
        let generated = self.generate(&valid, &mut on_text);
        if generated.is_err() {
            self.clear();
        }
        generated
    }

    fn validate(&self, request: &GenerateRequest) -> Result<Valid, GenerateError> {
        let GenerateRequest { request, n, best_of } = request;
        let (n, choices) = (*n, if *best_of == 0 { *n } else { *best_of });
        let out_of_range = |name, expected, got| {
            let why = ParamError::OutOfRange { name, expected, got: got as f64 };
            Err(GenerateError::Refused(why.into()))
        };
        if n == 0 {
            return out_of_range("n", "at least 1", n);
        }
        if choices < n {
            return out_of_range("best_of", "0 or at least n", *best_of);
        }
        if request.prompt.is_empty() {
            return Err(SubmitError::from(Rejection::EmptyPrompt).into());
        }
        let mut request = request.clone();
        let (ranks, reports) = (choices > n, request.params.logprobs.is_some());
        if ranks {
            let raw = LogprobsRequest { top: 0, of: LogprobsOf::Raw };
            let params = Arc::make_mut(&mut request.params);
            if params.logprobs.get_or_insert(raw).of != LogprobsOf::Raw {
                return Err(GenerateError::Ranking);
            }
        }
        Ok(Valid { request: self.validator.validate(request)?, n, choices, ranks, reports })
    }

    fn generate(
        &mut self,
        valid: &Valid,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation, GenerateError> {
        let started = Instant::now();
        self.counter.start(RequestId(self.next_id));
        self.add(valid)?;
        let mut prefill = None;
        while self.core.has_unfinished() {
            self.core.step()?;
            let mut all_begun = true;
            for (choice, (id, receiver)) in self.live.iter().enumerate() {
                let mut output = receiver.lock();
                all_begun &= output.has_begun();
                let go_on = output.news().is_none_or(|text| on_text(choice, text));
                if !go_on && output.end.is_none() {
                    output.stopped = true;
                    self.core.abort(*id);
                }
            }
            if all_begun && prefill.is_none() {
                prefill = Some(started.elapsed());
            }
        }
        let prefill = prefill.unwrap_or_else(|| started.elapsed());
        let (choices, output_tokens, drafts) = self.take_choices(valid)?;
        let (mut work, decode) = (self.work(), started.elapsed() - prefill);
        work.output_computed -= drafts.rejected().min(work.output_computed);
        Ok(Generation { choices, output_tokens, work, drafts, prefill, decode })
    }

    /// Adds all choices, so that they can be in one step. An output of no tokens needs no step.
    fn add(&mut self, valid: &Valid) -> Result<(), SubmitError> {
        for choice in 0..valid.choices as u32 {
            let id = RequestId(self.next_id);
            self.next_id += 1;
            let receiver = Receiver::new(valid.request.max_tokens());
            self.live.push((id, receiver.clone()));
            if valid.request.max_tokens() > 0 {
                let job = valid.request.job(choice, Box::new(receiver));
                let request = valid.request.scheduled(&job, id, self.core.now());
                self.core.add_request(request, job)?;
            }
        }
        Ok(())
    }

    /// Collects the choices that the request asked for, and counts the output tokens and drafts of all that were made.
    fn take_choices(
        &mut self,
        valid: &Valid,
    ) -> Result<(Vec<Choice>, usize, DraftCounts), GenerateError> {
        let first = valid.request.request().sample as usize;
        let outputs: Vec<_> = self.live.drain(..).map(|(_, receiver)| receiver.take()).collect();
        let mut drafts = DraftCounts::default();
        for end in outputs.iter().filter_map(|output| output.end.as_ref()) {
            drafts += end.drafts;
        }
        let choices: Result<Vec<_>, _> = outputs.into_iter().zip(first..).map(choice).collect();
        let mut choices = choices?;
        let output_tokens = choices.iter().map(|choice| choice.tokens.len()).sum();
        if valid.ranks {
            rank(&mut choices, |choice| Some(&choice.logprobs));
            choices.truncate(valid.n);
        }
        if !valid.reports {
            choices.iter_mut().for_each(|choice| choice.logprobs.clear());
        }
        Ok((choices, output_tokens, drafts))
    }

    fn work(&self) -> Work {
        self.counter.work()
    }

    /// Aborts requests that an error or a panic has left.
    fn clear(&mut self) {
        for (id, _) in self.live.drain(..) {
            self.core.abort(id);
        }
        // Aborted requests are not run again: a step without rows cannot fail.
        while self.core.has_unfinished() && self.core.step().is_ok() {}
    }
}

/// A request that was validated.
struct Valid {
    request: ValidRequest,
    n: usize,
    /// Number of choices to generate.
    choices: usize,
    /// Whether choices are ranked (`best_of`).
    ranks: bool,
    /// Whether log probabilities are requested.
    reports: bool,
}

/// Converts the output of a choice to a [`Choice`].
fn choice((output, sample): (Output, usize)) -> Result<Choice, GenerateError> {
    let Output { tokens, text, logprobs, end, stopped, .. } = output;
    let (mut finish, mut stop) = (FinishReason::Length, Some(StopReason::Length));
    if let Some(end) = end {
        (finish, stop) = (end.finish, end.stop);
        if finish == FinishReason::Failed {
            return Err(GenerateError::Choice(end.error.unwrap_or_else(|| finish.to_string())));
        }
    }
    if stopped && finish == FinishReason::Aborted {
        (finish, stop) = (FinishReason::Stop, Some(StopReason::Receiver));
    }
    Ok(Choice { sample, tokens, text, finish, stop, logprobs })
}
