//! Continue a text: `cargo run --release -p l2-model --example continue -- MODEL "The sea"`.
//!
//! `MODEL` is a Hugging Face directory or a GGUF file.

use std::io::Write;
use std::path::Path;

use l1_tensor::{Runtime, RuntimeOptions};
use l2_model::{GenerateOptions, Model, Session, generate::generate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: continue MODEL PROMPT".into());
    };
    let rt = Runtime::new(RuntimeOptions::default())?;
    let model = Model::load(Path::new(&path), &rt)?;
    let prompt = model.tokenizer.encode(&prompt, true)?;

    let max_tokens = 64;
    let mut session = Session::new(&model.decoder, &rt, prompt.len() + max_tokens)?;
    let options =
        GenerateOptions { max_tokens, stop_tokens: &model.stop_tokens, ignore_eos: false };
    let mut text = model.tokenizer.detokenizer(true);
    let result = generate(&mut session, &prompt, &options, |token| {
        // Incomplete UTF-8 is held back until it is complete.
        let piece = text.push(token).unwrap_or_default();
        print!("{piece}");
        std::io::stdout().flush().is_ok()
    })?;
    println!("{}", text.finish());
    let per_second = result.tokens.len() as f64 / result.decode.as_secs_f64();
    eprintln!(
        "{} prompt tokens in {:?}, then {per_second:.0} tokens/s",
        prompt.len(),
        result.prefill
    );
    Ok(())
}
