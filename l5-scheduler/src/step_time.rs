//! Online fit of the duration of a step.

use std::time::Duration;

use crate::StepLoad;

/// Duration of a step in seconds:
/// `base + per_decode_row * decode rows + per_prefill_token * prompt tokens + per_draft * drafts`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepTime {
    /// Seconds of any step.
    pub base: f64,
    /// Seconds for each row of one token, or of one token and drafts.
    pub per_decode_row: f64,
    /// Seconds for each token of a row with several.
    pub per_prefill_token: f64,
    /// Seconds for each draft; `None` before the first.
    pub per_draft: Option<f64>,
}

/// Number of coefficients.
const N: usize = 4;

/// Indices of the coefficients. A duration that several of them explain is given to the first of them.
const DECODE: usize = 0;
const PREFILL: usize = 1;
const VERIFY: usize = 2;
const BASE: usize = 3;

/// Factor by which the weight of a step shrinks with each later one: about the last 25 steps count.
const DECAY: f64 = 0.96;

/// Number of sweeps over the coefficients after each step. More would only reach the least squares sooner.
const SWEEPS: usize = 8;

/// Minimum duration of a step in seconds, whatever the clock says.
const MIN_SECONDS: f64 = 1e-9;

/// Fits a [`StepTime`] to the steps of an engine, by least squares without negative coefficients.
///
/// After each step the normal equations are solved by coordinate descent that starts from the last solution: each
/// coefficient in turn is set to its best value given the others, or to 0 if that is negative. So no coefficient is
/// ever negative, no matrix is ever singular, and a coefficient that the steps leave open keeps its value. One
/// coefficient is left open while another explains the same steps, for example the base and the rows while all steps
/// have the same width.
///
/// The weight of a step is `1 / (predicted * measured)`. Where the two agree, errors are relative, so that short steps
/// count as much as long ones. Where they do not, a step moves the fit by the same amount however long it took: so one
/// step that another program delayed does little harm, and a lasting change of speed is followed.
#[derive(Debug, Default)]
pub(crate) struct StepTimeFit {
    /// Sums over the steps without prompt tokens. Steps with prompt tokens do not shrink them: in full steps the sum of
    /// rows and prompt tokens is constant, so these steps do not tell the cost of one from that of the other, and the
    /// cost of a row would be lost.
    without_prompts: Sums,
    /// Sums over the steps with prompt tokens. All steps shrink them, so that what is left of an earlier speed does not
    /// contradict the newer steps.
    with_prompts: Sums,
    /// The last solution.
    coefficients: Option<[f64; N]>,
    /// Whether any step had drafts.
    verified: bool,
}

/// Weighted sums of the normal equations, with a step as `(decode rows, prompt tokens, drafts, 1)`.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    products: [[f64; N]; N],
    seconds: [f64; N],
}

impl Sums {
    fn decay(&mut self, factor: f64) {
        let products = self.products.as_flattened_mut().iter_mut();
        products.chain(&mut self.seconds).for_each(|sum| *sum *= factor);
    }

    fn add(&mut self, step: &[f64; N], seconds: f64, weight: f64) {
        for (i, own) in step.iter().enumerate() {
            for (j, other) in step.iter().enumerate() {
                self.products[i][j] += weight * own * other;
            }
            self.seconds[i] += weight * own * seconds;
        }
    }
}

impl StepTimeFit {
    /// Adds a step, and returns the fit that includes it.
    pub(crate) fn add(&mut self, load: &StepLoad, took: Duration) -> StepTime {
        let Self { without_prompts: decode, with_prompts: prefill, coefficients, verified } = self;
        let StepLoad { prefill_tokens, decode_tokens, verify_tokens, .. } = *load;
        *verified |= verify_tokens > 0;
        let seconds = took.as_secs_f64().max(MIN_SECONDS);
        let step = [decode_tokens as f64, prefill_tokens as f64, verify_tokens as f64, 1.0];
        let each = seconds / (step[DECODE] + step[PREFILL] + step[VERIFY]).max(1.0);
        let coefficients = coefficients.get_or_insert([each, each, each, 0.0]);
        let predicted: f64 = step.iter().zip(&*coefficients).map(|(a, b)| a * b).sum();
        let weight = 1.0 / (predicted.max(MIN_SECONDS) * seconds);
        prefill.decay(DECAY);
        if prefill_tokens > 0 {
            prefill.add(&step, seconds, weight);
        } else {
            decode.decay(DECAY);
            decode.add(&step, seconds, weight);
        }
        for _ in 0..SWEEPS {
            // A step says nothing about coefficients that have no part in it.
            for i in (0..N).filter(|i| step[*i] > 0.0) {
                let product = |j: usize| decode.products[i][j] + prefill.products[i][j];
                let others: f64 =
                    (0..N).filter(|j| *j != i).map(|j| product(j) * coefficients[j]).sum();
                let best = (decode.seconds[i] + prefill.seconds[i] - others) / product(i);
                coefficients[i] = best.max(0.0);
            }
        }
        StepTime {
            base: coefficients[BASE],
            per_decode_row: coefficients[DECODE],
            per_prefill_token: coefficients[PREFILL],
            per_draft: verified.then_some(coefficients[VERIFY]),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRUTH: StepTime =
        StepTime { base: 5e-3, per_decode_row: 3e-4, per_prefill_token: 2.5e-4, per_draft: None };

    /// A step of so many decode rows and prompt tokens.
    fn load((decode_tokens, prefill_tokens): (usize, usize)) -> StepLoad {
        StepLoad { decode_tokens, prefill_tokens, ..StepLoad::default() }
    }

    impl StepTime {
        fn seconds(&self, (decode_rows, prefill_tokens): (usize, usize)) -> f64 {
            self.base
                + self.per_decode_row * decode_rows as f64
                + self.per_prefill_token * prefill_tokens as f64
        }

        fn slower(&self, factor: f64) -> Self {
            Self {
                base: factor * self.base,
                per_decode_row: factor * self.per_decode_row,
                per_prefill_token: factor * self.per_prefill_token,
                per_draft: self.per_draft.map(|seconds| factor * seconds),
            }
        }
    }

    /// Decode rows and prompt tokens of varied steps: one of four has a prompt.
    fn varied(steps: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..steps).map(|i| (i * 11 % 32 + 1, if i % 4 == 0 { i * 37 % 256 + 2 } else { 0 }))
    }

    /// Adds steps that take `seconds`, and returns the last fit.
    fn fit(
        fit: &mut StepTimeFit,
        steps: impl IntoIterator<Item = (usize, usize)>,
        mut seconds: impl FnMut(usize, (usize, usize)) -> f64,
    ) -> StepTime {
        let mut time = StepTime::default();
        for (number, step) in steps.into_iter().enumerate() {
            let took = Duration::from_secs_f64(seconds(number, step));
            time = fit.add(&load(step), took);
        }
        time
    }

    #[track_caller]
    fn near(got: f64, want: f64, error: f64) {
        assert!((got / want - 1.0).abs() < error, "{got}, not {want}");
    }

    #[track_caller]
    fn near_all(got: StepTime, want: StepTime, error: f64) {
        near(got.base, want.base, error);
        near(got.per_decode_row, want.per_decode_row, error);
        near(got.per_prefill_token, want.per_prefill_token, error);
    }

    /// A factor from 0.8 to 1.2, another one for each number.
    fn noise(number: usize) -> f64 {
        0.8 + (number * 7919 % 401) as f64 / 1000.0
    }

    #[test]
    fn known_coefficients_are_recovered() {
        let time = fit(&mut StepTimeFit::default(), varied(100), |_, step| TRUTH.seconds(step));
        near_all(time, TRUTH, 1e-3);
    }

    #[test]
    fn after_one_step_every_token_costs_the_same() {
        let time = StepTimeFit::default().add(&load((3, 7)), Duration::from_millis(20));
        near(time.per_decode_row, 2e-3, 1e-9);
        near(time.per_prefill_token, 2e-3, 1e-9);
        assert!(time.base < 1e-9, "{time:?}");
        // No decode row was measured yet: it counts as a prompt token.
        let time = StepTimeFit::default().add(&load((0, 10)), Duration::from_millis(20));
        near(time.seconds((1, 0)), 2e-3, 1e-9);
    }

    #[test]
    fn steps_of_one_width_give_the_ratio_and_other_widths_the_base() {
        let mut online = StepTimeFit::default();
        let steps = std::iter::once((0, 100)).chain([(8, 0); 500]);
        let time = fit(&mut online, steps, |_, step| TRUTH.seconds(step));
        let measured = TRUTH.seconds((8, 0));
        near(time.seconds((8, 0)), measured, 1e-6);
        near(time.seconds((16, 0)), 2.0 * measured, 1e-3);
        let time =
            fit(&mut online, [(4, 0), (8, 0), (16, 0)].repeat(20), |_, step| TRUTH.seconds(step));
        near(time.base, TRUTH.base, 1e-2);
        near(time.per_decode_row, TRUTH.per_decode_row, 1e-2);
    }

    #[test]
    fn steps_of_one_width_keep_what_other_widths_have_taught() {
        let mut online = StepTimeFit::default();
        fit(&mut online, varied(100), |_, step| TRUTH.seconds(step));
        let time = fit(&mut online, [(8, 0); 2000], |i, step| noise(i) * TRUTH.seconds(step));
        near(time.seconds((8, 0)), TRUTH.seconds((8, 0)), 0.1);
        near(time.seconds((1, 0)), TRUTH.seconds((1, 0)), 0.2);
        near(time.seconds((32, 0)), TRUTH.seconds((32, 0)), 0.2);
    }

    #[test]
    fn full_steps_do_not_unlearn_the_cost_of_a_row() {
        let mut online = StepTimeFit::default();
        fit(&mut online, varied(100), |_, step| TRUTH.seconds(step));
        // Rows and prompt tokens always fill the budget.
        let full = (0..3000).map(|i| (20 + i % 5, 236 - i % 5));
        let time = fit(&mut online, full, |i, step| noise(i) * TRUTH.seconds(step));
        near(time.seconds((20, 0)), TRUTH.seconds((20, 0)), 0.1);
        near(time.per_prefill_token, TRUTH.per_prefill_token, 0.1);
    }

    #[test]
    fn drafts_have_a_cost_of_their_own() {
        let mut online = StepTimeFit::default();
        let time = fit(&mut online, varied(100), |_, step| TRUTH.seconds(step));
        assert_eq!(time.per_draft, None, "before the first draft");
        let mut time = StepTime::default();
        for (i, step) in varied(400).enumerate() {
            // Only some of the rows have drafts.
            let verify_tokens = i % 3 * step.0;
            let seconds = TRUTH.seconds(step) + 2e-4 * verify_tokens as f64;
            let load = StepLoad { verify_tokens, ..load(step) };
            time = online.add(&load, Duration::from_secs_f64(seconds));
        }
        near(time.per_draft.unwrap(), 2e-4, 1e-2);
        near(time.per_prefill_token, TRUTH.per_prefill_token, 1e-2);
        near(time.seconds((8, 0)), TRUTH.seconds((8, 0)), 1e-2);
    }

    #[test]
    fn a_change_of_speed_is_followed() {
        for factor in [10.0, 2.0, 0.5, 0.1] {
            let mut online = StepTimeFit::default();
            fit(&mut online, varied(300), |_, step| TRUTH.seconds(step));
            let changed = TRUTH.slower(factor);
            let time = fit(&mut online, varied(400), |_, step| changed.seconds(step));
            near_all(time, changed, 0.05);
            // Also at one width, without prompts.
            let mut online = StepTimeFit::default();
            fit(&mut online, varied(300), |_, step| TRUTH.seconds(step));
            let time = fit(&mut online, [(8, 0); 300], |_, step| changed.seconds(step));
            near(time.seconds((8, 0)), changed.seconds((8, 0)), 0.05);
        }
    }

    #[test]
    fn steps_that_other_programs_delay_count_little() {
        let mut online = StepTimeFit::default();
        let factor = |i: usize| if i % 40 == 17 { 30.0 } else { noise(i) };
        let time = fit(&mut online, varied(2000), |i, step| factor(i) * TRUTH.seconds(step));
        for step in [(1, 0), (8, 0), (32, 0), (8, 200)] {
            near(time.seconds(step), TRUTH.seconds(step), 0.25);
        }
    }

    proptest! {
        #[test]
        fn no_coefficient_is_negative(
            steps in prop::collection::vec(
                (0_usize..40, 0_usize..400, 0_usize..100, 0_u64..1_000_000_000), 1..200,
            ),
        ) {
            let mut online = StepTimeFit::default();
            for (decode_rows, prefill_tokens, verify_tokens, nanos) in steps {
                let load = StepLoad { verify_tokens, ..load((decode_rows, prefill_tokens)) };
                let time = online.add(&load, Duration::from_nanos(nanos));
                let per_draft = time.per_draft.unwrap_or_default();
                for coefficient in
                    [time.base, time.per_decode_row, time.per_prefill_token, per_draft]
                {
                    prop_assert!(coefficient.is_finite() && coefficient >= 0.0, "{:?}", time);
                }
            }
        }
    }
}
