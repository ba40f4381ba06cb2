//! A step's tokens, dealt out.

use super::Budget;
use crate::{SchedulerConfig, StepShape};

fn config(tokens: usize, threshold: usize) -> SchedulerConfig {
    SchedulerConfig {
        max_num_batched_tokens: tokens,
        max_num_seqs: 4,
        max_model_len: 1000,
        long_prefill_token_threshold: threshold,
        ..SchedulerConfig::new(1000, 4)
    }
}

#[test]
fn everybody_gets_what_it_wants_until_nothing_is_left() {
    let mut budget = Budget::new(&config(10, 0), 3, StepShape::Mixed);
    let mut got = Vec::new();
    for wanted in [6, 3, 5, 1] {
        let len = budget.running(wanted);
        budget.take(len);
        got.push(len);
    }
    assert_eq!(got, [6, 3, 1, 0], "of 10 tokens, those who want 6, 3, 5 and 1 get");
    assert_eq!(budget.left(), 0, "what is left");
}

#[test]
fn who_waits_gets_what_is_left_as_who_runs_does() {
    let mut budget = Budget::new(&config(10, 0), 3, StepShape::Mixed);
    budget.take(budget.running(4));
    assert_eq!(budget.waiting(5), Some(5), "5 of the 6 that are left");
    assert_eq!(budget.waiting(50), Some(6), "the beginning of a long prompt");
    assert_eq!(budget.left(), 6, "asking takes nothing");
}

#[test]
fn with_nothing_left_nobody_begins() {
    let mut budget = Budget::new(&config(8, 0), 2, StepShape::Mixed);
    budget.take(8);
    assert_eq!(budget.waiting(3), None, "of nothing, for one who waits");
    assert_eq!(budget.running(3), 0, "of nothing, for one who runs");
}

#[test]
fn what_is_given_back_is_there_for_others() {
    let mut budget = Budget::new(&config(8, 0), 2, StepShape::Mixed);
    budget.take(8);
    budget.give_back(5);
    assert_eq!((budget.left(), budget.running(7)), (5, 5), "after 5 of 8 came back");
}

#[test]
fn the_threshold_cuts_everybody_who_is_not_alone() {
    let among_others = Budget::new(&config(64, 16), 2, StepShape::Mixed);
    assert_eq!(among_others.running(40), 16, "a running prompt's part");
    assert_eq!(among_others.waiting(40), Some(16), "a waiting prompt's part");
    assert_eq!(among_others.running(3), 3, "who wants less gets it");
    for few in [0, 1] {
        let alone = Budget::new(&config(64, 16), few, StepShape::Mixed);
        assert_eq!(alone.running(40), 40, "a prompt's part with nobody else there");
        assert_eq!(alone.waiting(100), Some(64), "up to all of the step");
    }
}

#[test]
fn an_adaptive_threshold_is_a_fair_share_if_that_is_more() {
    let adaptive = |tokens, threshold| SchedulerConfig {
        long_prefill_token_threshold_adaptive: true,
        ..config(tokens, threshold)
    };
    assert_eq!(
        Budget::new(&adaptive(64, 16), 3, StepShape::Mixed).running(60),
        21,
        "a third of 64"
    );
    assert_eq!(
        Budget::new(&adaptive(64, 16), 8, StepShape::Mixed).running(60),
        16,
        "an eighth of 64 is less than 16"
    );
    assert_eq!(
        Budget::new(&adaptive(64, 0), 3, StepShape::Mixed).running(60),
        60,
        "no threshold, nothing to adapt"
    );
}

#[test]
fn a_prompt_in_one_piece_waits_for_a_step_that_takes_all_of_it() {
    let whole = |threshold| SchedulerConfig {
        enable_chunked_prefill: false,
        max_model_len: 64,
        ..config(64, threshold)
    };
    let mut budget = Budget::new(&whole(0), 2, StepShape::Mixed);
    budget.take(20);
    assert_eq!(budget.waiting(44), Some(44), "all of what is left");
    assert_eq!(budget.waiting(45), None, "one token too many");
    // The threshold cuts first, so what must fit is a piece of its size. (vLLM does so, too.)
    let mut budget = Budget::new(&whole(16), 2, StepShape::Mixed);
    budget.take(40);
    assert_eq!(budget.waiting(45), Some(16), "a piece of 16 with 24 left");
    budget.take(10);
    assert_eq!(budget.waiting(45), None, "a piece of 16 with 14 left");
}
