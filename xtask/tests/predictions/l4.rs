//! The fourth layer answers its own questions.

use std::cell::RefCell;

use l1_tensor::{Runtime, RuntimeOptions, Tensor};
use l2_model::tokenizer::Tokenizer;
use l4_sampler::guide::{GuideSpec, Guides};
use l4_sampler::processors::penalties::penalize;
use l4_sampler::stop::StopMatcher;
use l4_sampler::{
    Distribution, Draft, DrawKey, History, Logits, LogprobsOf, LogprobsRequest, Proposal, Purpose,
    Row, Sampled, Sampler, SamplingParams, TokenMask,
};
use serde_json::{Value, json};

use super::{agree, number, numbers};

fn real(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("{v} is no number"))
}

/// A number, and how far from it another one may lie that is the same.
#[derive(Debug)]
struct About(f64, f64);

impl PartialEq for About {
    fn eq(&self, other: &Self) -> bool {
        (self.0 - other.0).abs() <= self.1.max(other.1)
    }
}

/// An answer on paper, which is as exact as f64.
fn exactly(v: &Value) -> About {
    About(real(v), 0.0)
}

fn u32s(v: &Value) -> Vec<u32> {
    numbers(v).iter().map(|n| *n as u32).collect()
}

fn strings(v: &Value) -> Vec<String> {
    v.as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_string()).collect()
}

/// Logits whose exponentials are these numbers.
fn logits(shares: &[usize]) -> Vec<f32> {
    shares.iter().map(|n| (*n as f32).ln()).collect()
}

fn key(seed: u64) -> DrawKey {
    DrawKey { seed, sample: 0, position: 0 }
}

fn runtime() -> Runtime {
    Runtime::new(RuntimeOptions::default()).unwrap()
}

/// What is left of a row.
fn left(rt: &Runtime, logits: &[f32], params: &SamplingParams) -> Distribution {
    let history = History::default();
    let row = Row { params, history: &history, ends: &[], mask: None, key: key(0) };
    Sampler::new(rt, logits.len()).distribution(logits, &row).unwrap()
}

fn ids(of: &Distribution) -> Vec<usize> {
    of.iter().map(|(id, _)| id as usize).collect()
}

#[test]
fn two_draws_share_a_number_where_it_was_said() {
    agree(
        ("l4", "same-number"),
        200,
        |answer| answer.as_bool().unwrap(),
        |facts| {
            let [first, second] = [0, 1].map(|i| {
                let of = |name: &str| number(&facts[name][i]);
                let purposes = [Purpose::Draw, Purpose::Accept, Purpose::Residual, Purpose::Bonus];
                DrawKey {
                    seed: of("seeds") as u64,
                    sample: of("samples") as u32,
                    position: of("positions") as u32,
                }
                .uniform(purposes[of("purposes")])
            });
            first == second
        },
    );
}

#[test]
fn those_tokens_may_be_chosen_that_were_said() {
    let rt = runtime();
    agree(("l4", "may-be-chosen"), 200, numbers, |facts| {
        let vocab = number(&facts["vocab"]);
        let set = |v: &Value| (!v.is_null()).then(|| u32s(v));
        let down = if facts["never"] == true { f32::NEG_INFINITY } else { -3.0 };
        let [up, low, end] = ["up", "down", "end"].map(|name| number(&facts[name]) as u32);
        let params = SamplingParams {
            logit_bias: vec![(up, 50.0), (low, down)],
            allowed_tokens: set(&facts["allowed"]),
            banned_tokens: u32s(&facts["banned"]),
            min_tokens: number(&facts["min_tokens"]),
            ..SamplingParams::default()
        };
        let mask = set(&facts["guide"]).map(|allowed| {
            let mut mask = TokenMask::none(vocab);
            allowed.into_iter().for_each(|id| mask.allow(id));
            mask
        });
        let answered = number(&facts["answered"]);
        let mut history = History::new(&[], answered);
        (0..answered).for_each(|i| history.push(i as u32));
        let (params, mask) = (&params, mask.as_ref());
        let row = Row { params, history: &history, ends: &[end], mask, key: key(0) };
        ids(&Sampler::new(&rt, vocab).distribution(&vec![0.0; vocab], &row).unwrap())
    });
}

#[test]
fn a_logit_is_penalised_as_said() {
    agree(("l4", "penalised-logit"), 200, exactly, |facts| {
        let times = |name: &str| number(&facts[name]);
        let mut history = History::new(&vec![1; times("in_prompt")], 8);
        (0..times("in_answer")).for_each(|_| history.push(1));
        let [logit, repetition, presence, frequency] =
            ["logit", "repetition", "presence", "frequency"].map(|n| real(&facts[n]) as f32);
        let mut row = [0.0, logit, 0.0];
        penalize(&mut row, &history, repetition, presence, frequency);
        About(row[1].into(), 1e-6)
    });
}

#[test]
fn a_temperature_moves_quotients_as_said() {
    let rt = runtime();
    agree(("l4", "temperature-ratio"), 200, exactly, |facts| {
        let [ratio, other, from, to] =
            ["ratio", "other", "from", "to"].map(|name| real(&facts[name]) as f32);
        // At temperature `from` these are in the proportions said.
        let logits = [ratio.ln() * from, 0.0, other.ln() * from];
        let params = SamplingParams { temperature: to, ..SamplingParams::default() };
        let left = left(&rt, &logits, &params);
        let quotient = left.prob(0) / left.prob(1);
        About(quotient, 1e-5 * quotient)
    });
}

#[test]
fn a_nucleus_is_as_large_as_said() {
    let rt = runtime();
    agree(("l4", "top-p-kept"), 200, number, |facts| {
        let top_p = number(&facts["p"]) as f32 / 100.0;
        let params = SamplingParams { top_p, ..SamplingParams::default() };
        left(&rt, &logits(&numbers(&facts["parts"])), &params).len()
    });
}

#[test]
fn filters_leave_those_tokens_that_were_said() {
    let rt = runtime();
    agree(("l4", "filter-survivors"), 200, numbers, |facts| {
        let part = |name: &str| number(&facts[name]) as f32 / 100.0;
        let params = SamplingParams {
            temperature: if facts["cool"] == true { 0.5 } else { 1.0 },
            top_k: number(&facts["k"]),
            top_p: part("p"),
            min_p: part("min_p"),
            ..SamplingParams::default()
        };
        ids(&left(&rt, &logits(&numbers(&facts["weights"])), &params))
    });
}

#[test]
fn a_number_picks_the_token_said() {
    agree(("l4", "drawn-token"), 200, number, |facts| {
        let parts = numbers(&facts["parts"]).into_iter().map(|part| part as f32);
        let shares: Vec<(u32, f32)> = u32s(&facts["ids"]).into_iter().zip(parts).collect();
        Distribution::from_shares(&shares).unwrap().draw(real(&facts["u"])) as usize
    });
}

#[test]
fn the_likeliest_tokens_are_in_the_blocks_said() {
    const BLOCK: usize = 64;
    let rt = runtime();
    agree(("l4", "scanned-blocks"), 200, numbers, |facts| {
        let maxima: Vec<f32> =
            facts["maxima"].as_array().unwrap().iter().map(|v| real(v) as f32).collect();
        // Where blocks have nothing but their largest, the likeliest are all in different ones.
        let mut row = vec![f32::NEG_INFINITY; maxima.len() * BLOCK];
        for (b, max) in maxima.iter().enumerate() {
            row[b * BLOCK + 7 * b] = *max;
        }
        let params = SamplingParams { top_k: number(&facts["k"]), ..SamplingParams::default() };
        ids(&left(&rt, &row, &params)).into_iter().map(|id| id / BLOCK).collect()
    });
}

#[test]
fn a_greedy_row_has_the_token_said() {
    let rt = runtime();
    agree(("l4", "greedy-token"), 200, number, |facts| {
        let row: Vec<f32> =
            facts["logits"].as_array().unwrap().iter().map(|v| real(v) as f32).collect();
        let params = SamplingParams {
            logit_bias: vec![(real(&facts["bias"][0]) as u32, real(&facts["bias"][1]) as f32)],
            banned_tokens: vec![number(&facts["banned"]) as u32],
            repetition_penalty: 2.0,
            presence_penalty: real(&facts["presence"]) as f32,
            top_k: 2,
            top_p: 0.5,
            ..SamplingParams::greedy()
        };
        let mut history = History::new(&u32s(&facts["prompt"]), 8);
        u32s(&facts["answer"]).into_iter().for_each(|token| history.push(token));
        let asked = Row { params: &params, history: &history, ends: &[], mask: None, key: key(1) };
        sample(&rt, &row, &asked).token.unwrap() as usize
    });
}

fn sample(rt: &Runtime, logits: &[f32], row: &Row<'_>) -> Sampled {
    let batch = Tensor::from_slice(logits, &[1, logits.len()]).unwrap();
    let mut out = [Sampled::default()];
    let mut sampler = Sampler::new(rt, logits.len());
    sampler.sample(Logits::Shared(batch.view()), &[*row], &mut out).unwrap();
    let [sampled] = out;
    sampled
}

#[test]
fn a_token_has_the_log_probability_said() {
    let rt = runtime();
    agree(("l4", "row-logprob"), 200, exactly, |facts| {
        let of = if facts["raw"] == true { LogprobsOf::Raw } else { LogprobsOf::Processed };
        let params = SamplingParams {
            temperature: real(&facts["temperature"]) as f32,
            top_k: number(&facts["k"]),
            logprobs: Some(LogprobsRequest { top: 0, of }),
            ..SamplingParams::default()
        };
        let (row, chosen) = (logits(&numbers(&facts["weights"])), number(&facts["chosen"]));
        let history = History::default();
        // Some seed draws that token.
        let drawn = (0..10_000).find_map(|seed| {
            let (params, history, key) = (&params, &history, key(seed));
            let asked = Row { params, history, ends: &[], mask: None, key };
            let sampled = sample(&rt, &row, &asked);
            (sampled.token == Ok(chosen as u32)).then_some(sampled)
        });
        About(drawn.unwrap().logprobs.unwrap().logprob.into(), 1e-5)
    });
}

#[test]
fn as_much_text_is_shown_as_said() {
    agree(("l4", "text-shown"), 200, numbers, |facts| {
        let include = facts["include"] == true;
        let mut matcher = StopMatcher::new(&strings(&facts["stops"]), include).unwrap();
        let mut shown = 0;
        let pieces = strings(&facts["pieces"]);
        let each = pieces.iter().map(|piece| {
            shown += matcher.push(piece).len();
            shown
        });
        each.collect()
    });
}

#[test]
fn an_answer_ends_at_the_stop_said() {
    agree(
        ("l4", "stop-wins"),
        200,
        |answer| answer.as_str().unwrap().to_string(),
        |facts| {
            let include = facts["include"] == true;
            let mut matcher = StopMatcher::new(&strings(&facts["stops"]), include).unwrap();
            // A letter at a time, as a model would write it.
            let mut text = String::new();
            for letter in facts["text"].as_str().unwrap().chars() {
                text += matcher.push(&letter.to_string());
            }
            text + matcher.finish()
        },
    );
}

#[test]
fn a_guide_allows_the_tokens_said() {
    agree(("l4", "guide-allows"), 60, numbers, |facts| {
        let (words, so_far) = (strings(&facts["words"]), facts["so_far"].as_str().unwrap());
        let end = words.len() as u32;
        // As in a real vocabulary every letter is a token, too: what is written already was written in these.
        let mut vocab = words;
        vocab.push("<end>".into());
        for letter in byte_letters() {
            if !vocab.contains(&letter) {
                vocab.push(letter);
            }
        }
        let tokenizer = tokenizer(&vocab);
        let guides = Guides::new(&tokenizer, vocab.len(), &[end]).unwrap();
        let mut guide = guides.guide(&GuideSpec::Choice(strings(&facts["choices"]))).unwrap();
        for letter in so_far.chars().map(String::from) {
            guide.advance(vocab.iter().position(|word| *word == letter).unwrap() as u32).unwrap();
        }
        let mut mask = TokenMask::none(vocab.len());
        guide.mask(&mut mask).unwrap();
        (0..=end).filter(|id| mask.allows(*id)).map(|id| id as usize).collect()
    });
}

/// The letters that byte-level tokenizers write bytes as: those that can be shown stand for themselves, the others for
/// what comes behind all bytes.
fn byte_letters() -> Vec<String> {
    let shown = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255).filter(|byte| !shown(byte)).count() as u32;
    let letters = (0..=255).filter(shown).chain(256..256 + others);
    letters.map(|letter| char::from_u32(letter).unwrap().to_string()).collect()
}

/// A tokenizer with these words.
fn tokenizer(words: &[String]) -> Tokenizer {
    let vocab: serde_json::Map<String, Value> =
        words.iter().enumerate().map(|(id, word)| (word.clone(), json!(id))).collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokenizer.json");
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let written = json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": null,
        "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    std::fs::write(&file, written.to_string()).unwrap();
    Tokenizer::from_file(&file).unwrap()
}

/// Judge one draft: rows of the model's and of the draft's probabilities of token 0 (in hundredths) among two; none of
/// the draft's where it was certain.
fn verdicts(
    sampler: &mut Sampler,
    p: &[usize],
    q: Option<&[usize]>,
    keys: &[DrawKey],
) -> Vec<usize> {
    let rows = |of: &[usize]| {
        let both: Vec<f32> = of.iter().flat_map(|p| logits(&[*p, 100 - p])).collect();
        (both, of.len())
    };
    // The row behind the draft is as the last one: what comes there is not asked.
    let (mut model, k) = rows(p);
    model.extend_from_within(2 * k - 2..);
    let model = Tensor::from_slice(&model.repeat(keys.len()), &[keys.len() * (k + 1), 2]).unwrap();
    let draft = q.map(|q| Tensor::from_slice(&rows(q).0, &[k, 2]).unwrap());
    let (params, history) = (SamplingParams::default(), History::default());
    let tokens = vec![0; k];
    let proposals: Vec<Proposal<'_>> = keys
        .iter()
        .map(|key| Proposal {
            tokens: &tokens,
            draft: draft.as_ref().map_or(Draft::Certain, |draft| Draft::Logits(draft.view())),
            row: Row { params: &params, history: &history, ends: &[], mask: None, key: *key },
            masks: &[],
        })
        .collect();
    let mut out = Vec::new();
    sampler.verify(model.view(), &proposals, &mut out).unwrap();
    out.into_iter().map(|verdict| verdict.unwrap().accepted).collect()
}

#[test]
fn as_much_of_a_draft_stands_as_said() {
    let sampler = RefCell::new(Sampler::new(&runtime(), 2));
    agree(("l4", "drafts-accepted"), 100, number, |facts| {
        let rows: Vec<Vec<usize>> = facts["rows"].as_array().unwrap().iter().map(numbers).collect();
        let column = |i: usize| rows.iter().map(|row| row[i]).collect::<Vec<_>>();
        // A request whose numbers are nearly the question's, which are not near to any limit.
        let wanted = column(2);
        let near = |key: &DrawKey| {
            (0..).zip(&wanted).all(|(i, u)| {
                (key.ahead(i).uniform(Purpose::Accept) - *u as f64 / 100.0).abs() < 0.055
            })
        };
        let key = (0..1_000_000).map(key).find(near).unwrap();
        let q = column(1);
        let q = (facts["certain"] != true).then_some(&q[..]);
        verdicts(&mut sampler.borrow_mut(), &column(0), q, &[key])[0]
    });
}

#[test]
fn a_rejected_token_is_replaced_as_said() {
    agree(("l4", "residual-share"), 200, exactly, |facts| {
        let [p, q] = ["p", "q"].map(|name| numbers(&facts[name]));
        let [from, other] = [&p, &q].map(|shares| {
            let shares = shares.iter().map(|share| *share as f32);
            Distribution::from_shares(&(0..).zip(shares).collect::<Vec<_>>()).unwrap()
        });
        // All numbers there are, in equal steps of which every share is a whole number.
        let n = 50 * p.iter().zip(&q).map(|(p, q)| p.saturating_sub(*q)).sum::<usize>();
        let asked = number(&facts["asked"]) as u32;
        let drawn = (0..n).filter(|i| {
            let u = (*i as f64 + 0.5) / n as f64;
            from.draw_residual(&other, u) == asked
        });
        About(drawn.count() as f64 / n as f64, 1e-9)
    });
}

#[test]
fn drafts_bring_as_much_on_average_as_said() {
    const DRAFTS: usize = 2_000;
    let sampler = RefCell::new(Sampler::new(&runtime(), 2));
    agree(("l4", "expected-tokens"), 20, exactly, |facts| {
        let p = vec![number(&facts["percent"]); number(&facts["k"])];
        let keys: Vec<DrawKey> = (0..DRAFTS as u64).map(key).collect();
        let accepted = verdicts(&mut sampler.borrow_mut(), &p, None, &keys);
        let brought: Vec<f64> = accepted.iter().map(|n| (n + 1) as f64).collect();
        let n = DRAFTS as f64;
        let mean = brought.iter().sum::<f64>() / n;
        let variance = brought.iter().map(|b| (b - mean).powi(2)).sum::<f64>() / n;
        // Four standard errors: one of 16,000 honest means lies farther off. The seeds are fixed.
        About(mean, 4.0 * (variance / n).sqrt())
    });
}
