//! The window: how many drafts of each proposal the next step verifies.
//!
//! A step with `R` rows that decode and `D` drafts takes `c(R, D)` seconds and gives `R + E` tokens, where `E` is the
//! expected number of accepted drafts. A draft is worth its price if it is accepted more often than tokens would be made
//! in the time that it adds:
//!
//! ```text
//! q > price        q      probability that the draft and all drafts before it are accepted
//!                  price  seconds for a draft * tokens per second, (R + E) / c(R, D)
//! ```
//!
//! The rate depends on the drafts that are taken, and so does the price; a few rounds from `D = 0` settle both
//! (Dinkelbach's method for a ratio). All of it is measured while the engine runs:
//!
//! * `c`: a fit over the recent steps. While a step is bound by the memory's bandwidth, a draft costs a fraction of a row;
//!   once it is bound by arithmetic, a draft costs as much as a row, and only near certainties are worth it.
//! * `q`: a product of one probability for each draft: how often drafts of its confidence class were right in this engine,
//!   times how much better or worse than that this request's drafts were. A proposal is compared with what is sampled
//!   whether or not it was verified, so a window that is closed learns when to open at no cost.
//!
//! A request without drafts in the last step needs a little more than the price, so that a window does not open and close
//! with every step.

use std::time::Duration;

use l4_sampler::draft::CLASSES;

use crate::StepLoad;
use crate::step_time::{StepTime, StepTimeFit};

/// Factor by which the weight of a step shrinks with each later one in the fit of `c`: about the last 100 steps count,
/// since the price is a small difference of durations.
const STEP_DECAY: f64 = 0.99;

/// Number of steps with drafts before their measured price counts.
const PRICED_STEPS: u32 = 16;

/// Price while it is not measured: promising drafts are verified, which measures it.
const UNMEASURED_PRICE: f64 = 0.3;

/// Number of steps without drafts after which one step verifies what is likely, so that an old price is measured again.
const IDLE_STEPS: u32 = 256;

/// Maximum price in such a step.
const REMEASURED_PRICE: f64 = 0.6;

/// Number of rounds for the price. The rate grows with each, and most of it in the first.
const ROUNDS: usize = 4;

/// Factor on the price of drafts for a request that had none in the last step.
const OPENING: f64 = 1.1;

/// Factor by which the weight of a draft shrinks with each later one: of a class, and of a request.
const CLASS_DECAY: f64 = 0.995;
const REQUEST_DECAY: f64 = 0.95;

/// Number of steps after which a request is drafted for again, to see whether drafts are better now, if its drafts take
/// time to make; and the number of these drafts.
const PROBE_STEPS: u32 = 64;
const PROBE_DRAFTS: usize = 2;

/// Number of steps before that one whose hidden rows are read, if the drafter reads any.
const READ_STEPS: u32 = 16;

/// Number of imaginary drafts that a request begins with, as good as those of the engine.
const REQUEST_PRIOR: f64 = 4.0;

/// Maximum probability of a draft: nothing is certain.
const MAX_PROBABILITY: f64 = 0.98;

/// How often something was right.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    hits: f64,
    trials: f64,
}

impl Rate {
    fn add(&mut self, hit: bool, decay: f64) {
        self.hits = self.hits * decay + f64::from(u8::from(hit));
        self.trials = self.trials * decay + 1.0;
    }

    /// Probability of a hit. Two imaginary trials, one of them a hit, stand for what is not known.
    fn probability(&self) -> f64 {
        (self.hits + 1.0) / (self.trials + 2.0)
    }
}

/// Decides how many drafts are verified, and measures what it decides by.
#[derive(Debug)]
pub(crate) struct Window {
    classes: [Rate; CLASSES],
    /// Of all classes together.
    all: Rate,
    /// Price of a draft in the last decision.
    price: f64,
    fit: StepTimeFit,
    time: StepTime,
    /// Number of measured steps with drafts.
    priced: u32,
    /// Number of steps since the last one with drafts.
    idle: u32,
}

impl Default for Window {
    fn default() -> Self {
        let (fit, time) = (StepTimeFit::with_decay(STEP_DECAY), StepTime::default());
        let (classes, all) = ([Rate::default(); CLASSES], Rate::default());
        Self { classes, all, price: UNMEASURED_PRICE, fit, time, priced: 0, idle: 0 }
    }
}

/// Proposals that the window decides about. The memory is reused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    /// For each draft, the probability that it and all before it are accepted.
    probabilities: Vec<f64>,
    /// For each proposal, the index behind its last draft, and whether its request had drafts in the last step.
    rows: Vec<(usize, bool)>,
}

impl Candidates {
    pub(crate) fn clear(&mut self) {
        self.probabilities.clear();
        self.rows.clear();
    }

    /// Number of drafts of each proposal that are worth this price, in order.
    fn worth(&self, price: f64) -> impl Iterator<Item = (usize, &[f64])> + '_ {
        let mut start = 0;
        self.rows.iter().map(move |&(end, open)| {
            let row = &self.probabilities[std::mem::replace(&mut start, end)..end];
            let price = if open { price } else { price * OPENING };
            // exercise l5.window
            (row.iter().take_while(|q| **q > price).count(), row)
            // end of exercise
        })
    }
}

impl Window {
    /// Adds a step that was measured.
    pub(crate) fn measured(&mut self, load: &StepLoad, took: Duration) {
        self.time = self.fit.add(load, took);
        if load.verify_tokens > 0 {
            self.priced = self.priced.saturating_add(1);
            self.idle = 0;
        } else {
            self.idle = self.idle.saturating_add(1);
        }
    }

    /// Decides about proposals: appends to `counts` how many drafts of each are verified. `rows`: number of requests
    /// that decode in the next step.
    pub(crate) fn choose(&mut self, candidates: &Candidates, rows: usize, counts: &mut Vec<usize>) {
        self.price = self.price(candidates, rows);
        counts.extend(candidates.worth(self.price).map(|(count, _)| count));
    }

    /// Price of a draft, in tokens.
    fn price(&self, candidates: &Candidates, rows: usize) -> f64 {
        match self.settled_price(candidates, rows as f64) {
            _ if self.priced < PRICED_STEPS => UNMEASURED_PRICE,
            price if self.idle >= IDLE_STEPS => price.min(REMEASURED_PRICE),
            price => price,
        }
    }

    /// Price at the rate of a step with the drafts that are worth it.
    fn settled_price(&self, candidates: &Candidates, rows: f64) -> f64 {
        let StepTime { base, per_decode_row, per_draft, .. } = self.time;
        let per_draft = per_draft.unwrap_or(0.0);
        // exercise l5.window
        let (mut price, mut drafts, mut expected) = (0.0, 0.0, 0.0);
        for _ in 0..ROUNDS {
            let seconds = base + per_decode_row * rows + per_draft * drafts;
            price = per_draft * (rows + expected) / seconds.max(f64::MIN_POSITIVE);
            (drafts, expected) = (0.0, 0.0);
            for (count, row) in candidates.worth(price) {
                drafts += count as f64;
                expected += row[..count].iter().sum::<f64>();
            }
        }
        price
        // end of exercise
    }
}

/// A request's proposal, and how good its proposals have been.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acceptance {
    /// Drafts of the last proposal that nothing has been sampled for, and their confidence classes.
    drafts: Vec<u32>,
    classes: Vec<u8>,
    /// Number of right drafts, and how many were expected to be right.
    hits: f64,
    expected: f64,
    /// Number of drafts that were compared.
    trials: f64,
    /// Whether drafts were chosen for the last step, and the number of steps since that was so.
    open: bool,
    idle: u32,
}

impl Acceptance {
    /// Compares the proposal with what was sampled.
    pub(crate) fn follow(&mut self, tokens: &[u32], window: &mut Window) {
        let mut right = 0;
        for ((draft, class), token) in self.drafts.iter().zip(&self.classes).zip(tokens) {
            let rate = &mut window.classes[usize::from(*class).min(CLASSES - 1)];
            let hit = draft == token;
            self.expected = self.expected * REQUEST_DECAY + rate.probability();
            self.hits = self.hits * REQUEST_DECAY + f64::from(u8::from(hit));
            rate.add(hit, CLASS_DECAY);
            window.all.add(hit, CLASS_DECAY);
            self.trials = self.trials * REQUEST_DECAY + 1.0;
            if !hit {
                self.drafts.clear();
                self.classes.clear();
                return;
            }
            right += 1;
        }
        self.drafts.drain(..right);
        self.classes.drain(..right);
    }

    /// Whether a new proposal is due: the last one was verified, or is used up. One that is not verified is followed to
    /// its end, which costs nothing.
    pub(crate) fn needs_proposal(&self) -> bool {
        self.open || self.drafts.is_empty()
    }

    /// Number of drafts that are worth making, at most `most`, by how good those of this request and of all requests have
    /// been: for a drafter that takes time.
    pub(crate) fn worth_making(&self, window: &Window, most: usize) -> usize {
        let one =
            (self.hits + REQUEST_PRIOR * window.all.probability()) / (self.trials + REQUEST_PRIOR);
        let price = if self.open { window.price } else { window.price * OPENING };
        let chances = std::iter::successors(Some(one), |all| Some(all * one));
        let count = chances.take(most).take_while(|chance| *chance > price).count();
        if count == 0 && self.idle >= PROBE_STEPS { PROBE_DRAFTS.min(most) } else { count }
    }

    /// Whether a drafter that reads hidden rows is given those of the last step: drafts are worth making, or are soon
    /// tried again. Rows that are not read cost nothing, and leave a gap.
    pub(crate) fn reads(&self, window: &Window, most: usize) -> bool {
        self.worth_making(window, most) > 0 || self.idle + READ_STEPS >= PROBE_STEPS
    }

    /// Keeps a new proposal.
    pub(crate) fn propose(&mut self, drafts: &[u32], classes: &[u8]) {
        self.drafts.clear();
        self.drafts.extend_from_slice(drafts);
        self.classes.clear();
        self.classes.extend_from_slice(classes);
    }

    /// Adds the proposal, with its probabilities, to those that the window decides about.
    pub(crate) fn offer(&self, window: &Window, candidates: &mut Candidates) {
        let strength = (self.hits + REQUEST_PRIOR) / (self.expected + REQUEST_PRIOR);
        // exercise l5.window
        let mut all = 1.0;
        candidates.probabilities.extend(self.classes.iter().map(|class| {
            let rate = &window.classes[usize::from(*class).min(CLASSES - 1)];
            all *= (rate.probability() * strength).min(MAX_PROBABILITY);
            all
        }));
        // end of exercise
        candidates.rows.push((candidates.probabilities.len(), self.open));
    }

    /// Takes the first `count` drafts for the next step.
    pub(crate) fn open(&mut self, count: usize) -> &[u32] {
        self.open = count > 0;
        self.idle = if self.open { 0 } else { self.idle.saturating_add(1) };
        &self.drafts[..count]
    }

    /// Number of drafts of the proposal.
    pub(crate) fn len(&self) -> usize {
        self.drafts.len()
    }

    /// Makes room for proposals of `drafts` drafts.
    pub(crate) fn reserve(&mut self, drafts: usize) {
        self.drafts.reserve_exact(drafts);
        self.classes.reserve_exact(drafts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window that has measured steps of this price: `base + per_row * rows + per_draft * drafts` milliseconds.
    fn priced(base: f64, per_row: f64, per_draft: f64, rows: usize) -> Window {
        let mut window = Window::default();
        for step in 0..200 {
            let drafts = [0, 3, 1, 5][step % 4];
            let ms = base + per_row * rows as f64 + per_draft * drafts as f64;
            let load =
                StepLoad { decode_tokens: rows, verify_tokens: drafts, ..StepLoad::default() };
            window.measured(&load, Duration::from_secs_f64(ms / 1e3));
        }
        window
    }

    /// Number of drafts that the window takes of one proposal of 8 with this chance of each, from each of `rows` requests.
    fn taken(window: &mut Window, rows: usize, chance: f64) -> usize {
        let mut candidates = Candidates::default();
        for _ in 0..rows {
            candidates.probabilities.extend((1..=8).map(|i| chance.powi(i)));
            candidates.rows.push((candidates.probabilities.len(), true));
        }
        let mut counts = Vec::new();
        window.choose(&candidates, rows, &mut counts);
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?} of equal proposals");
        counts[0]
    }

    #[test]
    fn the_window_that_is_chosen_makes_the_most_tokens_a_second() {
        for (base, per_row, per_draft) in [(5.0, 0.27, 0.29), (5.0, 0.0, 0.1), (1.0, 1.0, 1.0)] {
            for rows in [1, 4, 16] {
                let mut window = priced(base, per_row, per_draft, rows);
                for chance in [0.1f64, 0.3, 0.5, 0.7, 0.9, 0.97] {
                    let rate = |drafts: usize| {
                        let n = rows as f64;
                        let expected: f64 = (1..=drafts).map(|i| chance.powi(i as i32)).sum();
                        let ms = base + per_row * n + per_draft * n * drafts as f64;
                        n * (1.0 + expected) / ms
                    };
                    let got = taken(&mut window, rows, chance);
                    let best = (0..=8).map(rate).fold(0.0, f64::max);
                    assert!(
                        rate(got) > 0.995 * best,
                        "{got} drafts of chance {chance} for {rows} rows at {per_draft} of {base}: {}, best {best}",
                        rate(got),
                    );
                }
            }
        }
    }

    #[test]
    fn drafts_that_cost_as_much_as_rows_are_taken_only_if_nearly_certain() {
        let mut window = priced(0.0, 1.0, 1.0, 32);
        assert_eq!(taken(&mut window, 32, 0.9), 0, "a draft for the price of a token");
        let mut window = priced(5.0, 0.05, 0.05, 1);
        assert_eq!(taken(&mut window, 1, 0.9), 8, "a draft for a hundredth of a token");
    }

    #[test]
    fn a_price_that_is_not_known_is_measured_with_promising_drafts_only() {
        let mut window = Window::default();
        let step = StepLoad { decode_tokens: 1, ..StepLoad::default() };
        window.measured(&step, Duration::from_millis(5));
        assert!(taken(&mut window, 1, 0.8) > 0);
        assert_eq!(taken(&mut window, 1, 0.2), 0);
    }

    #[test]
    fn a_closed_window_is_opened_for_one_step_after_a_while() {
        let mut window = priced(0.0, 1.0, 1.0, 8);
        assert_eq!(taken(&mut window, 8, 0.9), 0);
        let idle = StepLoad { decode_tokens: 8, ..StepLoad::default() };
        for _ in 0..IDLE_STEPS {
            window.measured(&idle, Duration::from_millis(8));
        }
        assert!(taken(&mut window, 8, 0.9) > 0, "what is likely, to measure the price again");
        assert_eq!(taken(&mut window, 8, 0.5), 0, "what is not");
    }

    #[test]
    fn proposals_that_are_not_verified_teach_how_good_a_class_is() {
        let mut window = Window::default();
        let mut request = Acceptance::default();
        for token in 0..300 {
            if request.needs_proposal() {
                // Class 3 is always right, class 5 never.
                request.propose(&[token, 77], &[3, 5]);
            }
            request.follow(&[token], &mut window);
        }
        assert!(window.classes[3].probability() > 0.95, "{:?}", window.classes[3]);
        assert!(window.classes[5].probability() < 0.05, "{:?}", window.classes[5]);
        assert_eq!(window.classes[4].probability(), 0.5, "nothing is known of another class");
    }

    #[test]
    fn a_request_whose_drafts_are_worse_than_those_of_others_is_expected_to_stay_so() {
        let mut window = Window::default();
        let (mut good, mut bad) = (Acceptance::default(), Acceptance::default());
        for token in 0..200 {
            good.propose(&[token], &[2]);
            good.follow(&[token], &mut window);
            bad.propose(&[token], &[2]);
            bad.follow(&[token + 1], &mut window);
        }
        let probability = |request: &mut Acceptance| {
            let mut candidates = Candidates::default();
            request.propose(&[1], &[2]);
            request.offer(&window, &mut candidates);
            candidates.probabilities[0]
        };
        let (good, bad) = (probability(&mut good), probability(&mut bad));
        assert!(good > 0.8 && bad < 0.2, "{good} and {bad}");
    }

    #[test]
    fn a_draft_is_as_likely_as_all_drafts_before_it_together() {
        let mut window = Window::default();
        window.classes[1] = Rate { hits: 998.0, trials: 998.0 };
        window.classes[6] = Rate { hits: 449.0, trials: 898.0 };
        let (mut request, mut candidates) = (Acceptance::default(), Candidates::default());
        request.propose(&[1, 2, 3], &[6, 1, 6]);
        request.offer(&window, &mut candidates);
        let want = [0.5, 0.5 * MAX_PROBABILITY, 0.25 * MAX_PROBABILITY];
        let near = |(got, want): (&f64, f64)| (got / want - 1.0).abs() < 1e-9;
        assert!(candidates.probabilities.iter().zip(want).all(near), "{candidates:?}");
        assert_eq!(candidates.rows, [(3, false)], "where the row ends, and whether it had drafts");
    }
}
