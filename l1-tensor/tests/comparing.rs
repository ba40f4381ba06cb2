//! What the tests say when numbers are wrong.

mod support;

use support::*;

#[test]
fn the_worst_element_is_named_by_its_place() {
    let (got, want) = ([1.0, 2.0, 3.5, 4.25, 5.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let text = differences("op on paper, x [2, 3]", &[2, 3], &got, &want, within(0.0, 0.125));
    let expected = "op on paper, x [2, 3]: 2 of 6 elements are wrong\n  worst at  [0, 2]\n  \
                    expected  3.0\n  got       3.5\n  off by    0.5 (allowed 0.125)";
    assert_eq!(text.as_deref(), Some(expected));
}

#[test]
fn nan_and_the_sign_of_zero_are_differences_too() {
    let wrong = |got: f32, want: f32, allowed| differences("", &[1], &[got], &[want], allowed);
    assert!(wrong(f32::NAN, 0.0, within(1.0, 1.0)).is_some());
    assert!(wrong(0.0, f32::NAN, within(1.0, 1.0)).is_some());
    assert!(wrong(f32::INFINITY, 1.0, within(1.0, 1.0)).is_some());
    assert!(wrong(-0.0, 0.0, SAME_BITS).is_some());
    for v in [f32::NAN, f32::INFINITY, -0.0] {
        assert_eq!(wrong(v, v, SAME_BITS), None);
    }
    assert_eq!(wrong(-0.0, 0.0, within(0.0, 1e-9)), None);
}
