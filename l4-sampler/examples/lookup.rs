//! How much lookup saves, on three kinds of text: `cargo run -p l4-sampler --example lookup`.
//!
//! No model is needed: the outputs are given, and a draft is accepted as far as it agrees with them, as for greedy
//! requests. A word, a space or a sign is a token here.

use std::collections::HashMap;

use l4_sampler::draft::{DraftRow, Drafter, Drafts, NgramDrafter, SuffixDrafter, SuffixOptions};

const BEFORE: &str = "\
fn mean(values: &[f64]) -> f64 {
    let mut sum = 0.0;
    for value in values {
        sum += value;
    }
    sum / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let center = mean(values);
    let mut sum = 0.0;
    for value in values {
        sum += (value - center) * (value - center);
    }
    sum / values.len() as f64
}
";

/// Commands of an agent that looks at one file after another.
const COMMANDS: [&str; 3] = [
    "{\"tool\": \"bash\", \"command\": \"cat src/lexer.rs | head -n 100\"}",
    "{\"tool\": \"bash\", \"command\": \"cat src/parser.rs | head -n 100\"}",
    "{\"tool\": \"bash\", \"command\": \"cat src/types.rs | head -n 200\"}",
];

const STORY: &str = "The lamp went out before the boat had passed the rocks, and nobody on board could say how far \
    they were from land. An old sailor began to hum. After some hours, when grey light came up behind the hills, he \
    stopped, pointed at a white house near a bridge, and asked whose it was.";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let after = BEFORE.replace("center", "average").replace("f64", "f32");
    let workloads: [(&str, Vec<(&str, &str)>); 3] = [
        ("edit of a program", vec![(BEFORE, &after)]),
        ("commands of an agent", COMMANDS.iter().map(|output| ("", *output)).collect()),
        ("story", vec![("", STORY)]),
    ];
    println!("{:<22}{:>6}{:>14}{:>14}", "steps, of requests:", "plain", "n-gram", "suffix");
    for (name, requests) in workloads {
        let mut ids = HashMap::new();
        let requests: Vec<_> =
            requests.iter().map(|(p, o)| (tokens(p, &mut ids), tokens(o, &mut ids))).collect();
        let plain: usize = requests.iter().map(|(_, output)| output.len()).sum();
        let mut ngram = NgramDrafter::new(2, 4)?;
        let mut suffix = SuffixDrafter::new(SuffixOptions::default());
        let steps = [steps(&mut ngram, &requests), steps(&mut suffix, &requests)];
        let column = |steps: usize| format!("{steps} ({:.1}x)", plain as f64 / steps as f64);
        println!("{name:<22}{plain:>6}{:>14}{:>14}", column(steps[0]), column(steps[1]));
    }
    Ok(())
}

/// Number of steps that the outputs take, one after the other, with drafts of at most 8 tokens.
fn steps(drafter: &mut dyn Drafter, requests: &[(Vec<u32>, Vec<u32>)]) -> usize {
    let (mut steps, mut drafts) = (0, Drafts::default());
    for (prompt, output) in requests {
        drafter.begin(0, prompt, None, output.len());
        let mut rest = &output[..];
        while !rest.is_empty() {
            drafts.clear();
            drafter.propose(&[DraftRow { slot: 0, most: 8 }], &mut drafts);
            let accepted = drafts.row(0).0.iter().zip(rest).take_while(|(a, b)| a == b).count();
            let (new, left) = rest.split_at((accepted + 1).min(rest.len()));
            drafter.extend(0, new);
            rest = left;
            steps += 1;
        }
        drafter.end(0);
    }
    steps
}

/// Ids of the words, spaces and signs of a text.
fn tokens<'a>(text: &'a str, ids: &mut HashMap<&'a str, u32>) -> Vec<u32> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let spaces = rest.find(|c| c != ' ').unwrap_or(rest.len());
        let (token, left) = rest.split_at(word.max(spaces).max(first.len_utf8()));
        let next = ids.len() as u32;
        out.push(*ids.entry(token).or_insert(next));
        rest = left;
    }
    out
}
