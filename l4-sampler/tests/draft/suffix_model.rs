//! The suffix drafter against a model that keeps all outputs as they are and reads all of them for every draft.

use std::collections::HashMap;

use l4_sampler::draft::{Drafter, SuffixDrafter, SuffixOptions};
use proptest::collection::vec;
use proptest::prelude::*;

use super::proposed::propose;

/// Number of occurrences that vote.
const NEWEST: usize = 128;

/// Tokens of one text, each with the time when it came.
type Timed = Vec<(usize, u32)>;

#[derive(Default)]
struct Model {
    /// Outputs of all requests that ever were, with their tenants.
    outputs: Vec<(Option<String>, Timed)>,
    /// Prompt and output of each running request, and the index of its output.
    running: HashMap<u32, (Timed, usize)>,
    now: usize,
}

impl Model {
    fn begin(&mut self, slot: u32, prompt: &[u32], tenant: Option<&str>) {
        let text = prompt.iter().copied().enumerate().collect();
        self.outputs.push((tenant.map(str::to_string), Vec::new()));
        self.running.insert(slot, (text, self.outputs.len() - 1));
    }

    fn extend(&mut self, slot: u32, tokens: &[u32]) {
        let Some((text, output)) = self.running.get_mut(&slot) else { return };
        for token in tokens {
            text.push((text.len(), *token));
            self.outputs[*output].1.push((self.now, *token));
            self.now += 1;
        }
    }

    /// Tokens of an output that are among the newest `kept` of all outputs.
    fn kept(&self, output: &Timed, kept: usize) -> Timed {
        output.iter().copied().filter(|(time, _)| time + kept >= self.now).collect()
    }

    fn propose(&self, slot: u32, most: usize, options: &SuffixOptions) -> Vec<(u32, u8)> {
        let Some((text, output)) = self.running.get(&slot) else { return vec![] };
        let tenant = &self.outputs[*output].0;
        let same_tenant = self.outputs.iter().filter(|(of, _)| of == tenant);
        let others: Vec<Timed> =
            same_tenant.map(|(_, output)| self.kept(output, options.max_cached_tokens)).collect();
        let own = vote(std::slice::from_ref(text), text, most, options);
        let others = vote(&others, text, most, options);
        if score(&others) > score(&own) { others.1 } else { own.1 }
    }
}

/// Shares and the draft with its classes.
type Voted = (Vec<f64>, Vec<(u32, u8)>);

fn score((shares, _): &Voted) -> f64 {
    let mut prob = 1.0;
    shares
        .iter()
        .map(|share| {
            prob *= share;
            prob
        })
        .sum()
}

fn vote(texts: &[Timed], own: &Timed, most: usize, options: &SuffixOptions) -> Voted {
    let last: Vec<u32> = own.iter().rev().take(options.max_tree_depth).map(|(_, t)| *t).collect();
    // Time of the occurrence, equal tokens, and what follows.
    let mut found: Vec<(usize, usize, Vec<u32>)> = Vec::new();
    for text in texts {
        for end in 0..text.len().saturating_sub(1) {
            let before = text[..=end].iter().rev().map(|(_, token)| token);
            let equal = before.zip(&last).take_while(|(a, b)| a == b).count();
            if equal >= 2 {
                found.push((text[end].0, equal, text[end + 1..].iter().map(|t| t.1).collect()));
            }
        }
    }
    found.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
    found.truncate(NEWEST);
    let longest = found.iter().map(|(_, equal, _)| *equal).max().unwrap_or(0);
    found.retain(|(_, equal, _)| *equal == longest);
    let most = most.min(((options.max_spec_factor * longest as f64).floor() as usize).max(1));

    let (mut shares, mut draft, mut prob) = (Vec::new(), Vec::new(), 1.0);
    while draft.len() < most {
        let i = draft.len();
        found.retain(|(.., next)| {
            next.len() > i && next.iter().zip(&draft).all(|(a, (b, _))| a == b)
        });
        let count = |token: u32| found.iter().filter(|(.., next)| next[i] == token).count();
        let mut best: Option<(u32, usize)> = None;
        for (.., next) in &found {
            if best.is_none_or(|(_, votes)| count(next[i]) > votes) {
                best = Some((next[i], count(next[i])));
            }
        }
        let Some((token, votes)) = best else { break };
        let share = votes as f64 / found.len() as f64;
        prob *= share;
        if prob < options.min_token_prob {
            break;
        }
        let of_share = match share {
            1.0 => 3,
            0.75.. => 2,
            0.5.. => 1,
            _ => 0,
        };
        let of_match = match longest {
            16.. => 3,
            8.. => 2,
            4.. => 1,
            _ => 0,
        };
        shares.push(share);
        draft.push((token, 4 * of_share + of_match));
    }
    (shares, draft)
}

#[derive(Clone, Debug)]
enum Op {
    Begin { slot: u32, tenant: usize, prompt: Vec<u32> },
    Extend { slot: u32, tokens: Vec<u32> },
    Propose { slot: u32, most: usize },
    End { slot: u32 },
}

const SLOTS: u32 = 5;
const TENANTS: [Option<&str>; 3] = [None, Some("a"), Some("b")];

fn op(longest: usize) -> impl Strategy<Value = Op> {
    let slot = 0..SLOTS;
    prop_oneof![
        1 => (slot.clone(), 0..TENANTS.len(), vec(any::<u32>(), 0..20))
            .prop_map(|(slot, tenant, prompt)| Op::Begin { slot, tenant, prompt }),
        6 => (slot.clone(), vec(any::<u32>(), 0..longest))
            .prop_map(|(slot, tokens)| Op::Extend { slot, tokens }),
        4 => (slot.clone(), 0usize..12).prop_map(|(slot, most)| Op::Propose { slot, most }),
        1 => slot.prop_map(|slot| Op::End { slot }),
    ]
}

/// Runs the drafter and the model, and compares every draft. Each tenant has `vocab` tokens of its own.
fn run(ops: &[Op], vocab: u32, options: SuffixOptions) -> Result<usize, TestCaseError> {
    let (mut drafter, mut model) = (SuffixDrafter::new(options), Model::default());
    let empty = drafter.bytes();
    let mut tenants: HashMap<u32, usize> = HashMap::new();
    let mut texts: HashMap<u32, usize> = HashMap::new();
    let own = |tenant: usize, tokens: &[u32]| -> Vec<u32> {
        tokens.iter().map(|token| tenant as u32 * vocab + token % vocab).collect()
    };
    let mut drafted = 0;
    for op in ops {
        match op {
            Op::Begin { slot, tenant, prompt } => {
                let prompt = own(*tenant, prompt);
                drafter.begin(*slot, &prompt, TENANTS[*tenant], 16);
                model.begin(*slot, &prompt, TENANTS[*tenant]);
                tenants.insert(*slot, *tenant);
                texts.insert(*slot, prompt.len() + 16);
            }
            Op::Extend { slot, tokens } => {
                let tokens = own(tenants.get(slot).copied().unwrap_or(0), tokens);
                drafter.extend(*slot, &tokens);
                model.extend(*slot, &tokens);
                texts.entry(*slot).and_modify(|text| *text += tokens.len());
            }
            Op::Propose { slot, most } => {
                let (tokens, classes) = propose(&mut drafter, &[(*slot, *most)]).remove(0);
                let got: Vec<(u32, u8)> = tokens.iter().copied().zip(classes).collect();
                prop_assert_eq!(&got, &model.propose(*slot, *most, &options));
                prop_assert!(tokens.len() <= *most);
                if let Some(tenant) = tenants.get(slot) {
                    let of_tenant = |token: &u32| (token / vocab) as usize == *tenant;
                    prop_assert!(tokens.iter().all(of_tenant), "{:?} for {}", tokens, tenant);
                }
                drafted += tokens.len();
            }
            Op::End { slot } => {
                drafter.end(*slot);
                model.running.remove(slot);
                tenants.remove(slot);
                texts.remove(slot);
            }
        }
        prop_assert_eq!(drafter.cached_tokens(), model.now.min(options.max_cached_tokens));
        // 16 bytes a token, half as much again for growth, and a little for each request.
        let texts: usize = texts.values().map(|text| 24 * text + 1000).sum();
        prop_assert!(drafter.bytes() <= empty + texts + 4000);
    }
    Ok(drafted)
}

fn options() -> impl Strategy<Value = SuffixOptions> {
    let factor = prop_oneof![Just(0.0), Just(0.5), Just(1.0), Just(3.7)];
    let prob = prop_oneof![Just(0.0), Just(0.1), Just(0.4), Just(1.0)];
    let cached = prop_oneof![0usize..4, 4usize..40, 100usize..600];
    (2usize..26, cached, factor, prob).prop_map(|(depth, cached, factor, prob)| SuffixOptions {
        max_tree_depth: depth,
        max_cached_tokens: cached,
        max_spec_factor: factor,
        min_token_prob: prob,
    })
}

proptest! {
    #[test]
    fn drafts_are_those_of_a_search_of_all_outputs(
        ops in vec(op(8), 1..80),
        vocab in 1u32..5,
        options in options(),
    ) {
        run(&ops, vocab, options)?;
    }

    #[test]
    fn drafts_are_those_of_a_search_where_outputs_are_long_and_stay(
        ops in vec(op(100), 1..60),
        vocab in 2u32..4,
        options in options(),
    ) {
        run(&ops, vocab, SuffixOptions { max_cached_tokens: 1000, ..options })?;
    }
}

#[test]
fn most_random_scenarios_have_drafts() {
    // The properties above would hold for a drafter and a model that never draft.
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut drafted = 0;
    for _ in 0..20 {
        let ops = vec(op(8), 80).new_tree(&mut runner).unwrap().current();
        let options = SuffixOptions { max_cached_tokens: 100, ..SuffixOptions::default() };
        drafted += usize::from(run(&ops, 3, options).unwrap() > 0);
    }
    assert!(drafted > 10, "{drafted} of 20");
}
