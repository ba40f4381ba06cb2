//! Student's t distribution with a whole number of degrees of freedom.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};

/// Number of halvings: an f64 has no more bits.
const HALVINGS: usize = 60;

/// Distribution function at `sqrt(degrees) * tan(angle)`: for whole degrees of freedom a finite sum (Abramowitz and
/// Stegun 1964, 26.7.3 and 26.7.4).
///
/// ```text
/// s = sin(angle), c = cos(angle), n degrees of freedom
/// n even:  P = 1/2 + s/2  * (1 + 1/2 c^2 + 1*3/(2*4) c^4 + ... up to c^(n-2))
/// n odd:   P = 1/2 + 1/pi * (angle + s * (c + 2/3 c^3 + 2*4/(3*5) c^5 + ... up to c^(n-2)))
/// ```
fn below(angle: f64, degrees: u32) -> f64 {
    let (sin, cos) = angle.sin_cos();
    let odd = degrees % 2 == 1;
    let (mut term, mut sum) = (if odd { cos } else { 1.0 }, 0.0);
    let mut power = degrees % 2;
    while power + 2 <= degrees {
        sum += term;
        term *= cos * cos * f64::from(power + 1) / f64::from(power + 2);
        power += 2;
    }
    0.5 + 0.5 * if odd { FRAC_2_PI * (angle + sin * sum) } else { sin * sum }
}

/// Quantile of the distribution with `degrees` degrees of freedom, at least 1: the value below which a share `p` of it
/// is. The halves of an interval are tried; it is one of angles, which is finite.
pub(super) fn quantile(p: f64, degrees: u32) -> f64 {
    let (mut low, mut high) = (-FRAC_PI_2, FRAC_PI_2);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if below(middle, degrees) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::from(degrees).sqrt() * (0.5 * (low + high)).tan()
}
