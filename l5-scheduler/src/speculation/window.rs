//! The window: how many drafts of each proposal the next step verifies.
//!
//! A step of `R` requests and `D` drafts takes `c(R + D)` seconds and gives `R + E` tokens, where `E` is the expected
//! number of accepted drafts: the sum of their probabilities `q`. The drafts of all requests are ranked by `q`. With the
//! `D` best of them the engine makes
//!
//! ```text
//! (R + q_1 + .. + q_D) / c(R + D)      tokens a second
//! ```
//!
//! and the step takes the `D` for which that is the most. Both parts are measured while the engine runs:
//!
//! * `c`: durations of recent steps, by their number of rows ([`StepCurve`]). While a step is bound by the memory's
//!   bandwidth, a draft costs a fraction of a row; once it is bound by arithmetic, a draft costs as much as a row, and
//!   only near certainties are worth it.
//! * `q`: a product of one probability for each draft: how often drafts of its confidence class were right in this engine,
//!   times how much better or worse than that this request's drafts were. A proposal is compared with what is sampled
//!   whether or not it was verified, so a window that is closed learns when to open at no cost.
//!
//! Drafts of a request without any in the last step count for a little less, so that a window does not open and close
//! with every step.

use std::time::Duration;

use l4_sampler::draft::CLASSES;

use super::curve::StepCurve;
use crate::StepLoad;

/// Factor on the probabilities of drafts for a request that had none in the last step.
const OPENING: f64 = 0.9;

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
#[derive(Debug, Default)]
pub(crate) struct Window {
    classes: [Rate; CLASSES],
    /// Of all classes together.
    all: Rate,
    curve: StepCurve,
    /// Number of steps since the last one with drafts.
    idle: u32,
    /// Drafts by falling probability, each with its proposal. The memory is reused.
    ranked: Vec<(f64, usize)>,
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

    /// Writes all drafts by falling probability, each with the index of its proposal.
    fn rank(&self, ranked: &mut Vec<(f64, usize)>) {
        ranked.clear();
        let mut start = 0;
        for (row, &(end, open)) in self.rows.iter().enumerate() {
            let factor = if open { 1.0 } else { OPENING };
            let own = &self.probabilities[std::mem::replace(&mut start, end)..end];
            ranked.extend(own.iter().map(|q| (factor * q, row)));
        }
        ranked.sort_unstable_by(|(a, _), (b, _)| b.total_cmp(a));
    }
}

/// Number of drafts with which a step makes the most tokens a second: the first of `ranked`, whose probabilities fall.
/// `seconds`: duration of a step by its number of rows; without drafts, it has `rows`.
fn fastest(ranked: &[(f64, usize)], rows: usize, seconds: impl Fn(usize) -> f64) -> usize {
    // exercise l5.window
    let mut tokens = rows as f64;
    let (mut best, mut best_rate) = (0, tokens / seconds(rows));
    for (i, (q, _)) in ranked.iter().enumerate() {
        let drafts = i + 1;
        tokens += q;
        let rate = tokens / seconds(rows + drafts);
        if rate > best_rate {
            (best, best_rate) = (drafts, rate);
        }
    }
    best
    // end of exercise
}

impl Window {
    /// Adds a step that was measured.
    pub(crate) fn measured(&mut self, load: &StepLoad, took: Duration) {
        if load.prefill_tokens == 0 {
            self.curve.add(load.decode_tokens + load.verify_tokens, took);
        }
        self.idle = if load.verify_tokens > 0 { 0 } else { self.idle.saturating_add(1) };
    }

    /// Decides about proposals: appends to `counts` how many drafts of each are verified. `rows`: number of requests
    /// that decode in the next step.
    pub(crate) fn choose(&mut self, candidates: &Candidates, rows: usize, counts: &mut Vec<usize>) {
        let first = counts.len();
        counts.resize(first + candidates.rows.len(), 0);
        let Self { curve, ranked, .. } = self;
        if curve.seconds(rows).is_none() {
            return;
        }
        candidates.rank(ranked);
        let count = fastest(ranked, rows, |rows| curve.seconds(rows).unwrap_or(f64::INFINITY));
        ranked[..count].iter().for_each(|(_, row)| counts[first + row] += 1);
    }

    /// Whether a drafter that reads hidden rows reads those of prompts: drafts were verified lately.
    pub(crate) fn reads_prompts(&self) -> bool {
        self.idle < PROBE_STEPS
    }
}

/// A request's proposal, and how good its proposals have been.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acceptance {
    /// Drafts of the last proposal that nothing has been sampled for, and their confidence classes.
    drafts: Vec<u32>,
    classes: Vec<u8>,
    /// Whether they were drawn. Such drafts have no classes, and are right more often than others.
    drawn: bool,
    /// Number of right drafts, and how many were expected to be right.
    hits: f64,
    expected: f64,
    /// Number of drafts that were compared.
    trials: f64,
    /// Whether drafts were chosen for the last step, and the number of steps since drafts were made.
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
            if !self.drawn {
                rate.add(hit, CLASS_DECAY);
            }
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

    /// Adds a proposal of `most` drafts that has not been made to those that the window decides about, by how good those
    /// of this request and of all requests have been: for a drafter that takes time.
    pub(crate) fn imagine(&self, window: &Window, most: usize, candidates: &mut Candidates) {
        let one =
            (self.hits + REQUEST_PRIOR * window.all.probability()) / (self.trials + REQUEST_PRIOR);
        let chances = std::iter::successors(Some(one), |all| Some(all * one));
        candidates.probabilities.extend(chances.take(most));
        candidates.rows.push((candidates.probabilities.len(), self.open));
    }

    /// Number of drafts to make, of `count` that are worth it and at most `most`: some now and then although none are, to
    /// see whether drafts are better now. Tokens that the drafter has to compute for such a probe, `unread`, are taken
    /// from `credit`.
    pub(crate) fn to_make(
        &self,
        count: usize,
        most: usize,
        unread: usize,
        credit: &mut usize,
    ) -> usize {
        if count > 0 || self.idle < PROBE_STEPS || unread > *credit {
            return count;
        }
        *credit -= unread;
        PROBE_DRAFTS.min(most)
    }

    /// Whether a drafter that reads hidden rows reads those of the last step, behind which it makes `drafts` drafts: it
    /// makes some, or soon will. Rows that are not read cost nothing, and leave a gap.
    pub(crate) fn reads(&self, drafts: usize) -> bool {
        drafts > 0 || self.idle + READ_STEPS >= PROBE_STEPS
    }

    /// Keeps a new proposal.
    pub(crate) fn propose(&mut self, drafts: &[u32], classes: &[u8], drawn: bool) {
        self.drawn = drawn;
        self.drafts.clear();
        self.drafts.extend_from_slice(drafts);
        self.classes.clear();
        self.classes.extend_from_slice(classes);
        self.idle = 0;
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
        self.idle = self.idle.saturating_add(1);
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

    /// Milliseconds of a step by its number of rows: bound by memory; the same, and rows cost something; rows in tiles of
    /// six beyond twelve; in tiles of four; rows alone.
    const MACHINES: [fn(f64) -> f64; 5] = [
        |_| 5.0,
        |rows| 5.0 + 0.28 * rows,
        |rows| if rows <= 12.0 { 13.0 + 0.6 * rows } else { 10.0 + 10.0 * (rows / 6.0).ceil() },
        |rows| 4.0 + 4.0 * (rows / 4.0).ceil(),
        |rows| rows,
    ];

    fn measure(window: &mut Window, machine: fn(f64) -> f64, rows: usize, drafts: usize) {
        let load = StepLoad { decode_tokens: rows, verify_tokens: drafts, ..StepLoad::default() };
        window.measured(&load, Duration::from_secs_f64(machine((rows + drafts) as f64) / 1e3));
    }

    /// A proposal of 8 drafts with this chance of each, from each of `rows` requests.
    fn candidates(rows: usize, chance: f64) -> Candidates {
        let mut candidates = Candidates::default();
        for _ in 0..rows {
            candidates.probabilities.extend((1..=8).map(|i| chance.powi(i)));
            candidates.rows.push((candidates.probabilities.len(), true));
        }
        candidates
    }

    /// Number of drafts that the window takes of these proposals.
    fn taken(window: &mut Window, rows: usize, chance: f64) -> Vec<usize> {
        let mut counts = Vec::new();
        window.choose(&candidates(rows, chance), rows, &mut counts);
        counts
    }

    /// Tokens a millisecond, if `counts` of the drafts are verified.
    fn rate(machine: fn(f64) -> f64, chance: f64, counts: &[usize]) -> f64 {
        let of = |count: &usize| (0..=*count).map(|i| chance.powi(i as i32)).sum::<f64>();
        let rows = counts.len() + counts.iter().sum::<usize>();
        counts.iter().map(of).sum::<f64>() / machine(rows as f64)
    }

    /// The most tokens a millisecond, over all numbers of drafts that are as equal as can be.
    fn best_rate(machine: fn(f64) -> f64, rows: usize, chance: f64) -> f64 {
        let counts = |all: usize| -> Vec<_> {
            (0..rows).map(|row| all / rows + usize::from(row < all % rows)).collect()
        };
        (0..=8 * rows).map(|all| rate(machine, chance, &counts(all))).fold(0.0, f64::max)
    }

    #[test]
    fn the_window_that_is_chosen_makes_the_most_tokens_a_second() {
        for machine in MACHINES {
            // So many rows that each number of them is measured on its own.
            for rows in [1, 2] {
                let mut window = Window::default();
                (0..=8 * rows).for_each(|drafts| measure(&mut window, machine, rows, drafts));
                for chance in [0.1f64, 0.3, 0.5, 0.7, 0.9, 0.97] {
                    let counts = taken(&mut window, rows, chance);
                    let (got, best) =
                        (rate(machine, chance, &counts), best_rate(machine, rows, chance));
                    assert!(got > 0.999 * best, "{counts:?} of chance {chance}: {got} of {best}");
                }
            }
        }
    }

    #[test]
    fn drafts_that_cost_as_much_as_rows_are_left_out_and_those_that_cost_nothing_are_taken() {
        let [memory, .., arithmetic] = MACHINES;
        for (machine, want) in [(memory, [8, 8]), (arithmetic, [0, 0])] {
            let mut window = Window::default();
            (0..=16).for_each(|drafts| measure(&mut window, machine, 2, drafts));
            assert_eq!(taken(&mut window, 2, 0.9), want);
        }
    }

    /// Runs an engine of `rows` requests with drafts of this chance. Returns its tokens a millisecond in the last half, and
    /// those of the best window.
    fn run(machine: fn(f64) -> f64, rows: usize, chance: f64) -> [f64; 2] {
        let (mut window, mut tokens, mut took) = (Window::default(), 0.0, 0.0);
        measure(&mut window, machine, rows, 0);
        for step in 0..1200 {
            let counts = taken(&mut window, rows, chance);
            let drafts = counts.iter().sum();
            measure(&mut window, machine, rows, drafts);
            if step >= 400 {
                let ms = machine((rows + drafts) as f64);
                tokens += ms * rate(machine, chance, &counts);
                took += ms;
            }
        }
        [tokens / took, best_rate(machine, rows, chance)]
    }

    #[test]
    fn an_engine_finds_the_best_window_by_trying_and_loses_nothing_with_bad_drafts() {
        for machine in MACHINES {
            for rows in [1, 4, 8, 11, 32] {
                for (chance, share) in [(0.05, 0.9), (0.3, 0.9), (0.6, 0.95), (0.9, 0.93)] {
                    let [got, best] = run(machine, rows, chance);
                    let off = rate(machine, chance, &vec![0; rows]);
                    let (gain, left) = (got / off, got / best);
                    assert!(gain > 0.97, "{rows} rows, drafts of chance {chance}: {gain} of none");
                    assert!(left > share, "{rows} rows, drafts of chance {chance}: {left} of best");
                }
            }
        }
    }

    #[test]
    fn a_cost_that_is_not_known_is_measured_with_promising_drafts_only() {
        let mut window = Window::default();
        assert_eq!(taken(&mut window, 1, 0.9), [0], "before the first step");
        measure(&mut window, MACHINES[4], 1, 0);
        assert!(taken(&mut window, 1, 0.8)[0] > 0);
        assert_eq!(taken(&mut window, 1, 0.2), [0]);
    }

    #[test]
    fn a_request_that_is_closed_needs_better_drafts_to_open() {
        let mut window = Window::default();
        (0..=4).for_each(|drafts| measure(&mut window, |rows| 4.0 + 1.9 * rows, 2, drafts));
        let mut both =
            Candidates { probabilities: vec![0.5, 0.5], rows: vec![(1, true), (2, false)] };
        let mut counts = Vec::new();
        window.choose(&both, 2, &mut counts);
        assert_eq!(counts, [1, 0]);
        both.probabilities[1] = 0.6;
        counts.clear();
        window.choose(&both, 2, &mut counts);
        assert_eq!(counts, [1, 1]);
    }

    #[test]
    fn drafts_that_take_time_are_made_where_they_are_worth_it_and_else_now_and_then() {
        let (mut window, mut request) = (Window::default(), Acceptance::default());
        (0..=4).for_each(|drafts| measure(&mut window, MACHINES[1], 1, drafts));
        let (mut made, mut credit) = (Vec::new(), 0);
        for step in 0..200 {
            let (mut candidates, mut counts) = (Candidates::default(), Vec::new());
            request.imagine(&window, 4, &mut candidates);
            window.choose(&candidates, 1, &mut counts);
            let drafts = request.to_make(counts[0], 4, 10, &mut credit);
            credit += 1;
            if drafts > 0 {
                request.propose(&vec![7; drafts], &vec![0; drafts], false);
                made.push((step, drafts));
            }
            request.open(0);
            // None of them is ever right.
            request.follow(&[8], &mut window);
        }
        let late: Vec<_> = made.iter().filter(|(step, _)| *step >= 70).collect();
        assert!(made.len() < 30, "{made:?}");
        assert!(matches!(late[..], [(_, PROBE_DRAFTS), ..]) && late.len() <= 3, "{late:?}");
        assert_eq!(request.to_make(0, 4, credit + 1, &mut credit), 0, "a probe that is too dear");
    }

    #[test]
    fn proposals_that_are_not_verified_teach_how_good_a_class_is() {
        let mut window = Window::default();
        let mut request = Acceptance::default();
        for token in 0..300 {
            if request.needs_proposal() {
                // Class 3 is always right, class 5 never.
                request.propose(&[token, 77], &[3, 5], false);
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
            good.propose(&[token], &[2], false);
            good.follow(&[token], &mut window);
            bad.propose(&[token], &[2], false);
            bad.follow(&[token + 1], &mut window);
        }
        let probability = |request: &mut Acceptance| {
            let mut candidates = Candidates::default();
            request.propose(&[1], &[2], false);
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
        request.propose(&[1, 2, 3], &[6, 1, 6], false);
        request.offer(&window, &mut candidates);
        let want = [0.5, 0.5 * MAX_PROBABILITY, 0.25 * MAX_PROBABILITY];
        let near = |(got, want): (&f64, f64)| (got / want - 1.0).abs() < 1e-9;
        assert!(candidates.probabilities.iter().zip(want).all(near), "{candidates:?}");
        assert_eq!(candidates.rows, [(3, false)], "where the row ends, and whether it had drafts");
    }

    #[test]
    fn drawn_drafts_count_for_the_drafter_and_for_no_class() {
        let (mut window, mut request) = (Window::default(), Acceptance::default());
        let classes = |window: &Window| window.classes.map(|rate| rate.probability());
        let before = (classes(&window), window.all.probability());
        request.propose(&[1, 2, 3], &[8, 8, 8], true);
        request.follow(&[1, 2, 3], &mut window);
        assert_eq!(classes(&window), before.0);
        assert!(window.all.probability() > before.1);
        request.propose(&[1, 2, 3], &[8, 8, 8], false);
        request.follow(&[1, 2, 3], &mut window);
        assert_ne!(classes(&window), before.0);
    }
}
