//! Proposes drafts for the next step, behind each step.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use l2_model::{Tap, Workspace};
use l4_sampler::Distribution;
use l4_sampler::draft::{DraftRow, DraftSampling, Drafted, Drafter, Drafts, HiddenSpan};

use super::choice::RunningChoice;
use super::{ModelRunner, missing};
use crate::scheduler::{num_accepted, num_computed};
use crate::speculation::{Acceptance, Candidates, Window, WindowMode};
use crate::{BySeat, ExecuteError, RowView, StepLoad, StepOutput, StepPlan, StepView};

/// Maximum number of taps that a drafter can read.
pub(super) const MAX_TAPS: usize = 4;

/// Maximum number of tokens that a drafter may compute for a probe.
const MAX_CREDIT: usize = 4096;

/// Speculation of a runner: its drafter, and the window.
pub(super) struct Speculation {
    drafter: Box<dyn Drafter>,
    /// Maximum number of drafts of a request in a step.
    most: usize,
    mode: WindowMode,
    /// Whether drafts of requests that sample are drawn.
    pub(super) draws: bool,
    /// Number of tokens of the model.
    vocab: usize,
    window: Window,
    /// Tokens that the drafter may compute to see whether drafts are better now: one for each step.
    credit: usize,
    /// Time that the last proposals took, which the next step verifies.
    making: Duration,
    /// Time that the proposals took which the last step verified.
    made: Duration,
    /// Slots of the drafter that no request has, and the number of slots so far.
    vacant: Vec<u32>,
    slots: u32,
    /// Requests that sampled in the step and go on. The memory is reused, as that of all below.
    live: Vec<Live>,
    /// Those of them for which the drafter is asked, the questions, and its proposals.
    asked: Vec<usize>,
    rows: Vec<DraftRow>,
    drafts: Drafts,
    /// Hidden rows that the drafter reads.
    spans: Vec<HiddenSpan>,
    /// Proposals that the window decides about, and how many drafts of each live row it chose.
    candidates: Candidates,
    counts: Vec<usize>,
}

/// A request that sampled in a step and goes on.
#[derive(Clone, Copy, Debug)]
struct Live {
    /// Index of its row in the step.
    number: usize,
    slot: u32,
    /// Maximum number of its drafts.
    most: usize,
    /// Index of its hidden rows, if there are any.
    span: usize,
}

/// A request's part of the speculation.
#[derive(Debug, Default)]
pub(super) struct DraftState {
    /// Its slot of the drafter, since its first token was sampled.
    slot: Option<u32>,
    acceptance: Acceptance,
    /// Maximum number of drafts in a step. `None`: that of the engine. 0: none.
    most: Option<usize>,
    /// Tenant, whose outputs the drafter may learn from.
    tenant: Option<String>,
    /// How its drafts are drawn, until the drafter knows. `None`: they are not drawn.
    sampling: Option<DraftSampling>,
    /// What the drafts of the next step were drawn from: the first `drawn`. The others are kept for their memory. What
    /// is left of an earlier proposal, drawn or not, is verified as drafts that were not drawn: `drawn` is 0 then.
    from: Vec<Distribution>,
    drawn: usize,
    pub counts: DraftCounts,
}

/// Drafts of a request that were verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Drafts that steps verified.
    pub proposed: usize,
    /// Those of them that were accepted.
    pub accepted: usize,
}

impl DraftCounts {
    /// Those of them that were rejected.
    pub fn rejected(&self) -> usize {
        self.proposed.saturating_sub(self.accepted)
    }
}

impl AddAssign for DraftCounts {
    fn add_assign(&mut self, other: Self) {
        self.proposed += other.proposed;
        self.accepted += other.accepted;
    }
}

impl DraftState {
    pub fn new(
        most: Option<usize>,
        tenant: Option<String>,
        sampling: Option<DraftSampling>,
    ) -> Self {
        Self { most, tenant, sampling, ..Self::default() }
    }

    /// Draft `i` of a row, if it was drawn.
    pub fn drafted(&self, drafts: &[u32], i: usize) -> Option<Drafted<'_>> {
        let from = self.from[..self.drawn].get(i)?;
        drafts.get(i).map(|token| Drafted { token: *token, from })
    }

    /// Takes what drafts were drawn from, and leaves old distributions, whose memory can be reused.
    fn keep(&mut self, from: &mut [Distribution]) {
        self.drawn = from.len();
        self.from.resize_with(self.from.len().max(self.drawn), Distribution::default);
        self.from[..from.len()].swap_with_slice(from);
    }

    /// Counts the drafts of a row that was verified.
    pub fn verified(&mut self, drafts: &[u32], tokens: &[u32]) {
        let accepted = num_accepted(drafts, tokens);
        self.counts += DraftCounts { proposed: drafts.len(), accepted };
    }
}

impl Speculation {
    /// Speculates with the drafts of a drafter, at most `most` for a request in a step.
    pub fn new(drafter: Box<dyn Drafter>, most: usize, mode: WindowMode, vocab: usize) -> Self {
        Self {
            drafter,
            most,
            mode,
            draws: false,
            vocab,
            window: Window::default(),
            credit: 0,
            making: Duration::ZERO,
            made: Duration::ZERO,
            vacant: Vec::new(),
            slots: 0,
            rows: Vec::new(),
            spans: Vec::new(),
            asked: Vec::new(),
            live: Vec::new(),
            drafts: Drafts::default(),
            candidates: Candidates::default(),
            counts: Vec::new(),
        }
    }

    /// Ends a request.
    pub fn end(&mut self, state: &DraftState) {
        if let Some(slot) = state.slot {
            self.drafter.end(slot);
            self.vacant.push(slot);
        }
    }

    /// Forgets the rows of the step before.
    fn begin_step(&mut self) {
        self.rows.clear();
        self.asked.clear();
        self.live.clear();
        self.spans.clear();
        self.credit = (self.credit + 1).min(MAX_CREDIT);
    }

    /// Tells the drafter of the last tokens of a request.
    fn extend(&mut self, state: &DraftState, tokens: &[u32]) {
        if let Some(slot) = state.slot {
            self.drafter.extend(slot, tokens);
        }
    }

    /// Tells the drafter of a request's new tokens, and compares its last proposal with them. Returns its slot.
    fn learn(&mut self, state: &mut DraftState, row: &RowView<'_>, tokens: &[u32]) -> u32 {
        state.acceptance.follow(tokens, &mut self.window);
        let slot = *state.slot.get_or_insert_with(|| {
            let slot = self.vacant.pop().unwrap_or(self.slots);
            self.slots = self.slots.max(slot + 1);
            let (prompt, output) = row.request.tokens().split_at(row.request.prompt_len());
            let max_new = row.request.max_tokens();
            self.drafter.begin(slot, prompt, state.tenant.as_deref(), max_new);
            if let Some(how) = state.sampling.take() {
                self.drafter.set_sampling(slot, how);
            }
            self.drafter.extend(slot, output);
            state.acceptance.reserve(self.most);
            slot
        });
        self.drafter.extend(slot, tokens);
        slot
    }
}

impl ModelRunner {
    /// Proposes drafts for the requests that have sampled and go on.
    pub(super) fn propose(
        &mut self,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let Self { choices, speculation, taps, ws, .. } = self;
        let Some(speculation) = speculation else { return Ok(()) };
        let began = Instant::now();
        speculation.begin_step();
        let (mut outputs, mut end) = (out.rows(), 0);
        for (number, row) in step.rows().enumerate() {
            let start = end;
            end += row.row.len;
            let (seat, id) = (row.row.seat, row.row.id);
            let Some(choice) = choices.seated(seat, id) else { return Err(missing(id)) };
            let output = if row.row.samples { outputs.next() } else { None };
            let (tokens, finish) = output.map_or((&[][..], None), |(_, new, end)| (new, end));
            choice.drafts.verified(row.drafts, tokens);
            let most = choice.drafts.most.unwrap_or(usize::MAX).min(speculation.most);
            if finish.is_some() {
                // Other requests may learn from the end of this one.
                speculation.extend(&choice.drafts, tokens);
                continue;
            }
            // A prompt that is not complete is of interest to a drafter that reads hidden rows.
            if most == 0 || (output.is_none() && taps.is_empty()) {
                continue;
            }
            let slot = speculation.learn(&mut choice.drafts, &row, tokens);
            let span = speculation.spans.len();
            if output.is_some() {
                speculation.live.push(Live { number, slot, most, span });
            }
            if !taps.is_empty() && (output.is_some() || speculation.reads_prompts()) {
                // Rows of rejected drafts are rows of other texts.
                let rows = row.row.fed() + num_computed(row.drafts, tokens);
                let (first, rows) = (row.row.computed, start..start + rows);
                speculation.spans.push(HiddenSpan { slot, first, rows, most: 0 });
            }
        }
        drop(outputs);
        speculation.plan(step.step(), choices);
        speculation.read(ws, taps);
        speculation.ask(step.step(), choices);
        speculation.decide(step.step(), choices, out);
        speculation.made = std::mem::replace(&mut speculation.making, began.elapsed());
        Ok(())
    }
}

/// The choice of a row of a step.
fn choice_of<'a>(
    step: &StepPlan,
    number: usize,
    choices: &'a mut BySeat<RunningChoice>,
) -> Option<&'a mut RunningChoice> {
    let row = &step.rows[number];
    choices.seated(row.seat, row.id)
}

impl Speculation {
    /// Whether the drafter reads the hidden rows of prompts.
    fn reads_prompts(&self) -> bool {
        self.mode == WindowMode::Fixed || self.window.reads_prompts()
    }

    /// Decides how many drafts the drafter is asked for, and which hidden rows it reads.
    fn plan(&mut self, step: &StepPlan, choices: &mut BySeat<RunningChoice>) {
        let Self { live, rows, asked, spans, window, candidates, counts, drafter, credit, .. } =
            self;
        let mode = &self.mode;
        let judged = *mode == WindowMode::Adaptive && drafter.costs_time();
        candidates.clear();
        counts.clear();
        if judged {
            for one in &*live {
                if let Some(choice) = choice_of(step, one.number, choices) {
                    choice.drafts.acceptance.imagine(window, one.most, candidates);
                }
            }
            window.choose(candidates, live.len(), counts);
        }
        for (i, one) in live.iter().enumerate() {
            let Some(choice) = choice_of(step, one.number, choices) else { continue };
            choice.drafts.drawn = 0;
            let acceptance = &choice.drafts.acceptance;
            let due = match mode {
                WindowMode::Fixed => one.most,
                WindowMode::Adaptive if judged => {
                    let unread = drafter.num_unread(one.slot);
                    acceptance.to_make(counts[i], one.most, unread, credit)
                }
                WindowMode::Adaptive if acceptance.needs_proposal() => one.most,
                WindowMode::Adaptive => 0,
            };
            if due > 0 {
                rows.push(DraftRow { slot: one.slot, most: due });
                asked.push(one.number);
            }
            if let Some(span) = spans.get_mut(one.span) {
                span.most = due;
                if judged && !acceptance.reads(due) {
                    span.rows.end = span.rows.start;
                }
            }
        }
        spans.retain(|span| !span.rows.is_empty());
    }

    /// Hands the drafter the hidden rows of the step.
    fn read(&mut self, ws: &Workspace, taps: &[Tap]) {
        let Some(first) = taps.first().and_then(|tap| ws.tapped(*tap)) else { return };
        let mut hidden = [first; MAX_TAPS];
        for (rows, tap) in hidden.iter_mut().zip(taps) {
            *rows = ws.tapped(*tap).unwrap_or(first);
        }
        self.drafter.read(&self.spans, &hidden[..taps.len().min(MAX_TAPS)]);
    }

    /// Asks the drafter for the proposals that are due.
    fn ask(&mut self, step: &StepPlan, choices: &mut BySeat<RunningChoice>) {
        self.drafts.clear();
        self.drafter.propose(&self.rows, &mut self.drafts);
        for (i, number) in self.asked.iter().enumerate() {
            if let Some(choice) = choice_of(step, *number, choices) {
                choice.drafts.keep(self.drafts.drawn_from(i));
                let (drafts, classes) = self.drafts.row(i);
                // A token that the model does not have cannot be fed. Drawn drafts are never cut here: the vocabulary
                // of their drafter was compared with the model's.
                let known = drafts.iter().take_while(|id| (**id as usize) < self.vocab).count();
                let kept = known.min(self.rows[i].most);
                let (drafts, classes) = (&drafts[..kept], &classes[..kept]);
                let DraftState { acceptance, drawn, .. } = &mut choice.drafts;
                acceptance.propose(drafts, classes, *drawn > 0);
            }
        }
    }

    /// Decides how many drafts of each proposal the next step verifies. Drafts that were drawn are verified as they
    /// were asked for: a choice that depended on the drafts would change the distribution of what is accepted.
    fn decide(
        &mut self,
        step: &StepPlan,
        choices: &mut BySeat<RunningChoice>,
        out: &mut StepOutput,
    ) {
        let Self { live, window, candidates, counts, mode, .. } = self;
        candidates.clear();
        counts.clear();
        for one in &*live {
            if let Some(choice) = choice_of(step, one.number, choices) {
                let DraftState { acceptance, drawn, .. } = &choice.drafts;
                match mode {
                    // Its rows are counted as they were when its drafts were asked for.
                    WindowMode::Adaptive if *drawn > 0 => {
                        acceptance.imagine(window, acceptance.len(), candidates);
                    }
                    WindowMode::Adaptive => acceptance.offer(window, candidates),
                    WindowMode::Fixed => counts.push(acceptance.len()),
                }
            }
        }
        if *mode == WindowMode::Adaptive {
            window.choose(candidates, live.len(), counts);
        }
        for (Live { number, .. }, count) in live.iter().zip(&*counts) {
            let Some(choice) = choice_of(step, *number, choices) else { continue };
            let DraftState { acceptance, drawn, .. } = &mut choice.drafts;
            let count = if *drawn > 0 { acceptance.len() } else { *count };
            let drafts = acceptance.open(count);
            if !drafts.is_empty() {
                out.propose(*number, drafts);
            }
        }
    }

    /// Adds a step that has run, for the cost of drafts: those that it verified, not those that were made behind it.
    pub fn measured(&mut self, step: &StepPlan, took: Duration) {
        if step.tokens > 0 {
            let took = took.saturating_sub(self.making) + self.made;
            self.window.measured(&StepLoad::of(step), took);
        }
    }
}
