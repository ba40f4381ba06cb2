use super::*;

const TAP: Tap = Tap::FinalNorm;

#[test]
fn the_worst_element_and_the_first_bad_token_are_told_apart() {
    // Three tokens of two elements; token 1 is a little wrong, token 2 more so. The largest golden
    // value is 4, so errors count a quarter.
    let expected = [1.0, 2.0, 3.0, 4.0, -1.0, 0.5];
    let got = [1.0, 2.01, 3.0, 4.4, -1.0, 1.3];
    let e = tap_error(TAP, &expected, &got, 3, 0.05);
    assert_eq!(e.first_token, Some(1), "the first token with an error above 0.05 of 4");
    assert_eq!((e.token, e.element), (2, 1), "token and element of the worst error");
    assert_eq!((e.expected, e.got), (0.5, 1.3), "the two values there");
    assert!((e.error - 0.2).abs() < 1e-6, "expected  0.2 (0.8 of 4)\ngot       {}", e.error);
}

#[test]
fn within_the_tolerance_no_token_is_bad_and_the_error_is_still_told() {
    let e = tap_error(TAP, &[0.5, -0.25], &[0.5, -0.2], 2, 0.1);
    assert_eq!(e.first_token, None, "no error is above 0.1");
    assert!((e.error - 0.05).abs() < 1e-6, "small taps are measured against 1, not against 0.5");
    assert_eq!((e.token, e.element), (1, 0));
    let at = tap_error(TAP, &[0.5, -0.25], &[0.5, 0.25], 2, 0.5);
    assert_eq!((at.first_token, at.error), (None, 0.5), "an error of just the tolerance");
    let equal = tap_error(TAP, &[0.5, -0.25], &[0.5, -0.25], 2, 0.0);
    assert_eq!(equal.first_token, None, "equal numbers, with a tolerance of 0");
}

#[test]
fn a_nan_on_one_side_is_as_wrong_as_can_be() {
    let nan = f32::NAN;
    let e = tap_error(TAP, &[1.0, 1.0, 1.0, 1.0], &[1.0, 1.0, nan, 9.0], 2, 0.1);
    assert_eq!(e.first_token, Some(1), "the token of the NaN");
    assert_eq!((e.token, e.element, e.error), (1, 0, f32::INFINITY), "nothing is worse than a NaN");
    let both = tap_error(TAP, &[nan, 1.0], &[nan, 1.0], 2, 0.1);
    assert_eq!((both.first_token, both.error), (None, 0.0), "a NaN that the golden has too");
}

/// What an attention that is wrong from this token on is blamed on.
fn blamed(first_token: usize) -> String {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama/config.json");
    let config = ModelConfig::from_hf_file(Path::new(fixture)).unwrap();
    let (tap, first_token) = (Tap::Attn(0), Some(first_token));
    let (error, token, element, expected, got) = (1.0, 0, 0, 0.0, 1.0);
    let wrong = TapError { tap, error, token, element, first_token, expected, got };
    likely_causes(&wrong, &config).join("; ")
}

#[test]
fn an_attention_that_is_right_at_token_0_is_not_blamed_on_the_mask() {
    // Off by one in either way, a mask changes what token 0 sees: the key behind it, or none.
    assert!(blamed(0).contains("mask"), "{}", blamed(0));
    assert!(!blamed(1).contains("mask"), "{}", blamed(1));
}

#[test]
fn positions_that_all_start_at_1_are_not_blamed_since_they_change_no_score() {
    assert!(!blamed(1).contains("start at 1"), "{}", blamed(1));
    assert!(blamed(1).contains("queries and keys count differently"), "{}", blamed(1));
}
