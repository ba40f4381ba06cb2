//! Which numbers a weight may have: those that are finite once they are rounded to bf16.

/// Index and value in bf16 of the first number that is not finite there.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<(usize, f32)> {
    /// Bits of the smallest f32 that bf16 rounds to infinity.
    const TOO_LARGE: u32 = 0x7f7f_8000;
    let magnitude = |x: &f32| x.to_bits() & !(1 << 31);
    // A maximum of integers takes lanes side by side, a search that may end early does not.
    if values.iter().map(magnitude).fold(0, u32::max) < TOO_LARGE {
        return None;
    }
    let i = values.iter().position(|x| magnitude(x) >= TOO_LARGE)?;
    Some((i, half::bf16::from_f32(values[i]).to_f32()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_finite_if_it_is_so_in_bf16() {
        let max = half::bf16::MAX.to_f32();
        // Half way to the next power of two, which is no bf16 any more.
        let half_way = f32::from_bits(0x7f7f_8000);
        for x in [0.0, -0.0, 1.0, f32::MIN_POSITIVE / 2.0, max, -max, half_way.next_down()] {
            assert_eq!(first_not_finite(&[1.0, x]), None, "{x}");
        }
        for x in [half_way, f32::MAX, f32::INFINITY] {
            assert_eq!(first_not_finite(&[0.0, x, x]), Some((1, f32::INFINITY)), "{x}");
            assert_eq!(first_not_finite(&[-x]), Some((0, f32::NEG_INFINITY)), "-{x}");
        }
        let (i, nan) = first_not_finite(&[3.0, 4.0, f32::NAN]).expect("a NaN is found");
        assert!(i == 2 && nan.is_nan());
    }
}
