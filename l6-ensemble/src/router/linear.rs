//! The linear classifier: one row of weights for each bucket of features.
//!
//! ```text
//! x[b]     = weight of the most important part that has bucket b, over the length of x
//! z[c]     = bias[c] + scale[c] * sum over b of x[b] * w[b, c]         w is i8
//! score[c] = softmax(z / temperature)[c]
//! ```
//!
//! At 2^22 buckets and 9 classes these are 38 million weights of one byte. The classifier in the binary is smaller.

use super::classifier::Classifier;
use super::features::Features;
use super::input::{DEFAULT_MAX_BYTES, RouteInput};

/// Least and greatest binary logarithm of the number of buckets.
pub const BITS: std::ops::RangeInclusive<u32> = 8..=24;

/// Most classes of a linear classifier.
pub const MAX_CLASSES: usize = 64;

/// A multinomial logistic regression over hashed n-grams, with 8-bit weights and a calibrated
/// temperature.
///
/// [`train`](super::train()) makes one; [`LinearClassifier::to_bytes`] and [`LinearClassifier::from_bytes`] are its
/// file format.
///
/// # Example
///
/// ```
/// use l6_ensemble::router::{Classifier, LinearClassifier, Part, RouteInput};
///
/// let classifier = LinearClassifier::builtin();
/// let parts = [Part::user("Which std::unordered_map member inserts only if the key is absent?")];
/// let scores = classifier.scores(&RouteInput { intent: None, parts: &parts });
/// assert_eq!(scores.len(), classifier.classes().len());
/// assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-5);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LinearClassifier {
    /// Names of the classes.
    pub(super) classes: Vec<String>,
    /// Binary logarithm of the number of buckets.
    pub(super) bits: u32,
    /// `[2^bits, classes]`.
    pub(super) weights: Vec<i8>,
    /// Value of a weight of 1, for each class.
    pub(super) scale: Vec<f32>,
    /// Score of a class without any feature.
    pub(super) bias: Vec<f32>,
    /// Divides the scores before the softmax.
    pub(super) temperature: f32,
}

impl LinearClassifier {
    /// Returns the classifier that is part of the binary.
    ///
    /// # Panics
    /// Never: a test reads the committed file.
    pub fn builtin() -> Self {
        Self::from_bytes(include_bytes!("../../data/router.bin"))
            .expect("the committed classifier is whole")
    }

    /// Binary logarithm of the number of buckets.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Temperature that divides the scores before the softmax.
    pub fn temperature(&self) -> f32 {
        self.temperature
    }

    /// Scores of the classes before temperature and softmax.
    pub(super) fn logits(&self, features: &Features) -> Vec<f32> {
        let classes = self.classes.len();
        let mut sums = vec![0.0_f32; classes];
        let mut group = vec![0_i32; classes];
        // exercise l6.classify
        for (buckets, weight) in features.groups() {
            // Sums of integers have no order. A group has at most 2^24 buckets, so they fit.
            group.fill(0);
            for bucket in buckets {
                let row = &self.weights[*bucket as usize * classes..][..classes];
                for (sum, w) in group.iter_mut().zip(row) {
                    *sum += i32::from(*w);
                }
            }
            for (sum, add) in sums.iter_mut().zip(&group) {
                *sum += weight * *add as f32;
            }
        }
        let norm = features.norm();
        let of_class = sums.iter().zip(&self.scale).zip(&self.bias);
        of_class.map(|((sum, scale), bias)| bias + scale * norm * sum).collect()
        // end of exercise
    }
}

impl Classifier for LinearClassifier {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn scores(&self, input: &RouteInput<'_>) -> Vec<f32> {
        let mut scores =
            self.logits(&Features::extract(&input.views(DEFAULT_MAX_BYTES), self.bits));
        softmax(&mut scores, self.temperature);
        scores
    }
}

/// Replaces scores by `softmax(scores / temperature)`.
pub(super) fn softmax(scores: &mut [f32], temperature: f32) {
    // exercise l6.classify
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = ((*score - max) / temperature).exp();
        sum += *score;
    }
    for score in scores {
        *score /= sum;
    }
    // end of exercise
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A classifier with 2^8 buckets whose weights are drawn.
    fn classifier(weights: Vec<i8>, temperature: f32) -> LinearClassifier {
        let classes = ["stl", "memory", "reject"].map(String::from).to_vec();
        let (scale, bias) = (vec![0.5, 0.25, 2.0], vec![0.1, -0.3, 0.0]);
        LinearClassifier { classes, bits: 8, weights, scale, bias, temperature }
    }

    /// Probabilities by the formulas at the top of the file, term by term.
    fn naive(classifier: &LinearClassifier, features: &Features) -> Vec<f64> {
        let length = features
            .groups()
            .map(|(b, w)| b.len() as f64 * f64::from(w).powi(2))
            .sum::<f64>()
            .sqrt();
        let z = |c: usize| {
            let mut sum = 0.0;
            for (buckets, weight) in features.groups() {
                for bucket in buckets {
                    let w = classifier.weights[*bucket as usize * classifier.classes.len() + c];
                    sum += f64::from(weight) / length * f64::from(w);
                }
            }
            f64::from(classifier.bias[c]) + f64::from(classifier.scale[c]) * sum
        };
        let of = |c| (z(c) / f64::from(classifier.temperature)).exp();
        let total: f64 = (0..3).map(of).sum();
        (0..3).map(|c| of(c) / total).collect()
    }

    proptest! {
        #[test]
        fn probabilities_are_those_of_the_formula(
            weights in prop::collection::vec(-20_i8..=20, 3 << 8),
            first in prop::collection::btree_set(0_u32..128, 1..20),
            second in prop::collection::btree_set(128_u32..256, 0..20),
            temperature in 0.5_f32..4.0,
        ) {
            let groups = vec![(first.len(), 1.0), (first.len() + second.len(), 0.7)];
            let features = Features { buckets: first.into_iter().chain(second).collect(), groups };
            let classifier = classifier(weights, temperature);
            let mut scores = classifier.logits(&features);
            softmax(&mut scores, temperature);
            for (got, want) in scores.iter().zip(naive(&classifier, &features)) {
                prop_assert!((f64::from(*got) - want).abs() < 1e-4, "{got} for {want}");
            }
        }
    }

    #[test]
    fn without_features_the_bias_decides() {
        let classifier = classifier(vec![1; 3 << 8], 1.0);
        assert_eq!(classifier.logits(&Features::default()), [0.1, -0.3, 0.0]);
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let mut scores = [5000.0, 5000.0 + 3_f32.ln(), -5000.0];
        softmax(&mut scores, 1.0);
        assert!((scores[0] - 0.25).abs() < 1e-3 && (scores[1] - 0.75).abs() < 1e-3, "{scores:?}");
        assert_eq!(scores[2], 0.0);
    }

    #[test]
    fn a_high_temperature_makes_the_classifier_less_sure_and_changes_no_order() {
        let at = |temperature| {
            let mut scores = [2.0, 0.0, -1.0];
            softmax(&mut scores, temperature);
            scores
        };
        let (cold, plain, hot) = (at(0.5), at(1.0), at(4.0));
        assert!(cold[0] > plain[0] && plain[0] > hot[0] && hot[0] > 1.0 / 3.0);
        assert!(hot[0] > hot[1] && hot[1] > hot[2]);
        assert!((plain[0] / plain[1] - 2_f32.exp()).abs() < 1e-4);
    }
}
