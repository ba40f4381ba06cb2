//! A reader of Prometheus' text format that takes nothing that is not just so.

use std::collections::{BTreeMap, BTreeSet};

/// A scrape: families by name.
#[derive(Debug)]
pub struct Scrape(pub BTreeMap<String, Family>);

/// Samples under one name.
#[derive(Debug)]
pub struct Family {
    pub kind: String,
    pub samples: Vec<Sample>,
}

#[derive(Debug)]
pub struct Sample {
    /// With the suffix that a histogram's have.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Scrape {
    /// Families, each a HELP, a TYPE and its samples.
    pub fn read(text: &str) -> Self {
        assert!(text.ends_with('\n') && !text.contains("\n\n"), "a line that is none");
        let mut families = BTreeMap::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let help = line.strip_prefix("# HELP ").unwrap_or_else(|| panic!("no HELP: {line}"));
            let (name, words) = help.split_once(' ').unwrap();
            assert!(is_name(name, true) && words.ends_with('.'), "{line}");
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).unwrap();
            let kind = kind.strip_prefix(name).unwrap().strip_prefix(' ').unwrap().to_owned();
            let mut samples = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                samples.push(sample(line));
            }
            let family = Family { kind, samples };
            family.check(name);
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} is there twice");
        }
        Self(families)
    }

    /// The sum of all samples of this name that have these labels.
    #[track_caller]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let all = self.0.values().flat_map(|family| &family.samples);
        let has = |sample: &&Sample| {
            let has = |(key, value): &(&str, &str)| {
                sample.labels.get(*key).is_some_and(|own| own == value)
            };
            sample.name == name && labels.iter().all(has)
        };
        let found: Vec<f64> = all.filter(has).map(|sample| sample.value).collect();
        assert!(!found.is_empty(), "there is no {name} with {labels:?}");
        found.iter().sum()
    }

    /// As [`Scrape::sum`], whatever the labels.
    #[track_caller]
    pub fn all(&self, name: &str) -> f64 {
        self.sum(name, &[])
    }
}

impl Family {
    fn check(&self, name: &str) {
        assert!(!self.samples.is_empty(), "{name} has no samples");
        let mut seen = BTreeSet::new();
        for sample in &self.samples {
            assert!(seen.insert((&sample.name, &sample.labels)), "{sample:?} is there twice");
        }
        match self.kind.as_str() {
            "counter" => {
                assert!(name.ends_with("_total"), "{name} is a counter");
                self.samples.iter().for_each(|sample| assert!(sample.value >= 0.0, "{sample:?}"));
            }
            "gauge" => assert!(!name.ends_with("_total"), "{name} is a gauge"),
            "histogram" => return self.check_buckets(name),
            kind => panic!("{name} is a {kind}"),
        }
        self.samples.iter().for_each(|sample| assert_eq!(sample.name, name));
    }

    /// For each set of labels: buckets that ascend in bound and count up to +Inf, then the sum, then the count.
    fn check_buckets(&self, name: &str) {
        let (bucket, sum, count) =
            (format!("{name}_bucket"), format!("{name}_sum"), format!("{name}_count"));
        let (mut bound, mut below) = (f64::NEG_INFINITY, 0.0);
        for sample in &self.samples {
            if sample.name == bucket {
                let le = &sample.labels["le"];
                let le = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() };
                assert!(le > bound && sample.value >= below, "{sample:?}");
                (bound, below) = (le, sample.value);
            } else if sample.name == sum {
                assert!(bound.is_infinite() && sample.value >= 0.0, "{sample:?}");
            } else {
                assert_eq!(sample.name, count);
                assert_eq!(sample.value, below, "{sample:?}");
                (bound, below) = (f64::NEG_INFINITY, 0.0);
            }
        }
        assert!(bound == f64::NEG_INFINITY, "{name} has no count");
    }
}

/// `name value` or `name{label="value",...} value`.
fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name, true), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap();
            assert!(is_name(label, false), "{line}");
            let (value, after) = quoted(after);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{label} twice: {line}");
            match after.strip_prefix(',') {
                Some(next) => rest = next,
                None => break rest = after.strip_prefix('}').unwrap(),
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap();
    let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
    Sample { name: name.to_owned(), labels, value }
}

/// Up to the quote that ends it, and what is behind that.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next().unwrap().1 {
                'n' => value.push('\n'),
                special @ ('\\' | '"') => value.push(special),
                other => panic!("\\{other} means nothing"),
            },
            char => value.push(char),
        }
    }
    panic!("no end: {text}")
}

fn is_name(name: &str, colons: bool) -> bool {
    let letter = |char: char| char.is_ascii_alphabetic() || char == '_' || (colons && char == ':');
    name.starts_with(letter) && name.chars().all(|char| letter(char) || char.is_ascii_digit())
}
