//! How long the machine computes a token of a prompt: by its cost model, or measured.

use super::Scheduler;
use crate::{CostModel, StepPlan, Time};

/// Number of tokens from which a step is measured. In a smaller one, what each step costs counts for too much.
const MIN_TOKENS: usize = 64;

/// Share of a step's tokens that belong to prompts, from which it is measured.
const MIN_SHARE: f64 = 0.9;

/// Weight of the newest measurement.
const WEIGHT: f64 = 0.2;

/// Seconds to compute a token of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PrefillTime {
    /// `None`: not known yet.
    pub(super) seconds_per_token: Option<f64>,
    /// Whether a cost model says it, so that nothing is measured.
    given: bool,
}

impl PrefillTime {
    /// The value of a cost model; without one, or if it says that prompts cost nothing, steps are measured.
    pub(super) fn of(cost: Option<&CostModel>) -> Self {
        let seconds_per_token = cost.map(|cost| cost.per_prefill_token).filter(|cost| *cost > 0.0);
        Self { seconds_per_token, given: seconds_per_token.is_some() }
    }

    /// Measures a step that has run from `begin` to `end`, if most of it was prefill.
    fn measure(&mut self, step: &StepPlan, begin: Time, end: Time) {
        if self.given || step.tokens < MIN_TOKENS {
            return;
        }
        let decodes = step.rows.iter().filter(|row| row.decodes()).map(|row| row.len);
        let prompts = step.tokens - decodes.sum::<usize>();
        let seconds = (end - begin) / step.tokens as f64;
        if (prompts as f64) < MIN_SHARE * step.tokens as f64
            || !seconds.is_finite()
            || seconds <= 0.0
        {
            return;
        }
        let before = self.seconds_per_token.unwrap_or(seconds);
        self.seconds_per_token = Some(before + WEIGHT * (seconds - before));
    }
}

impl Scheduler {
    /// Measures the step that is [due](Scheduler::due) and has run until `end`. It began when it was planned, or, if it
    /// was planned ahead, when the step before it ended.
    pub(super) fn measure_prefill(&mut self, end: Time) {
        let step = if self.is_ahead() { &self.running_step } else { &self.step };
        self.prefill.measure(step, self.now.max(step.now), end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admitted, RequestId, Seat, StepRow};

    const BEGIN: Time = Time(2.0);

    fn step(rows: &[(usize, bool)]) -> StepPlan {
        let rows: Vec<StepRow> = rows
            .iter()
            .enumerate()
            .map(|(n, (len, samples))| StepRow {
                id: RequestId(n as u64),
                seat: Seat { index: n as u32, generation: 0 },
                computed: 0,
                len: *len,
                drafts: 0,
                samples: *samples,
                awaits: false,
                admitted: Admitted::Before,
                cached: 0,
                blocks_before: 0,
            })
            .collect();
        let tokens = rows.iter().map(|row| row.len).sum();
        StepPlan { now: BEGIN, rows, tokens, ..StepPlan::default() }
    }

    #[test]
    fn steps_that_are_mostly_prefill_are_measured() {
        let mut time = PrefillTime::of(None);
        time.measure(&step(&[(63, true)]), BEGIN, Time(9.0));
        let many_decode: Vec<_> = (0..20).map(|_| (1, true)).chain([(100, false)]).collect();
        time.measure(&step(&many_decode), BEGIN, Time(9.0));
        assert_eq!(time.seconds_per_token, None, "small, or mostly decode");
        time.measure(&step(&[(100, false)]), BEGIN, Time(3.0));
        assert_eq!(time.seconds_per_token, Some(0.01));
        time.measure(&step(&[(100, false)]), BEGIN, Time(4.0));
        assert!((time.seconds_per_token.unwrap() - 0.012).abs() < 1e-12, "{time:?}");
        time.measure(&step(&[(100, false)]), BEGIN, Time(2.0));
        assert!(time.seconds_per_token.unwrap() > 0.01, "no time at all is no measurement");
    }

    #[test]
    fn a_cost_model_is_not_measured_again() {
        let cost = CostModel { per_prefill_token: 0.5, ..CostModel::SMOLLM2_TWO_CORES };
        let mut time = PrefillTime::of(Some(&cost));
        time.measure(&step(&[(100, false)]), BEGIN, Time(3.0));
        assert_eq!(time.seconds_per_token, Some(0.5));
    }
}
