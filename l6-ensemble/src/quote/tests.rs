//! What a quote promises, and when a request is harmed.

use super::*;

#[test]
fn the_promise_for_an_output_is_its_first_token_and_a_step_for_each_other_one() {
    let ms = Duration::from_millis;
    let quote =
        Quote { first_token: ms(500), per_token: ms(20), done: ms(9_999), ..Quote::default() };
    assert_eq!(quote.done_after(1), ms(500));
    assert_eq!(quote.done_after(11), ms(700), "ten tokens follow the first");
    assert_eq!(quote.done_after(0), ms(500));
    let long = Quote { per_token: Duration::MAX, ..quote };
    assert_eq!(long.done_after(usize::MAX), Duration::MAX, "and no overflow");
}

#[test]
fn a_request_that_was_in_time_and_is_not_any_more_is_harmed() {
    assert!(is_harmed(10.0, [8.0, 11.0], 0.0));
    assert!(!is_harmed(10.0, [8.0, 9.0], 0.0), "it is still in time");
    assert!(!is_harmed(10.0, [8.0, 10.0], 0.0), "just in time");
}

#[test]
fn a_request_that_is_late_anyway_is_not_harmed() {
    assert!(!is_harmed(10.0, [10.1, 99.0], 0.0));
    assert!(is_harmed(10.0, [10.0, 99.0], 0.0));
}

#[test]
fn the_margin_protects_a_request_that_would_end_shortly_before_its_deadline() {
    assert!(is_harmed(10.0, [8.0, 9.6], 0.05));
    assert!(!is_harmed(10.0, [8.0, 9.5], 0.05));
}

#[test]
fn a_request_that_the_other_one_does_not_delay_is_not_harmed() {
    assert!(!is_harmed(10.0, [9.9, 9.9], 0.05), "it was within the margin before");
    assert!(!is_harmed(10.0, [9.9, 9.9 + 1e-12], 0.05), "a difference of rounding");
    assert!(is_harmed(10.0, [9.9, 9.95], 0.05));
}
