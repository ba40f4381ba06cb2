//! The interface of a classifier.

use super::input::RouteInput;

/// Class of text that no specialist serves: other languages, prose, small talk.
pub const REJECT: &str = "reject";

/// A probability for each class of text.
///
/// An implementation is deterministic, and its time is bounded by the bytes that the router looks at.
///
/// # Example
///
/// ```
/// use l6_ensemble::router::{Classifier, REJECT, RouteInput};
///
/// /// Everything that is not ASCII is rejected.
/// struct Ascii(Vec<String>);
///
/// impl Classifier for Ascii {
///     fn classes(&self) -> &[String] {
///         &self.0
///     }
///     fn scores(&self, input: &RouteInput<'_>) -> Vec<f32> {
///         let ascii = input.parts.iter().all(|part| part.text.is_ascii());
///         if ascii { vec![0.9, 0.1] } else { vec![0.1, 0.9] }
///     }
/// }
///
/// let classifier = Ascii(vec!["stl".into(), REJECT.into()]);
/// assert_eq!(classifier.scores(&RouteInput { intent: None, parts: &[] }), [0.9, 0.1]);
/// ```
pub trait Classifier: Send + Sync {
    /// Names of the classes. One of them may be [`REJECT`].
    fn classes(&self) -> &[String];

    /// Probability of each class, in the order of [`Classifier::classes`]; the sum is 1.
    fn scores(&self, input: &RouteInput<'_>) -> Vec<f32>;
}
