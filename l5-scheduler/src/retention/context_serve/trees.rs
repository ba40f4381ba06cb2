//! Gradient-boosted trees: does a command take longer than two seconds?
//!
//! They were trained by another program (`fixtures/reference/make_tool_trees.py`); here they are only read and
//! evaluated. A boosted model is a sum: each tree sorts the features of a command into one of its leaves, and the leaf
//! adds its value to the log odds (Friedman 2001, "Greedy Function Approximation: A Gradient Boosting Machine").

use serde::Deserialize;

use super::estimate::{Estimate, FAST_PIN};
use super::features::{Feature, Features, NAMES, NUM_FEATURES};

/// Probability from which on the trees are sure, for or against.
const SURE: f64 = 0.8;

/// Maximum number of trees.
const MAX_TREES: usize = 1024;

/// Maximum number of nodes of a tree.
const MAX_NODES: usize = 4096;

/// The trees of this program.
const BUILT_IN: &str = include_str!("trees.json");

/// Why a file of trees is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum TreesError {
    /// The text is not JSON, or has other fields than a file of trees.
    #[error("the trees are malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The trees were trained on other features.
    #[error(
        "`features` must be the {NUM_FEATURES} features of this program, in their order: train the trees again"
    )]
    Features,
    /// Too few or too many trees, or nodes of one.
    #[error("there must be 1 to {MAX_TREES} trees of 1 to {MAX_NODES} nodes each")]
    Size,
    /// A number is infinite or NaN.
    #[error("`base`, `rate`, thresholds and values of leaves must be finite")]
    NotFinite,
    /// A node compares a feature that does not exist.
    #[error("node {node} of tree {tree}: the feature must be below {NUM_FEATURES}, got {feature}")]
    NoFeature {
        /// Number of the tree, from 0.
        tree: usize,
        /// Number of the node, from 0.
        node: usize,
        /// Number of the feature.
        feature: usize,
    },
    /// A child of a node does not exist, or is not behind the node. A tree whose nodes are in order has no cycles.
    #[error(
        "node {node} of tree {tree}: a child must be behind the node and within the tree, got {child}"
    )]
    NoChild {
        /// Number of the tree, from 0.
        tree: usize,
        /// Number of the node, from 0.
        node: usize,
        /// Number of the child.
        child: usize,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "made_by")]
    _made_by: String,
    features: Vec<String>,
    base: f64,
    rate: f64,
    trees: Vec<Vec<Node>>,
}

/// Node of a tree: a leaf is `[value]`, another node `[feature, threshold, left, right]`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum Node {
    Leaf([f64; 1]),
    /// The next node is the left one if the feature is at most the threshold, else the right one.
    Split(usize, f64, usize, usize),
}

/// Trees that were checked.
#[derive(Clone, Debug)]
pub(super) struct Trees {
    base: f64,
    rate: f64,
    trees: Vec<Vec<Node>>,
}

impl Trees {
    /// Reads trees.
    pub(super) fn read(json: &str) -> Result<Self, TreesError> {
        let File { features, base, rate, trees, .. } = serde_json::from_str(json)?;
        if features != NAMES {
            return Err(TreesError::Features);
        }
        let sizes = trees.iter().map(Vec::len);
        if !(1..=MAX_TREES).contains(&trees.len())
            || !sizes.into_iter().all(|n| (1..=MAX_NODES).contains(&n))
        {
            return Err(TreesError::Size);
        }
        if !(base.is_finite() && rate.is_finite()) {
            return Err(TreesError::NotFinite);
        }
        for (tree, nodes) in trees.iter().enumerate() {
            for (node, what) in nodes.iter().enumerate() {
                check(what, tree, node, nodes.len())?;
            }
        }
        Ok(Self { base, rate, trees })
    }

    /// The trees of this program.
    pub(super) fn built_in() -> Self {
        Self::read(BUILT_IN).expect("a test reads the trees of this program")
    }

    /// Log odds that a command takes longer than [`LONG_SECONDS`](super::estimate::LONG_SECONDS).
    pub(super) fn score(&self, features: &Features) -> f64 {
        self.trees.iter().fold(self.base, |sum, tree| sum + self.rate * value(tree, features))
    }

    /// Probability of that.
    pub(super) fn probability(&self, features: &Features) -> f64 {
        1.0 / (1.0 + (-self.score(features)).exp())
    }

    /// Estimate for a command. `None` if there is only a word of which nothing is known, such as a function's name.
    pub(super) fn estimate(&self, features: &Features) -> Option<Estimate> {
        let unknown = features.get(Feature::Other) == features.get(Feature::Commands);
        if unknown && features.get(Feature::Words) <= 1.0 {
            return None;
        }
        Some(match self.probability(features) {
            p if p >= SURE => Estimate::Slow,
            p if p <= 1.0 - SURE => Estimate::Fast(FAST_PIN),
            _ => Estimate::Uncertain,
        })
    }
}

fn check(what: &Node, tree: usize, node: usize, nodes: usize) -> Result<(), TreesError> {
    match *what {
        Node::Leaf([value]) if value.is_finite() => Ok(()),
        Node::Split(feature, ..) if feature >= NUM_FEATURES => {
            Err(TreesError::NoFeature { tree, node, feature })
        }
        Node::Split(_, threshold, left, right) if threshold.is_finite() => {
            let wrong = [left, right].into_iter().find(|child| *child <= node || *child >= nodes);
            wrong.map_or(Ok(()), |child| Err(TreesError::NoChild { tree, node, child }))
        }
        Node::Leaf(_) | Node::Split(..) => Err(TreesError::NotFinite),
    }
}

/// Value of the leaf into which a tree sorts these features.
fn value(tree: &[Node], features: &Features) -> f64 {
    let mut at = 0;
    loop {
        match tree[at] {
            Node::Leaf([value]) => return value,
            Node::Split(feature, threshold, left, right) => {
                at = if f64::from(features.0[feature]) <= threshold { left } else { right };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        command: String,
        features: Vec<f32>,
        score: f64,
        probability: f64,
    }

    #[test]
    fn features_and_predictions_are_those_of_scikit_learn() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tool-durations/golden.json");
        let golden: Golden = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let trees = Trees::built_in();
        assert_eq!(golden.cases.len(), 50);
        for case in golden.cases {
            let features = Features::of(&case.command);
            for (name, (found, expected)) in NAMES.iter().zip(features.0.iter().zip(&case.features))
            {
                assert_eq!(found, expected, "{name} of {}", case.command);
            }
            let [score, p] = [trees.score(&features), trees.probability(&features)];
            assert!((score - case.score).abs() < 1e-6, "{}: {score}, {}", case.command, case.score);
            assert!((p - case.probability).abs() < 1e-6, "{}: {p}", case.command);
        }
    }

    /// A file of one tree.
    fn file(tree: &str) -> String {
        let names = serde_json::to_string(&NAMES).unwrap();
        format!(
            r#"{{"made_by": "", "features": {names}, "base": 0.5, "rate": 0.1, "trees": [{tree}]}}"#
        )
    }

    #[test]
    fn a_tree_is_followed_to_its_leaf() {
        let trees = Trees::read(&file("[[1, 2.0, 1, 2], [7.0], [-3.0]]")).unwrap();
        let score = |text| trees.score(&Features::of(text));
        assert_eq!(score("ls -la"), 0.5 + 0.1 * 7.0, "two words are not above the threshold");
        assert_eq!(score("ls -la src"), 0.5 + 0.1 * -3.0);
    }

    #[test]
    fn malformed_trees_are_errors() {
        let error = |json: &str| Trees::read(json).unwrap_err();
        let of = |tree: &str| error(&file(tree));
        assert!(matches!(error("[]"), TreesError::Malformed(_)));
        assert!(matches!(of(r#"[["x"]]"#), TreesError::Malformed(_)));
        assert!(matches!(of("[[1, 2.0, 1]]"), TreesError::Malformed(_)));
        assert!(matches!(of("[[1e999]]"), TreesError::Malformed(_)));
        assert!(matches!(of("[[-1, 2.0, 1, 2], [1.0], [1.0]]"), TreesError::Malformed(_)));
        assert!(matches!(of("[]"), TreesError::Size));
        assert!(matches!(error(&file("")), TreesError::Size), "no tree");
        assert!(matches!(error("{}"), TreesError::Malformed(_)));
        let feature = of("[[25, 2.0, 1, 2], [1.0], [1.0]]");
        assert!(matches!(feature, TreesError::NoFeature { tree: 0, node: 0, feature: 25 }));
        for (tree, child) in [
            ("[[1, 2.0, 0, 1], [1.0]]", 0),
            ("[[1, 2.0, 1, 3], [1.0], [1.0]]", 3),
            ("[[1, 2.0, 1, 2], [1, 1.0, 2, 0], [1.0]]", 0),
        ] {
            let found = of(tree);
            assert!(matches!(found, TreesError::NoChild { child: c, .. } if c == child), "{found}");
        }
        let other = file("[[1.0]]").replace("\"pipes\"", "\"tubes\"");
        assert!(matches!(error(&other), TreesError::Features));
        let mut file: Value = serde_json::from_str(&file("[[1.0]]")).unwrap();
        file["more"] = Value::Null;
        assert!(matches!(error(&file.to_string()), TreesError::Malformed(_)));
    }

    #[test]
    fn a_word_of_which_nothing_is_known_has_no_estimate() {
        let trees = Trees::built_in();
        let estimate = |text| trees.estimate(&Features::of(text));
        assert_eq!([estimate("get_weather"), estimate(""), estimate("# x")], [None; 3]);
        let polling =
            "while ! nc -z localhost 80; do python3 -c 'import time; time.sleep(2)'; done";
        assert_eq!(estimate(polling), Some(Estimate::Slow));
        assert_ne!(estimate("python"), Some(Estimate::Fast(FAST_PIN)), "it may be any program");
        assert_eq!(estimate("grep"), Some(Estimate::Fast(FAST_PIN)));
        assert_eq!(estimate("sed -n 1,20p f"), Some(Estimate::Fast(FAST_PIN)));
    }
}
