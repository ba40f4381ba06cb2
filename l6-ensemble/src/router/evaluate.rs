//! Figures of a router on a labelled corpus.

use std::collections::BTreeMap;

use serde::Serialize;

use super::example::Example;
use super::input::RouteInput;
use super::why::Why;
use super::{REJECT, Route, Router};

/// Bins of the calibration error.
const BINS: usize = 15;

/// Precision at which coverage is reported.
const PRECISION: f64 = 0.9;

/// How well a router does on a corpus.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Number of examples.
    pub examples: usize,
    /// Share of the examples whose route is the label; a rejected example counts as [`REJECT`].
    pub accuracy: f64,
    /// Mean of the accuracies of the labels, so that each counts alike.
    pub balanced_accuracy: f64,
    /// Share of the examples whose label is the primary or the second lane.
    pub top_two_accuracy: f64,
    /// Greatest share of the examples that can be routed, those with the highest confidence first, such that 90% of
    /// them are right. The confidence of an intent and of a report is 1, otherwise it is [`Route::score`], or 1
    /// without a classifier; rejected examples are not routed.
    pub coverage_at_90: f64,
    /// Expected calibration error of the classifier's scores, over 15 bins of equal width (Naeini et al. 2015): mean
    /// over bins of |accuracy - mean score|, by the number of examples. 0 without a classifier.
    pub calibration_error: f64,
    /// Names of rows and columns of the confusion table, [`REJECT`] last.
    pub labels: Vec<String>,
    /// `confusion[label][route]`: numbers of examples.
    pub confusion: Vec<Vec<usize>>,
    /// Precision and recall of each label.
    pub classes: BTreeMap<String, ClassFigures>,
    /// Figures of whatever decided: each tripwire by its name, and the other reasons.
    pub decided_by: BTreeMap<String, RuleFigures>,
}

/// Figures of one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassFigures {
    /// Examples with this label.
    pub examples: usize,
    /// Share of the examples routed here that have the label; `None` if there are none.
    pub precision: Option<f64>,
    /// Share of the examples with the label that are routed here; `None` if there are none.
    pub recall: Option<f64>,
}

/// Figures of one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RuleFigures {
    /// Examples for which it decided.
    pub decided: usize,
    /// Those that it routed to their label.
    pub correct: usize,
}

/// Routes every example and compares with its label.
///
/// # Example
///
/// ```
/// use l6_ensemble::router::{Router, RouterConfig, evaluate, read_examples};
///
/// let line = br#"{"label":"build","package":"p","parts":[{"kind":"user","text":"CMake Error at a.cmake:3"}]}"#;
/// let router = Router::new(RouterConfig::default(), None, vec!["build".into(), "stl".into()])?;
/// let figures = evaluate(&router, &read_examples(&line[..])?);
/// assert_eq!(figures.accuracy, 1.0);
/// assert_eq!(figures.decided_by["rule build_error"].correct, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn evaluate(router: &Router, examples: &[Example]) -> Evaluation {
    let mut labels: Vec<String> = router.lanes().to_vec();
    let others = examples.iter().map(|e| e.label.as_str()).filter(|label| *label != REJECT);
    for label in others {
        if !labels.iter().any(|l| l == label) {
            labels.push(label.to_owned());
        }
    }
    labels.push(REJECT.to_owned());
    let index = |name: &str| labels.iter().position(|l| l == name).unwrap_or(labels.len() - 1);

    let mut confusion = vec![vec![0; labels.len()]; labels.len()];
    let mut decided_by: BTreeMap<String, RuleFigures> = BTreeMap::new();
    let mut top_two = 0;
    let mut routed = Vec::new();
    let mut scored = Vec::new();
    for example in examples {
        let parts = example.borrowed();
        let route = router.route(&RouteInput { intent: example.intent.as_deref(), parts: &parts });
        let (label, to) =
            (index(&example.label), index(route.primary.as_deref().unwrap_or(REJECT)));
        confusion[label][to] += 1;
        let hit = label == to;
        top_two += usize::from(hit || route.second.as_deref() == Some(&example.label));
        let figures = decided_by.entry(reason(&route)).or_default();
        figures.decided += 1;
        figures.correct += usize::from(hit);
        if route.primary.is_some() {
            let certain = match route.why {
                Why::DeclaredIntent { .. } => true,
                Why::Rule { name, .. } => name.is_report(),
                _ => false,
            };
            let confidence = if certain { 1.0 } else { route.score.unwrap_or(1.0) };
            routed.push((confidence, hit));
        }
        scored.extend(top_class(&route, router, &example.label));
    }
    let hits: usize = (0..labels.len()).map(|i| confusion[i][i]).sum();
    let classes: BTreeMap<_, _> =
        labels.iter().enumerate().map(|(i, name)| (name.clone(), class(&confusion, i))).collect();
    let recalls: Vec<f64> = classes.values().filter_map(|c| c.recall).collect();
    Evaluation {
        examples: examples.len(),
        accuracy: share(hits, examples.len()).unwrap_or(0.0),
        balanced_accuracy: recalls.iter().sum::<f64>() / recalls.len().max(1) as f64,
        top_two_accuracy: share(top_two, examples.len()).unwrap_or(0.0),
        coverage_at_90: coverage(routed, examples.len()),
        calibration_error: calibration_error(&scored),
        labels,
        confusion,
        classes,
        decided_by,
    }
}

fn share(part: usize, of: usize) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

fn reason(route: &Route) -> String {
    match &route.why {
        Why::Rule { name, .. } => format!("rule {name}"),
        other => other.name().to_owned(),
    }
}

fn class(confusion: &[Vec<usize>], i: usize) -> ClassFigures {
    let examples = confusion[i].iter().sum();
    let routed: usize = confusion.iter().map(|row| row[i]).sum();
    ClassFigures {
        examples,
        precision: share(confusion[i][i], routed),
        recall: share(confusion[i][i], examples),
    }
}

/// Top score of the classifier, over lanes and rejection, and whether it is right. Rules have no part in it.
fn top_class(route: &Route, router: &Router, label: &str) -> Option<(f32, bool)> {
    let (lane, score) = super::best(&route.scores, None)?;
    let reject = super::unserved(&route.scores);
    if score > reject {
        Some((score, router.lanes()[lane] == label))
    } else {
        let served = router.lanes().iter().any(|lane| lane == label);
        Some((reject, !served))
    }
}

/// See [`Evaluation::coverage_at_90`]. Examples of equal confidence are routed together.
fn coverage(mut routed: Vec<(f32, bool)>, examples: usize) -> f64 {
    routed.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut hits, mut covered) = (0, 0);
    for (i, (confidence, hit)) in routed.iter().enumerate() {
        hits += usize::from(*hit);
        let last_of_equals = routed.get(i + 1).is_none_or(|next| next.0 < *confidence);
        if last_of_equals && hits as f64 >= PRECISION * (i + 1) as f64 {
            covered = i + 1;
        }
    }
    share(covered, examples).unwrap_or(0.0)
}

/// See [`Evaluation::calibration_error`].
fn calibration_error(scored: &[(f32, bool)]) -> f64 {
    let mut bins = [(0_usize, 0_usize, 0.0_f64); BINS];
    for (score, hit) in scored {
        let bin = ((f64::from(*score) * BINS as f64) as usize).min(BINS - 1);
        bins[bin].0 += 1;
        bins[bin].1 += usize::from(*hit);
        bins[bin].2 += f64::from(*score);
    }
    let gap = |(_, hits, sum): &(usize, usize, f64)| (*hits as f64 - sum).abs();
    bins.iter().map(gap).sum::<f64>() / scored.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_ends_where_the_precision_falls_below_nine_tenths() {
        let right = |confidence| (confidence, true);
        let mut routed: Vec<_> = (0..18).map(|i| right(0.99 - i as f32 * 0.01)).collect();
        routed.push((0.5, false));
        routed.push((0.4, false));
        assert_eq!(coverage(routed.clone(), 40), 20.0 / 40.0, "18 of 20 are right");
        routed.push((0.3, false));
        assert_eq!(coverage(routed.clone(), 40), 20.0 / 40.0);
        // One wrong example at the top, among equals, forbids all of them.
        assert_eq!(coverage(vec![(1.0, true), (1.0, false), (0.5, true)], 3), 0.0);
    }

    #[test]
    fn scores_that_are_as_often_right_as_they_say_have_no_calibration_error() {
        let honest: Vec<_> = (0..10).map(|i| (0.7, i < 7)).collect();
        assert!(calibration_error(&honest) < 1e-6);
        let boastful: Vec<_> = (0..10).map(|i| (1.0, i < 7)).collect();
        assert!((calibration_error(&boastful) - 0.3).abs() < 1e-6);
        assert_eq!(calibration_error(&[]), 0.0);
    }
}
