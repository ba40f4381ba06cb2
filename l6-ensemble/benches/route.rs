//! What routing a request costs: prompts of 8 KiB, all different, cut from the sample corpus.
//!
//! * `route`: rules and the built-in classifier, 2^14 buckets of 9 classes;
//! * `rules`: rules only;
//! * `full_size`: a classifier of 2^22 buckets (38 million weights, more than the caches hold) and rules.
//!
//! Before the means of criterion it prints the median and the 99th percentile over all prompts, the best of three
//! passes, so that a thread that was descheduled is not measured. The bound is 1 ms at the 99th percentile.

use std::hint::black_box;
use std::io::BufReader;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use l6_ensemble::router::{
    Classifier, Example, LinearClassifier, Part, RouteInput, Router, RouterConfig, TrainOptions,
    read_examples, train,
};

const PROMPT: usize = 8 * 1024;
const PROMPTS: usize = 1000;

fn examples() -> Vec<Example> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/router/sample.jsonl");
    let file = std::fs::File::open(path).expect("the sample corpus");
    read_examples(BufReader::new(file)).expect("a corpus")
}

/// Prompts of 8 KiB that begin at different places of the corpus.
fn prompts(examples: &[Example]) -> Vec<String> {
    let parts = examples.iter().flat_map(|e| &e.parts);
    let text: String = parts.flat_map(|p| [p.text.as_str(), "\n"]).collect();
    let twice = text.repeat(2);
    let step = (text.len() / PROMPTS).max(1);
    let prompt = |i: usize| {
        let start = twice.floor_char_boundary(i * step);
        twice[start..twice.floor_char_boundary(start + PROMPT)].to_owned()
    };
    (0..PROMPTS).map(prompt).collect()
}

fn router(classifier: Option<LinearClassifier>) -> Router {
    let lanes = ["template", "stl", "algo", "memory", "concurrency", "systems", "build", "debug"];
    let classifier = classifier.map(|c| Box::new(c) as Box<dyn Classifier>);
    Router::new(RouterConfig::default(), classifier, lanes.map(String::from).to_vec())
        .expect("a router")
}

fn once(router: &Router, prompt: &str) -> Duration {
    let parts = [Part::user(prompt)];
    let start = Instant::now();
    black_box(router.route(&RouteInput { intent: None, parts: &parts }));
    start.elapsed()
}

fn benches(c: &mut Criterion) {
    let examples = examples();
    let prompts = prompts(&examples);
    let full = train(&examples, &TrainOptions { bits: 22, epochs: 1, ..TrainOptions::default() });
    let routers = [
        ("route", router(Some(LinearClassifier::builtin()))),
        ("rules", router(None)),
        ("full_size", router(Some(full.expect("a classifier")))),
    ];
    for (name, router) in &routers {
        let best = |prompt: &String| (0..3).map(|_| once(router, prompt)).min().unwrap_or_default();
        let mut times: Vec<Duration> = prompts.iter().map(best).collect();
        times.sort_unstable();
        let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize];
        println!(
            "{name}: {} prompts, p50 {:?}, p99 {:?}, max {:?}",
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    for (name, router) in &routers {
        let mut next = prompts.iter().cycle();
        c.bench_function(name, |b| b.iter(|| once(router, next.next().expect("an endless cycle"))));
    }
}

criterion_group!(group, benches);
criterion_main!(group);
