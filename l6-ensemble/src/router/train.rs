//! Training of a [`LinearClassifier`]: multinomial logistic regression with AdaGrad.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::example::Example;
use super::features::Features;
use super::input::{DEFAULT_MAX_BYTES, RouteInput};
use super::linear::{BITS, LinearClassifier, MAX_CLASSES, softmax};

/// How a classifier is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// Binary logarithm of the number of buckets, in [`BITS`].
    pub bits: u32,
    /// Passes over the examples.
    pub epochs: u32,
    /// Learning rate of AdaGrad.
    pub rate: f32,
    /// Factor of the penalty on squared weights. It is applied to a weight when an example has its bucket.
    pub l2: f32,
    /// Order of the examples, and which packages are held out. The same seed gives the same classifier.
    pub seed: u64,
    /// Packages that calibrate the temperature instead of being trained on. If empty, one package of each class that
    /// has at least three is drawn by the seed.
    pub held_out: Vec<String>,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self { bits: 14, epochs: 6, rate: 0.1, l2: 1e-4, seed: 1, held_out: Vec::new() }
    }
}

/// Why a classifier cannot be trained.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// Too few or too many classes.
    #[error("the corpus has {0} classes to train on: it needs 2 to {MAX_CLASSES} labels")]
    Classes(usize),
    /// A label cannot be written to a file.
    #[error("the label {0:?} is empty or longer than 255 bytes: rename it")]
    Label(String),
    /// A size that is not supported.
    #[error("{0} bits: a classifier has {min} to {max}", min = BITS.start(), max = BITS.end())]
    Bits(u32),
    /// A package to hold out has no example.
    #[error("the corpus has no package {0:?}: held-out packages are named as in its lines")]
    Package(String),
    /// A number is not usable.
    #[error("{0} must be finite and positive")]
    Number(&'static str),
}

/// An example as the training sees it.
struct Sample {
    features: Features,
    norm: f32,
    class: usize,
    /// Weight of the class: all classes count alike, whatever their numbers of examples.
    weight: f32,
}

/// Trains a classifier. Labels become classes, in alphabetical order. Memory: 8 bytes for each weight (`2^bits` x
/// classes) and 4 for each distinct feature of each example.
///
/// The weights minimise the cross entropy, in which every class counts alike, by AdaGrad (Duchi et al. 2011) over one
/// example at a time. They are rounded to 8 bits with one scale a class. Last, the temperature is chosen that
/// minimises the cross entropy of the held-out packages (temperature scaling, Guo et al. 2017); without any, it is 1.
///
/// # Errors
/// [`TrainError`].
///
/// # Example
///
/// ```
/// use l6_ensemble::router::{Classifier, Example, Part, RouteInput, TrainOptions, read_examples, train};
///
/// let lines = r#"
/// {"label":"build","package":"a","parts":[{"kind":"user","text":"add_library(a STATIC a.cpp)"}]}
/// {"label":"stl","package":"b","parts":[{"kind":"user","text":"std::vector<int> sorted;"}]}
/// "#;
/// let examples = read_examples(lines.as_bytes())?;
/// let classifier = train(&examples, &TrainOptions { bits: 10, ..TrainOptions::default() })?;
/// let parts = [Part::user("add_library(b b.cpp)")];
/// let scores = classifier.scores(&RouteInput { intent: None, parts: &parts });
/// assert!(scores[0] > scores[1], "build comes first in the alphabet");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn train(examples: &[Example], options: &TrainOptions) -> Result<LinearClassifier, TrainError> {
    check(examples, options)?;
    let held_out = held_out(examples, options);
    let trained: Vec<&Example> =
        examples.iter().filter(|e| !held_out.contains(e.package.as_str())).collect();
    let classes: BTreeSet<&str> = trained.iter().map(|e| e.label.as_str()).collect();
    let classes: Vec<String> = classes.into_iter().map(str::to_owned).collect();
    if !(2..=MAX_CLASSES).contains(&classes.len()) {
        return Err(TrainError::Classes(classes.len()));
    }
    let samples = samples(&trained, &classes, options.bits);
    let mut model = Model::new(options, classes.len());
    let mut order: Vec<usize> = (0..samples.len()).collect();
    let mut random = Random(options.seed);
    for _ in 0..options.epochs {
        random.shuffle(&mut order);
        for i in &order {
            model.step(&samples[*i], options);
        }
    }
    let mut classifier = model.quantised(classes, options.bits);
    let rest: Vec<&Example> =
        examples.iter().filter(|e| held_out.contains(e.package.as_str())).collect();
    classifier.temperature = temperature(&classifier, &rest);
    Ok(classifier)
}

fn check(examples: &[Example], options: &TrainOptions) -> Result<(), TrainError> {
    if !BITS.contains(&options.bits) {
        return Err(TrainError::Bits(options.bits));
    }
    for (name, value) in [("the learning rate", options.rate), ("1 + l2", 1.0 + options.l2)] {
        if !(value.is_finite() && value > 0.0) {
            return Err(TrainError::Number(name));
        }
    }
    if let Some(e) = examples.iter().find(|e| e.label.is_empty() || e.label.len() > 255) {
        return Err(TrainError::Label(e.label.clone()));
    }
    let packages: HashSet<&str> = examples.iter().map(|e| e.package.as_str()).collect();
    match options.held_out.iter().find(|p| !packages.contains(p.as_str())) {
        Some(package) => Err(TrainError::Package(package.clone())),
        None => Ok(()),
    }
}

/// Names of the packages that calibrate, and are not trained on.
pub fn held_out<'a>(examples: &'a [Example], options: &'a TrainOptions) -> HashSet<&'a str> {
    if !options.held_out.is_empty() {
        return options.held_out.iter().map(String::as_str).collect();
    }
    let mut packages: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for example in examples {
        packages.entry(&example.label).or_default().insert(&example.package);
    }
    let mut random = Random(options.seed ^ 0x5bd1_e995);
    let draws = packages.values().map(|of_class| {
        let draw = random.below(of_class.len());
        of_class.iter().nth(draw).filter(|_| of_class.len() >= 3).copied()
    });
    draws.flatten().collect()
}

/// Extracts features and weights.
fn samples(examples: &[&Example], classes: &[String], bits: u32) -> Vec<Sample> {
    let class = |e: &Example| classes.iter().position(|c| *c == e.label);
    let mut counts = vec![0_usize; classes.len()];
    let labels: Vec<usize> = examples.iter().filter_map(|e| class(e)).collect();
    labels.iter().for_each(|c| counts[*c] += 1);
    let fair = examples.len() as f32 / classes.len() as f32;
    let sample = |(example, class): (&&Example, usize)| {
        let features = features(example, bits);
        let norm = features.norm();
        Sample { features, norm, class, weight: fair / counts[class] as f32 }
    };
    examples.iter().zip(labels).map(sample).collect()
}

fn features(example: &Example, bits: u32) -> Features {
    let parts = example.borrowed();
    let input = RouteInput { intent: None, parts: &parts };
    Features::extract(&input.views(DEFAULT_MAX_BYTES), bits)
}

/// Weights and sums of squared gradients, `[2^bits + 1, classes]`: the last row is the bias.
struct Model {
    classes: usize,
    weights: Vec<f32>,
    squares: Vec<f32>,
}

impl Model {
    fn new(options: &TrainOptions, classes: usize) -> Self {
        let len = ((1 << options.bits) + 1) * classes;
        Self { classes, weights: vec![0.0; len], squares: vec![1e-6; len] }
    }

    /// Calls `visit` with the row and the value of each feature, and of the bias.
    fn rows(&self, sample: &Sample, mut visit: impl FnMut(usize, f32)) {
        for (buckets, weight) in sample.features.groups() {
            buckets.iter().for_each(|b| visit(*b as usize * self.classes, weight * sample.norm));
        }
        visit(self.weights.len() - self.classes, 1.0);
    }

    /// One step of AdaGrad.
    fn step(&mut self, sample: &Sample, options: &TrainOptions) {
        let n = self.classes;
        let mut error = vec![0.0; n];
        self.rows(sample, |row, x| {
            for (z, w) in error.iter_mut().zip(&self.weights[row..row + n]) {
                *z += x * w;
            }
        });
        softmax(&mut error, 1.0);
        error[sample.class] -= 1.0;
        error.iter_mut().for_each(|e| *e *= sample.weight);
        let mut update = |row: usize, x: f32| {
            let weights = &mut self.weights[row..row + n];
            for ((w, square), e) in
                weights.iter_mut().zip(&mut self.squares[row..row + n]).zip(&error)
            {
                let gradient = e * x + options.l2 * *w;
                *square += gradient * gradient;
                *w -= options.rate * gradient / square.sqrt();
            }
        };
        for (buckets, weight) in sample.features.groups() {
            buckets.iter().for_each(|b| update(*b as usize * n, weight * sample.norm));
        }
        update((1 << options.bits) * n, 1.0);
    }

    /// Rounds the weights of each class to multiples of its largest weight over 127.
    fn quantised(self, classes: Vec<String>, bits: u32) -> LinearClassifier {
        let n = self.classes;
        let (weights, bias) = self.weights.split_at(n << bits);
        let mut largest = vec![0.0_f32; n];
        for row in weights.chunks_exact(n) {
            largest.iter_mut().zip(row).for_each(|(max, w)| *max = max.max(w.abs()));
        }
        let scale: Vec<f32> = largest.iter().map(|max| max / 127.0).collect();
        let rounded = |(w, s): (&f32, &f32)| if *s > 0.0 { (w / s).round() as i8 } else { 0 };
        let weights =
            weights.chunks_exact(n).flat_map(|row| row.iter().zip(&scale).map(rounded)).collect();
        let bias = bias.to_vec();
        LinearClassifier { classes, bits, weights, scale, bias, temperature: 1.0 }
    }
}

/// The temperature that minimises the cross entropy of the examples, each class counting alike: golden section search
/// over its logarithm, in which the cross entropy has one minimum.
fn temperature(classifier: &LinearClassifier, examples: &[&Example]) -> f32 {
    let known: Vec<&Example> =
        examples.iter().copied().filter(|e| classifier.classes.contains(&e.label)).collect();
    if known.is_empty() {
        return 1.0;
    }
    let samples = samples(&known, &classifier.classes, classifier.bits);
    let logits: Vec<_> =
        samples.iter().map(|s| (classifier.logits(&s.features), s.class, s.weight)).collect();
    let loss = |log: f64| {
        let one = |(z, class, weight): &(Vec<f32>, usize, f32)| {
            let mut p = z.clone();
            softmax(&mut p, log.exp() as f32);
            -f64::from(*weight) * f64::from(p[*class].max(1e-30)).ln()
        };
        logits.iter().map(one).sum::<f64>()
    };
    let ratio = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (0.05_f64.ln(), 20.0_f64.ln());
    for _ in 0..40 {
        let width = ratio * (high - low);
        let (a, b) = (high - width, low + width);
        if loss(a) < loss(b) { high = b } else { low = a }
    }
    ((low + high) / 2.0).exp() as f32
}

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, 0 if `n` is 0.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Fisher-Yates.
    fn shuffle(&mut self, items: &mut [usize]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
