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
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = ((*score - max) / temperature).exp();
        sum += *score;
    }
    for score in scores {
        *score /= sum;
    }
}
