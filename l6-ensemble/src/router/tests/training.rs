//! Training: what is learnt, what is held out, and what a seed decides.

use proptest::prelude::*;

use super::super::features::Features;
use super::*;

fn example(label: &str, package: &str, text: &str) -> Example {
    let part = ExamplePart { kind: PartKind::User, text: text.to_owned(), name: None };
    Example {
        label: label.to_owned(),
        package: package.to_owned(),
        intent: None,
        parts: vec![part],
    }
}

/// Two classes that differ in their words; package `c` is of the first, half of it with the words of the second.
fn corpus() -> Vec<Example> {
    let mut examples = vec![];
    for i in 0..30 {
        examples.push(example("locks", "a", &format!("mutex lock{i} thread wait")));
        examples.push(example("files", "b", &format!("open file{i} read close")));
        let noisy = if i % 2 == 0 { "mutex thread" } else { "open read" };
        examples.push(example("locks", "c", &format!("{noisy} other{i}")));
    }
    examples
}

fn options(held_out: &[&str]) -> TrainOptions {
    let held_out = held_out.iter().map(|p| (*p).to_owned()).collect();
    TrainOptions { bits: 12, held_out, ..TrainOptions::default() }
}

fn scores(classifier: &LinearClassifier, text: &str) -> Vec<f32> {
    classifier.scores(&RouteInput { intent: None, parts: &[Part::user(text)] })
}

#[test]
fn what_the_examples_have_in_common_is_learnt() {
    let clean: Vec<Example> = corpus().into_iter().filter(|e| e.package != "c").collect();
    let classifier = train(&clean, &options(&[])).unwrap();
    assert_eq!(classifier.classes(), ["files", "locks"]);
    let of = |text: &str| scores(&classifier, text)[0];
    let (files, locks) = (of("read a file"), of("a mutex and a thread"));
    assert!(files > 0.7 && locks < 0.3, "{files} {locks}");
}

#[test]
fn the_same_seed_gives_the_same_file_and_another_gives_another() {
    let bytes =
        |seed| train(&corpus(), &TrainOptions { seed, ..options(&["c"]) }).unwrap().to_bytes();
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
}

#[test]
fn a_held_out_package_changes_the_temperature_and_nothing_else() {
    let all = train(&corpus(), &options(&["c"])).unwrap();
    let without: Vec<Example> = corpus().into_iter().filter(|e| e.package != "c").collect();
    let alone = train(&without, &options(&[])).unwrap();
    assert_eq!((&all.weights, &all.bias, &all.scale), (&alone.weights, &alone.bias, &alone.scale));
    assert_eq!(alone.temperature(), 1.0, "no class has three packages to draw from");
    assert!(
        all.temperature() > 2.0,
        "half of the held-out package is wrong: {}",
        all.temperature()
    );
}

#[test]
fn the_temperature_has_the_least_cross_entropy_on_the_held_out_package() {
    // One in four of the held-out texts is of the other class.
    let mut examples = corpus();
    examples.retain(|e| e.package != "c");
    for i in 0..40 {
        let text = if i % 4 == 0 { "open the file" } else { "the mutex" };
        examples.push(example("locks", "d", text));
    }
    let classifier = train(&examples, &options(&["d"])).unwrap();
    let entropy = |temperature: f32| {
        let classifier = LinearClassifier { temperature, ..classifier.clone() };
        let one = |e: &Example| -f64::from(scores(&classifier, &e.parts[0].text)[1]).ln();
        examples.iter().filter(|e| e.package == "d").map(one).sum::<f64>()
    };
    let t = classifier.temperature();
    assert!(entropy(t) <= entropy(t * 1.05) && entropy(t) <= entropy(t / 1.05), "{t}");
}

#[test]
fn all_classes_count_alike_whatever_their_numbers() {
    let mut examples = vec![];
    for i in 0..120 {
        examples.push(example("many", "a", &format!("{i}")));
        if i % 6 == 0 {
            examples.push(example("few", "b", &format!("{i}")));
        }
    }
    // Numbers are all the same token: nothing tells the two apart but how many there are, one in seven.
    let classifier = train(&examples, &TrainOptions { rate: 0.02, ..options(&[]) }).unwrap();
    let undecided = scores(&classifier, "7")[0];
    assert!((0.35..0.65).contains(&undecided), "{undecided}");
}

#[test]
fn options_and_corpora_that_make_no_classifier_are_errors() {
    let corpus = corpus();
    let fails = |options: TrainOptions| train(&corpus, &options).unwrap_err();
    let good = options(&[]);
    assert_eq!(fails(TrainOptions { bits: 7, ..good.clone() }), TrainError::Bits(7));
    assert_eq!(fails(TrainOptions { bits: 25, ..good.clone() }), TrainError::Bits(25));
    assert!(matches!(
        fails(TrainOptions { rate: f32::NAN, ..good.clone() }),
        TrainError::Number(_)
    ));
    assert_eq!(fails(options(&["nothing"])), TrainError::Package("nothing".into()));
    assert_eq!(fails(options(&["b"])), TrainError::Classes(1));
    assert_eq!(train(&[], &good).unwrap_err(), TrainError::Classes(0));
    let unnamed = [example("", "p", "text"), example("x", "p", "text")];
    assert_eq!(train(&unnamed, &good).unwrap_err(), TrainError::Label(String::new()));
}

proptest! {
    #[test]
    fn scores_are_those_of_the_formula_in_double_precision(
        user in "[a-c]{1,3}( [a-c]{1,3}){0,6}",
        file in "[a-e]{1,3}( [a-e]{1,3}){0,6}",
        seed: u64,
    ) {
        let byte = |i: u64| (i.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as i8;
        let classifier = LinearClassifier {
            classes: vec!["x".into(), "y".into(), "z".into()],
            bits: 8,
            weights: (0..768).map(byte).collect(),
            scale: vec![0.01, 0.02, 0.005],
            bias: vec![0.1, -0.2, 0.0],
            temperature: 1.7,
        };
        let parts = [Part { kind: PartKind::Snippet, text: &file, name: None }, Part::user(&user)];
        let input = RouteInput { intent: None, parts: &parts };

        let own = |part: &[Part<'_>]| {
            let features = Features::extract(&RouteInput { intent: None, parts: part }.views(1000), 8);
            features.buckets.into_iter().collect::<std::collections::BTreeSet<u32>>()
        };
        let (first, other) = (own(&parts[1..]), own(&parts[..1]));
        let mut x: Vec<(u32, f64)> = first.iter().map(|b| (*b, 1.0)).collect();
        x.extend(other.difference(&first).map(|b| (*b, f64::from(0.7_f32))));
        let length = x.iter().map(|(_, v)| v * v).sum::<f64>().sqrt();
        let z = |c: usize| {
            let sum: f64 = x.iter().map(|(b, v)| v / length * f64::from(classifier.weights[*b as usize * 3 + c])).sum();
            (f64::from(classifier.bias[c]) + f64::from(classifier.scale[c]) * sum) / 1.7
        };
        let total: f64 = (0..3).map(|c| z(c).exp()).sum();
        for (c, score) in classifier.scores(&input).into_iter().enumerate() {
            prop_assert!((f64::from(score) - z(c).exp() / total).abs() < 1e-4);
        }
    }
}
