//! The clock of the simulator, and what is read off it. Costs are powers of two, so that sums are exact.

use l5_scheduler::sim::{Durations, VirtualClock};
use l5_scheduler::{Admitted, CostModel, RequestId, Seat, StepLoad, StepPlan, StepRow, Time};
use proptest::prelude::*;

/// A second for a step, half of one for a prompt's token, a quarter for a decode, an eighth for a draft, and 1/1024 for
/// each token read.
pub const COST: CostModel = CostModel {
    base: 1.0,
    per_prefill_token: 0.5,
    per_decode_token: 0.25,
    per_verify_token: Some(0.125),
    per_kv_byte: 1.0 / 4096.0,
    kv_bytes_per_token: 4.0,
    load_bytes_per_second: None,
};

/// A step of rows that have `computed` tokens and compute `len` more.
fn step(rows: &[(usize, usize)]) -> StepPlan {
    let row = |(index, (computed, len)): (usize, &(usize, usize))| StepRow {
        id: RequestId(index as u64),
        seat: Seat { index: index as u32, generation: 0 },
        computed: *computed,
        len: *len,
        drafts: 0,
        awaits: false,
        samples: true,
        admitted: Admitted::Before,
        cached: 0,
        blocks_before: 0,
    };
    let tokens = rows.iter().map(|(_, len)| len).sum();
    StepPlan { rows: rows.iter().enumerate().map(row).collect(), tokens, ..StepPlan::default() }
}

#[test]
fn a_row_of_one_token_decodes_and_a_longer_one_is_prefill() {
    let got = StepLoad::of(&step(&[(0, 5), (16, 1), (7, 1), (32, 3)]));
    let kv_tokens = 5 + 17 + 8 + 35;
    let want = StepLoad { prefill_tokens: 8, decode_tokens: 2, verify_tokens: 0, kv_tokens };
    assert_eq!(got, want, "the load of rows (computed, len) (0,5) (16,1) (7,1) (32,3)");
    assert_eq!(StepLoad::of(&step(&[])), StepLoad::default(), "the load of an empty step");
}

#[test]
fn drafts_are_neither_prefill_nor_decode() {
    // A decode with 3 drafts, two tokens with 2 drafts, and a decode.
    let mut step = step(&[(16, 4), (7, 4), (9, 1)]);
    (step.rows[0].drafts, step.rows[1].drafts) = (3, 2);
    let kv_tokens = 20 + 11 + 10;
    let want = StepLoad { prefill_tokens: 2, decode_tokens: 2, verify_tokens: 5, kv_tokens };
    assert_eq!(StepLoad::of(&step), want);
}

#[test]
fn seconds_are_the_sum_of_their_parts() {
    let load = StepLoad { prefill_tokens: 8, decode_tokens: 2, verify_tokens: 2, kv_tokens: 512 };
    assert_eq!(COST.seconds(&load), 1.0 + 4.0 + 0.5 + 0.25 + 0.5, "seconds of {load:?}");
    // A model that knows nothing of drafts: they cost as much as tokens of a prompt.
    let cost = CostModel { per_verify_token: None, ..COST };
    assert_eq!(cost.seconds(&load), 1.0 + 4.0 + 0.5 + 1.0 + 0.5, "seconds of {load:?}");
    let nothing = StepLoad::default();
    assert_eq!(COST.seconds(&nothing), 1.0, "seconds of a step that does nothing: the base");
}

#[test]
fn a_step_moves_the_clock_by_its_cost() {
    let mut clock = VirtualClock::new(COST);
    assert_eq!(clock.run(&step(&[(0, 4)])), Time(3.0 + 4.0 / 1024.0), "the end of the first step");
    clock.run(&step(&[(4, 1)]));
    assert_eq!(clock.now(), Time(4.25 + 9.0 / 1024.0), "the time after two steps");
}

#[test]
fn a_step_without_rows_takes_no_time() {
    let mut clock = VirtualClock::new(COST);
    clock.wait_until(Time(2.0));
    assert_eq!(clock.run(&step(&[])), Time(2.0), "the end of an empty step that began at 2");
}

#[test]
fn waiting_never_turns_the_clock_back() {
    let mut clock = VirtualClock::new(COST);
    clock.wait_until(Time(5.0));
    assert_eq!(clock.now(), Time(5.0), "the time after waiting until 5");
    clock.wait_until(Time(3.0));
    assert_eq!(clock.now(), Time(5.0), "the time after waiting until 3, when it was 5");
}

#[test]
fn percentiles_of_a_few_can_be_counted_off() {
    let mut durations = Durations::default();
    for seconds in [4.0, 1.0, 3.0, 2.0, 2.0] {
        durations.add(seconds);
    }
    let at = [0.0, 20.0, 21.0, 50.0, 60.0, 61.0, 80.0, 95.0, 100.0];
    let got: Vec<_> = at.iter().map(|percent| durations.percentile(*percent)).collect();
    let want = [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0].map(Some);
    assert_eq!(got, want, "of 1 2 2 3 4, the percentiles {at:?}");
    assert_eq!(Durations::default().percentile(50.0), None, "the median of nothing");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn percentiles_are_those_of_sorted_values(
        values in prop::collection::vec(0u32..50, 1..400),
        per_mille in 0u32..=1000,
    ) {
        let percent = f64::from(per_mille) / 10.0;
        let mut durations = Durations::default();
        for value in &values {
            durations.add(f64::from(*value));
        }
        let mut sorted = values.clone();
        sorted.sort_unstable();
        // In whole numbers: the first value with at least per_mille / 1000 of all at or below it.
        let want = (1..=sorted.len())
            .find(|n| n * 1000 >= per_mille as usize * sorted.len())
            .map(|n| f64::from(sorted[n - 1]));
        prop_assert_eq!(durations.percentile(percent), want, "percentile {} of {:?}", percent, sorted);
    }

    #[test]
    fn the_cost_of_two_steps_is_that_of_one_with_both_loads_and_a_base(
        a in prop::array::uniform4(0usize..1000),
        b in prop::array::uniform4(0usize..1000),
    ) {
        let load = |[prefill_tokens, decode_tokens, verify_tokens, kv_tokens]: [usize; 4]| StepLoad {
            prefill_tokens, decode_tokens, verify_tokens, kv_tokens,
        };
        let both = load([a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]);
        let apart = COST.seconds(&load(a)) + COST.seconds(&load(b));
        prop_assert_eq!(COST.seconds(&both) + COST.base, apart, "seconds of {:?} and {:?}", a, b);
    }
}

#[test]
fn a_million_durations_of_a_thousand_values_take_little_room_and_stay_exact() {
    let mut durations = Durations::default();
    for i in 0..1_000_000u64 {
        durations.add((i * 7919 % 1000) as f64);
    }
    assert_eq!(durations.count(), 1_000_000);
    assert_eq!(durations.mean(), Some(499.5));
    assert_eq!(
        durations.percentile(50.0),
        Some(499.0),
        "the median of 0..1000, a thousand times each"
    );
    assert_eq!(durations.percentile(99.0), Some(989.0));
}
