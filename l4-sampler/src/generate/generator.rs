//! The model, the memory of its sequences, and the loop over them.

use std::time::Instant;

use l1_tensor::Runtime;
use l2_model::generate::PREFILL_CHUNK;
use l2_model::tokenizer::Tokenizer;
use l2_model::{Decoder, SequenceState, Workspace, WorkspaceSpec};

use super::answer::{Answer, Beginning};
use super::run::Run;
use super::step::Step;
use super::{Generation, Request, Work};
use crate::error::ParamError;
use crate::guide::{MaskAhead, MaskPending};
use crate::stop::{AnswerStream, StopReason, StopRules};
use crate::{Logits, Result, Row, Sampled, Sampler};

/// Rows of logits that a step can ask for, however few answers there are: so many tokens that a guide forced are rated at
/// once.
const ROWS: usize = 8;

/// Generates answers with a model and the memory of one or more sequences. Its buffers are made once: a steady step of
/// plain requests allocates nothing.
pub struct Generator<'m> {
    decoder: &'m Decoder,
    tokenizer: Option<Tokenizer>,
    state: Box<dyn SequenceState + 'm>,
    slots: usize,
    max_len: usize,
    ws: Workspace,
    sampler: Sampler,
    /// Whether a single answer stays in slot 0, and the tokens that are there.
    keeps: bool,
    kept: Vec<u32>,
    step: Step,
    /// Answers that the step's first rows of logits choose a token for.
    choosing: Vec<usize>,
    /// Answers and their tokens that the rows behind those rate, each with its row of the batch.
    rating: Vec<(usize, u32, usize)>,
    sampled: Vec<Sampled>,
    /// Computes masks while the model runs. Made for the first request that has a guide.
    ahead: Option<MaskAhead>,
    /// Answers whose masks are being computed.
    masks: Vec<(usize, MaskPending)>,
    /// Always empty: memory for what the sampler is shown.
    rows: Vec<Row<'static>>,
}

/// Receives the text of answers, as (which answer, text), and says whether that answer is to go on.
type OnText<'f> = dyn FnMut(usize, &str) -> bool + 'f;

impl<'m> Generator<'m> {
    /// A generator over `slots` empty slots of a state that takes sequences of `max_len` tokens and steps of
    /// [`PREFILL_CHUNK`], or of as many tokens as it has slots. `tokenizer` turns tokens to text; without one there is no
    /// text, and no stop strings.
    ///
    /// # Errors
    /// No memory for the buffers.
    pub fn new(
        decoder: &'m Decoder,
        tokenizer: Option<&Tokenizer>,
        rt: &Runtime,
        state: Box<dyn SequenceState + 'm>,
        slots: usize,
        max_len: usize,
    ) -> Result<Self> {
        let max_len = max_len.clamp(1, decoder.config().max_context);
        let spec = WorkspaceSpec {
            max_tokens: max_len.min(PREFILL_CHUNK).max(slots),
            max_rows: slots.max(ROWS),
            max_context: max_len,
        };
        Ok(Self {
            decoder,
            tokenizer: tokenizer.cloned(),
            state,
            slots,
            max_len,
            ws: Workspace::new(rt, decoder.config(), spec)?,
            sampler: Sampler::new(rt, decoder.config().vocab),
            keeps: false,
            kept: Vec::new(),
            step: Step::default(),
            choosing: Vec::with_capacity(slots),
            rating: Vec::with_capacity(spec.max_rows),
            sampled: vec![Sampled::default(); slots],
            ahead: None,
            masks: Vec::with_capacity(slots),
            rows: Vec::with_capacity(slots),
        })
    }

    /// Keep a single answer in the state: a prompt that begins with the last one and its answer, as the next turn of a
    /// conversation does, costs only what is new.
    #[must_use]
    pub fn keeping(self) -> Self {
        Self { keeps: true, ..self }
    }

    /// The memory of the sequences.
    pub fn state(&self) -> &dyn SequenceState {
        self.state.as_ref()
    }

    /// The most tokens of a sequence.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Answer. `on_text` gets the text of each answer as it becomes certain (which answer, counted from 0; its new text,
    /// which may be empty: it is asked after every token) and says whether that answer is to go on.
    ///
    /// # Errors
    /// What cannot be meant ([`ParamError`]) or does not fit, before anything runs; what model, sampler and guide report.
    /// Nothing is left in the state then.
    pub fn run(
        &mut self,
        request: &Request<'_>,
        mut on_text: impl FnMut(usize, &str) -> bool,
    ) -> Result<Generation> {
        let samples = self.check(request)?;
        let ran = self.answer(request, samples, &mut on_text);
        self.masks.clear();
        self.kept.clear();
        let mut empty_from = 0;
        if let (true, 1, Ok(generation)) = (self.keeps, samples, &ran) {
            let answer = generation.choices.iter().flat_map(|choice| &choice.tokens);
            self.kept.extend(request.prompt.iter().chain(answer).take(self.state.len(0)));
            empty_from = 1;
        }
        for slot in empty_from..self.slots as u32 {
            self.state.drop_sequence(slot);
        }
        ran
    }

    /// Whether the request can be meant, and how many answers to generate.
    fn check(&self, request: &Request<'_>) -> Result<usize> {
        let Request { prompt, params, stop, n, best_of, .. } = *request;
        let vocab = self.decoder.config().vocab;
        params.validate(vocab)?;
        stop.validate(vocab)?;
        let samples = if best_of == 0 { n } else { best_of };
        let out_of_range = |name, expected, got| {
            Err(ParamError::OutOfRange { name, expected, got: got as f64 }.into())
        };
        if n == 0 {
            return out_of_range("n", "at least 1", n);
        }
        if samples < n {
            return out_of_range("best_of", "0 or at least n", best_of);
        }
        if samples > self.slots {
            return out_of_range("best_of", "at most the slots of the state", samples);
        }
        if prompt.is_empty() {
            return Err(l2_model::Error::EmptyPrompt.into());
        }
        let (tokens, context) = (prompt.len(), self.max_len);
        if tokens >= context && stop.max_tokens > 0 || tokens > context {
            return Err(l2_model::Error::PromptTooLong { tokens, context }.into());
        }
        Ok(samples)
    }

    fn answer(
        &mut self,
        request: &Request<'_>,
        samples: usize,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation> {
        let started = Instant::now();
        let run = Run::new(request, samples, self.ws.runtime().isa());
        let mut work = Work::default();
        let mut answers = self.begin(&run, samples)?;
        self.open(&run, &mut answers, on_text, &mut work)?;
        self.prefill(request.prompt, &mut work)?;
        self.first_tokens(&run, &mut answers, on_text, &mut work)?;
        let prefill = started.elapsed();
        self.share(request.prompt, &mut answers)?;
        while self.compose(&run, &mut answers, &mut work) {
            self.step(&run, &mut answers, on_text, &mut work)?;
        }
        let decode = started.elapsed() - prefill;
        if run.ranks {
            // A stable sort: of equally good answers the first comes first.
            answers.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
            answers.truncate(request.n);
        }
        let choices = answers.into_iter().map(Answer::into_choice).collect();
        Ok(Generation { choices, work, prefill, decode })
    }

    /// The answers, each without a token.
    fn begin(&self, run: &Run<'_>, samples: usize) -> Result<Vec<Answer>> {
        let Request { prompt, stop, guide, first_sample, continues, .. } = *run.request;
        let tokenizer = self.tokenizer.as_ref();
        // Whether the last token that fits is the end is ours to say: a guide that it completes is the better reason.
        let rules = StopRules { max_tokens: usize::MAX, ..stop.clone() };
        let stream = if continues {
            AnswerStream::continuing(&rules, tokenizer, prompt)?
        } else {
            AnswerStream::answering(&rules, tokenizer)?
        };
        let room = stop.max_tokens.min(self.max_len - prompt.len());
        let beginning = Beginning { prompt, room, rates: run.rates(), guide, stream };
        let answer = |i: usize| beginning.answer(i as u32, (first_sample + i) as u32);
        Ok((0..samples).map(answer).collect())
    }

    /// What can be done before the model has seen anything: tokens that a guide forces, and masks for the first tokens of
    /// the others, which are computed while the prompt is.
    fn open(
        &mut self,
        run: &Run<'_>,
        answers: &mut [Answer],
        on_text: &mut OnText<'_>,
        work: &mut Work,
    ) -> Result<()> {
        if run.request.guide.is_some() {
            self.ahead.get_or_insert_default();
        }
        for (i, answer) in answers.iter_mut().enumerate() {
            let show = &mut |text: &str| on_text(i, text);
            if answer.is_full() {
                answer.end(StopReason::Length, show);
            }
            work.forced_tokens += run.force(answer, show)?;
            if answer.tokens.is_empty() && !answer.has_ended() {
                self.start_mask(i, answer);
            }
        }
        Ok(())
    }

    fn start_mask(&mut self, i: usize, answer: &mut Answer) {
        let mask = self.ahead.as_ref().and_then(|ahead| answer.start_mask(ahead));
        self.masks.extend(mask.map(|mask| (i, mask)));
    }

    /// The prompt in slot 0, behind what is kept there or what the state still has of it. Its last row of logits is in
    /// the workspace then.
    fn prefill(&mut self, prompt: &[u32], work: &mut Work) -> Result<()> {
        let same = self.kept.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // At least one token must be fed: its logits are what the answers start from.
        let mut fed = same.min(prompt.len() - 1);
        if fed > 0 {
            self.state.rollback(0, fed)?;
        } else {
            self.state.drop_sequence(0);
            fed = self.state.resume(0, prompt);
        }
        work.prompt_cached = fed;
        work.prompt_computed = prompt.len() - fed;
        while fed < prompt.len() {
            let end = prompt.len().min(fed + self.ws.spec().max_tokens);
            self.step.clear();
            self.step.push(0, [prompt, &[]], fed..end);
            self.step.want(end - fed - 1);
            self.decoder.forward(&self.step.batch(), self.state.as_mut(), &mut self.ws)?;
            work.steps += 1;
            fed = end;
        }
        Ok(())
    }

    /// The first token of every answer that has none yet, all from the one row of logits that the prompt left.
    fn first_tokens(
        &mut self,
        run: &Run<'_>,
        answers: &mut [Answer],
        on_text: &mut OnText<'_>,
        work: &mut Work,
    ) -> Result<()> {
        let all = self.ws.logits(1)?;
        // Whoever rates a token reads its whole row, which may lie on a device.
        let mut copy = None;
        let logits = match run.rates() {
            true => all.on_cpu(&mut copy)?.rows::<f32>("the prompt's logits")?.row(0),
            false => &[],
        };
        for (i, mask) in self.masks.drain(..) {
            answers[i].finish_mask(mask)?;
        }
        for (i, answer) in answers.iter_mut().enumerate() {
            answer.saw(run.request.prompt.len());
            if let Some(forced) = answer.tokens.first().copied() {
                if run.rates() {
                    run.rate(answer, logits, forced);
                }
                continue;
            }
            if answer.has_ended() {
                continue;
            }
            let sampled = &mut self.sampled[..1];
            self.sampler.sample(Logits::Shared(all), &[answer.row(run)], sampled)?;
            let show = &mut |text: &str| on_text(i, text);
            work.forced_tokens += run.choose(answer, &sampled[0], logits, show)?;
        }
        Ok(())
    }

    /// The prompt in the slots of all other answers that go on. A state of blocks shares those that are full, and each
    /// answer has only the rest left to feed; another state is copied.
    fn share(&mut self, prompt: &[u32], answers: &mut [Answer]) -> Result<()> {
        let mut copy = None;
        for answer in answers.iter_mut().skip(1).filter(|a| !a.due().is_empty()) {
            let found = self.state.resume(answer.slot, prompt);
            if found > 0 {
                answer.saw(found);
                continue;
            }
            let copy = match &mut copy {
                Some(copy) => copy,
                None => copy.insert(self.state.snapshot(0)?),
            };
            self.state.restore(answer.slot, copy)?;
        }
        Ok(())
    }

    /// The next step: what every answer has to feed, as far as it fits. An answer that needs no more gives its slot back.
    /// False when none needs any.
    fn compose(&mut self, run: &Run<'_>, answers: &mut [Answer], work: &mut Work) -> bool {
        let prompt = run.request.prompt;
        self.step.clear();
        self.choosing.clear();
        self.rating.clear();
        // One token and one row of logits for everybody before a second for anybody.
        let spec = self.ws.spec();
        let taking_part = answers.iter().filter(|a| !a.due().is_empty()).count();
        let (mut tokens, mut rows) = (spec.max_tokens - taking_part, spec.max_rows - taking_part);
        for (i, answer) in answers.iter_mut().enumerate() {
            let mut places = answer.due();
            if places.is_empty() {
                if !std::mem::replace(&mut answer.left, true) && !self.keeps {
                    self.state.drop_sequence(answer.slot);
                }
                continue;
            }
            let mut more = (places.len() - 1).min(tokens);
            if run.rates() {
                more = more.min(rows);
                rows -= more;
            }
            tokens -= more;
            places.end = places.start + 1 + more;
            let row = self.step.push(answer.slot, [prompt, &answer.tokens], places.clone());
            let rates = places.clone().zip(row..);
            let rates = rates.filter_map(|(place, row)| Some((i, answer.rates(place)?, row)));
            self.rating.extend(rates);
            if answer.samples(places.end - 1) {
                self.choosing.push(i);
                self.step.want(row + more);
            }
            let of_prompt = prompt.len().saturating_sub(places.start).min(places.len());
            work.prompt_computed += of_prompt;
            work.answer_tokens += places.len() - of_prompt;
        }
        for (.., row) in &self.rating {
            self.step.want(*row);
        }
        taking_part > 0
    }

    /// The composed step: through the model, and a token for every answer that has fed all it had.
    fn step(
        &mut self,
        run: &Run<'_>,
        answers: &mut [Answer],
        on_text: &mut OnText<'_>,
        work: &mut Work,
    ) -> Result<()> {
        for at in 0..self.choosing.len() {
            let i = self.choosing[at];
            self.start_mask(i, &mut answers[i]);
        }
        let Self { decoder, state, ws, sampler, step, choosing, rating, sampled, .. } = self;
        let all = decoder.forward(&step.batch(), state.as_mut(), ws)?;
        work.steps += 1;
        for answer in answers.iter_mut().filter(|a| !a.left) {
            answer.saw(state.len(answer.slot));
        }
        for (i, mask) in self.masks.drain(..) {
            answers[i].finish_mask(mask)?;
        }
        let mut copy = None;
        let rated = match run.rates() {
            true => Some(all.on_cpu(&mut copy)?.rows::<f32>("a step's logits")?),
            false => None,
        };
        let logits = |row: usize| rated.map_or(&[][..], |rows| rows.row(row));
        for (row, (i, token, _)) in (choosing.len()..).zip(rating.iter()) {
            run.rate(&mut answers[*i], logits(row), *token);
        }
        let sampled = &mut sampled[..choosing.len()];
        let mut rows = emptied(std::mem::take(&mut self.rows));
        rows.extend(choosing.iter().map(|i| answers[*i].row(run)));
        let chosen = sampler.sample(Logits::Shared(all.narrow(0, 0, rows.len())?), &rows, sampled);
        self.rows = emptied(rows);
        chosen?;
        for (row, i) in choosing.iter().enumerate() {
            let show = &mut |text: &str| on_text(*i, text);
            work.forced_tokens += run.choose(&mut answers[*i], &sampled[row], logits(row), show)?;
        }
        Ok(())
    }
}

/// The same memory, for rows that live at another time.
fn emptied<'a>(mut rows: Vec<Row<'_>>) -> Vec<Row<'a>> {
    rows.clear();
    rows.into_iter().map_while(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_rows_is_used_again() {
        let rows: Vec<Row<'_>> = Vec::with_capacity(8);
        let at = rows.as_ptr().addr();
        let rows: Vec<Row<'static>> = emptied(rows);
        assert_eq!((rows.as_ptr().addr(), rows.capacity()), (at, 8));
    }
}
