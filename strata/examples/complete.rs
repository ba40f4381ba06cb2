//! A model in thirty lines: find it, load it, let it go on with a sentence.
//!
//! ```text
//! cargo run --release -p strata --example complete -- "The sea was calm and"
//! ```

use std::io::{Write, stdout};

use l1_tensor::{Runtime, RuntimeOptions};
use l2_model::{GenerateOptions, Model, Session, generate::generate};
use strata::hub::{Options, resolve};

fn main() -> anyhow::Result<()> {
    let text = std::env::args().nth(1).unwrap_or_else(|| "The sea was calm and".into());

    // The best device and precision of this machine, all its cores, and the default model.
    let rt = Runtime::new(RuntimeOptions::default())?;
    let source = resolve("smollm2", &Options::from_env())?;
    let model = Model::load(source.path(), &rt)?;

    let prompt = model.tokenizer.encode(&text, true)?;
    let mut session = Session::new(&model.decoder, &rt, prompt.len() + 40)?;
    let options =
        GenerateOptions { max_tokens: 40, stop_tokens: &model.stop_tokens, ignore_eos: false };

    // A token may be half a character: the detokenizer holds it back until the other half is there.
    let mut words = model.tokenizer.detokenizer(true);
    let mut out = stdout().lock();
    write!(out, "{text}")?;
    generate(&mut session, &prompt, &options, |token| {
        let shown = words.push(token).map(|text| write!(out, "{text}").and_then(|()| out.flush()));
        matches!(shown, Ok(Ok(())))
    })?;
    writeln!(out, "{}", words.finish())?;
    Ok(())
}
