//! What a row of logits becomes on its way to a token:
//! `cargo run -p l4-sampler --example draw`.
//!
//! No model is needed: eight words, and logits that one could have given them after "The cat sat on
//! the". Each line has one stage more than the one before.

use l1_tensor::{Runtime, RuntimeOptions};
use l4_sampler::{DrawKey, History, Purpose, Result, Row, Sampler, SamplingParams};

const WORDS: [&str; 8] = ["mat", "sofa", "floor", "bed", "cat", "roof", "moon", "the"];
const LOGITS: [f32; 8] = [4.0, 3.2, 3.0, 2.9, 2.5, 2.0, 1.0, 0.2];

fn main() -> Result<()> {
    let rt = Runtime::new(RuntimeOptions { threads: Some(1), ..RuntimeOptions::default() })?;
    let mut sampler = Sampler::new(&rt, WORDS.len());
    // The prompt holds "the" and "cat", and the answer has begun with "sofa".
    let mut history = History::new(&[7, 4], 1);
    history.push(1);

    let mut params = SamplingParams::default();
    println!("{:<24}{}", "", WORDS.map(|word| format!("{word:>7}")).concat());
    show(&mut sampler, "softmax", &params, &history)?;
    params.banned_tokens = vec![6];
    show(&mut sampler, "ban `moon`", &params, &history)?;
    params.repetition_penalty = 1.3;
    show(&mut sampler, "repetition penalty 1.3", &params, &history)?;
    params.frequency_penalty = 0.5;
    show(&mut sampler, "frequency penalty 0.5", &params, &history)?;
    params.temperature = 0.7;
    show(&mut sampler, "temperature 0.7", &params, &history)?;
    params.top_k = 6;
    show(&mut sampler, "top-k 6", &params, &history)?;
    params.top_p = 0.9;
    show(&mut sampler, "top-p 0.9", &params, &history)?;
    params.min_p = 0.15;
    show(&mut sampler, "min-p 0.15", &params, &history)?;

    // The same numbers come up whoever asks, and in whatever order: they are looked up by their place.
    for seed in [1, 2] {
        print!("seed {seed}, positions 6 to 13:");
        for position in 6..14 {
            let key = DrawKey { seed, sample: 0, position };
            let left = sampler.distribution(&LOGITS, &row(&params, &history, key))?;
            print!(" {}", WORDS[left.draw(key.uniform(Purpose::Draw)) as usize]);
        }
        println!();
    }
    Ok(())
}

fn row<'a>(params: &'a SamplingParams, history: &'a History, key: DrawKey) -> Row<'a> {
    Row { params, history, ends: &[], mask: None, key }
}

/// What is left after these stages, in percent.
fn show(
    sampler: &mut Sampler,
    stage: &str,
    params: &SamplingParams,
    history: &History,
) -> Result<()> {
    let key = DrawKey { seed: 0, sample: 0, position: 0 };
    let left = sampler.distribution(&LOGITS, &row(params, history, key))?;
    let cell = |token: usize| match left.prob(token as u32) {
        0.0 => format!("{:>7}", "-"),
        p => format!("{:>6.1}%", 100.0 * p),
    };
    println!("{stage:<24}{}", (0..WORDS.len()).map(cell).collect::<String>());
    Ok(())
}
