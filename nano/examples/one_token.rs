//! The tiny model, step by step: `cargo run -p nano --example one_token -- attention`.
//!
//! The chapter "One token, end to end" shows what this prints.

use nano::attention::attend;
use nano::generate::{generate, generate_without_cache};
use nano::model::add;
use nano::ops::{rms_norm, rope, softmax};
use nano::toy::Toy;
use nano::{Engine, KvMemory, Request};

const PROMPT: &str = "the cat sat on the";

fn main() {
    let toy = Toy::load();
    match std::env::args().nth(1).as_deref() {
        Some("tokens") => tokens(&toy),
        Some("norm") => norm(&toy),
        Some("query") => query(&toy),
        Some("attention") => attention(&toy),
        Some("mlp") => mlp(&toy),
        Some("logits") => logits(&toy),
        Some("second") => second(&toy),
        Some("cache") => cache(&toy),
        Some("batch") => batch(&toy, 8),
        Some("full") => batch(&toy, 3),
        _ => println!(
            "one of: tokens, norm, query, attention, mlp, logits, second, cache, batch, full"
        ),
    }
}

/// Numbers in columns, two digits behind the point.
fn row(x: &[f32]) -> String {
    let numbers: Vec<String> = x.iter().map(|x| format!("{:6.2}", x + 0.0)).collect();
    numbers.join(" ")
}

fn prompt(toy: &Toy) -> Vec<u32> {
    toy.encode(PROMPT).expect("words of the model")
}

/// A line for each word: its token, and its row of the embedding.
fn tokens(toy: &Toy) {
    for token in prompt(toy) {
        let word = &toy.words[token as usize];
        println!("{word:5} token {token}  {}", row(toy.model.embedding.row(token as usize)));
    }
}

/// The residual stream of the last token of the prompt before layer `layer`, and the cache of all tokens.
fn before(toy: &Toy, layer: usize) -> (Vec<f32>, KvMemory, Vec<usize>) {
    let (model, prompt) = (&toy.model, prompt(toy));
    let mut kv = model.kv_memory(prompt.len());
    let slots: Vec<usize> = (0..prompt.len()).collect();
    for (i, token) in prompt.iter().enumerate() {
        model.forward(*token, &slots[..=i], &mut kv);
    }
    let mut x = model.embedding.row(prompt[prompt.len() - 1] as usize).to_vec();
    for earlier in 0..layer {
        let branch = model.attention(earlier, &x, &slots, &mut kv);
        add(&mut x, &branch);
        let branch = model.mlp(earlier, &x);
        add(&mut x, &branch);
    }
    (x, kv, slots)
}

/// The first norm, for the last token of the prompt.
fn norm(toy: &Toy) {
    let (x, ..) = before(toy, 0);
    let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    println!("row          {}", row(&x));
    println!("mean square  {:6.2}", mean);
    println!("root         {:6.2}", mean.sqrt());
    println!("normed row   {}", row(&rms_norm(&x, &toy.model.layers[0].attn_norm, toy.model.eps)));
}

/// Query, key and value of the last token of the prompt in the first layer.
fn query(toy: &Toy) {
    let (x, ..) = before(toy, 0);
    let (model, layer) = (&toy.model, &toy.model.layers[0]);
    let x = rms_norm(&x, &layer.attn_norm, model.eps);
    let (mut q, mut k, v) = (layer.q.times(&x), layer.k.times(&x), layer.v.times(&x));
    println!("query, head 0     {}", row(&q[..2]));
    println!("query, head 1     {}", row(&q[2..]));
    println!("key               {}", row(&k));
    println!("value             {}", row(&v));
    q.chunks_exact_mut(2).chain([&mut k[..]]).for_each(|head| rope(head, 4, model.rope_theta));
    println!("rotated by 4 radians:");
    println!("query, head 0     {}", row(&q[..2]));
    println!("query, head 1     {}", row(&q[2..]));
    println!("key               {}", row(&k));
}

/// Scores and weights of the last token of the prompt, for each head of both layers.
fn attention(toy: &Toy) {
    let words: Vec<String> = PROMPT.split(' ').map(|word| format!("{word:>6}")).collect();
    for layer in 0..2 {
        let (x, kv, slots) = before(toy, layer);
        let (model, weights) = (&toy.model, &toy.model.layers[layer]);
        let x = rms_norm(&x, &weights.attn_norm, model.eps);
        let mut q = weights.q.times(&x);
        q.chunks_exact_mut(2).for_each(|head| rope(head, 4, model.rope_theta));
        let (keys, values) = kv.load(layer, &slots);
        println!("layer {layer}           {}", words.join(" "));
        for (head, q) in q.chunks_exact(2).enumerate() {
            let score = |k: &&[f32]| (q[0] * k[0] + q[1] * k[1]) / 2f32.sqrt();
            let mut scores: Vec<f32> = keys.iter().map(score).collect();
            println!("head {head}  scores   {}", row(&scores));
            softmax(&mut scores);
            println!("        weights  {}", row(&scores));
        }
        if layer == 0 {
            for i in 0..2 {
                let column: Vec<f32> = values.iter().map(|value| value[i]).collect();
                println!("values, [{i}]      {}", row(&column));
            }
            println!("output           {}", row(&attend(&q, &keys, &values, model.heads)));
        }
    }
}

/// The residual stream of the last token of the prompt, through both layers.
fn mlp(toy: &Toy) {
    let (mut x, mut kv, slots) = before(toy, 0);
    println!("embedding             {}", row(&x));
    for layer in 0..2 {
        let branch = toy.model.attention(layer, &x, &slots, &mut kv);
        add(&mut x, &branch);
        println!("layer {layer}, + attention  {}", row(&x));
        let branch = toy.model.mlp(layer, &x);
        add(&mut x, &branch);
        println!("layer {layer}, + MLP        {}", row(&x));
    }
    println!("last norm             {}", row(&rms_norm(&x, &toy.model.norm, toy.model.eps)));
}

/// The logits behind the prompt, and their softmax.
fn logits(toy: &Toy) {
    let tokens = prompt(toy);
    let mut kv = toy.model.kv_memory(tokens.len());
    let slots: Vec<usize> = (0..tokens.len()).collect();
    let mut logits = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        logits = toy.model.forward(*token, &slots[..=i], &mut kv);
    }
    let mut probabilities = logits.clone();
    softmax(&mut probabilities);
    for ((word, logit), probability) in toy.words.iter().zip(&logits).zip(&probabilities) {
        println!("{word:5} {logit:7.2} {:6.1} %", 100.0 * probability);
    }
}

/// The whole output, and the passes with and without a cache.
fn second(toy: &Toy) {
    for text in [PROMPT, "the dog"] {
        let tokens = toy.encode(text).expect("words of the model");
        let with = generate(&toy.model, &tokens, 10, &[toy.stop()]);
        let without = generate_without_cache(&toy.model, &tokens, 10, &[toy.stop()]);
        println!(
            "{text} -> {}: {} passes without a cache, {} with it",
            toy.decode(&with.tokens),
            without.passes,
            with.passes
        );
    }
}

/// What the cache holds of the first layer behind the prompt.
fn cache(toy: &Toy) {
    let (_, kv, slots) = before(toy, 0);
    println!("{} bytes a token", kv.bytes_per_slot());
    let (keys, values) = kv.load(0, &slots);
    for ((word, key), value) in PROMPT.split(' ').zip(keys).zip(values) {
        println!("{word:5} key {}   value {}", row(key), row(value));
    }
}

/// Two requests in one batch, in a pool of so many blocks of 4 tokens.
fn batch(toy: &Toy, blocks: usize) {
    let mut engine = Engine::new(toy.model.clone(), blocks, 4, 64);
    engine.stop = vec![toy.stop()];
    for (id, text) in ["the cat", "the dog"].into_iter().enumerate() {
        engine.add(Request::new(id, toy.encode(text).expect("words of the model"), 10));
    }
    for step in 1.. {
        let preemptions = engine.scheduler.preemptions;
        let (rows, ended) = engine.step();
        if rows.is_empty() {
            break;
        }
        let mut all: Vec<&Request> = engine.scheduler.running.iter().chain(&ended).collect();
        all.sort_by_key(|request| request.id);
        let tokens: usize = rows.iter().map(|row| row.tokens).sum();
        let free = engine.scheduler.pool.num_free();
        let preempted =
            if engine.scheduler.preemptions > preemptions { ", preempted 1" } else { "" };
        println!("step {step}: tokens {tokens}, free blocks {free}{preempted}");
        for request in all {
            println!("  {}", toy.decode(&request.tokens));
        }
    }
}
