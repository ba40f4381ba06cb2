//! What a guide allows, step by step, to a model without any taste: every allowed token is as good as any other.
//!
//! ```text
//! cargo run -p l4-sampler --example guided -- fixtures/tiny-llama/tokenizer.json --regex '[a-z]+@[a-z]+\.(com|org)'
//! cargo run -p l4-sampler --example guided -- fixtures/tiny-llama/tokenizer.json --schema person.json 7
//! ```
//!
//! Behind `--schema` and `--grammar` stands a file, behind `--regex` an expression, behind `--choice` texts with commas
//! between them. The last argument is a seed.

use std::time::Instant;

use l2_model::tokenizer::Tokenizer;
use l4_sampler::guide::{GuideSpec, Guides};
use l4_sampler::{DrawKey, Purpose, TokenMask};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str =
    "guided TOKENIZER (--schema FILE | --regex R | --grammar FILE | --choice A,B | --json) [SEED]";

/// Tokens after which an answer is left unfinished.
const ROOM: u32 = 60;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let tokenizer = Tokenizer::from_file(args.next().ok_or(USAGE)?)?;
    let spec = match args.next().ok_or(USAGE)?.as_str() {
        "--json" => GuideSpec::Json,
        kind => spec(kind, &args.next().ok_or(USAGE)?)?,
    };
    let seed = args.next().map_or(Ok(1), |seed| seed.parse())?;

    let vocab = tokenizer.vocab_size();
    let ends: Vec<u32> = (0..vocab as u32).filter(|&id| tokenizer.is_special(id)).collect();
    let begun = Instant::now();
    let guides = Guides::new(&tokenizer, vocab, &ends)?;
    println!("{vocab} tokens as a trie      {:>9.1?}", begun.elapsed());
    let begun = Instant::now();
    let mut guide = guides.guide(&spec)?;
    println!("the {:<20} {:>9.1?}\n", spec.kind(), begun.elapsed());

    let mut mask = TokenMask::none(vocab);
    let mut answer = Vec::new();
    for position in 0..ROOM {
        let forced = guide.forced();
        let begun = Instant::now();
        guide.mask(&mut mask)?;
        let took = begun.elapsed();
        let allowed: Vec<u32> = (0..vocab as u32).filter(|&id| mask.allows(id)).collect();
        let u = DrawKey { seed, sample: 0, position }.uniform(Purpose::Draw);
        let token = allowed[(u * allowed.len() as f64) as usize];
        guide.advance(token)?;
        let text = String::from_utf8_lossy(tokenizer.token_bytes(token)?).into_owned();
        let why = if forced.is_empty() { "" } else { "  (forced)" };
        println!("{took:>9.1?}  {:>6} allowed  {text:?}{why}", allowed.len());
        if ends.contains(&token) {
            println!("\n{}", tokenizer.decode(&answer, false)?);
            return Ok(());
        }
        answer.push(token);
    }
    println!("\n{} ... and no end yet", tokenizer.decode(&answer, false)?);
    Ok(())
}

fn spec(kind: &str, what: &str) -> Result<GuideSpec> {
    Ok(match kind {
        "--schema" => GuideSpec::JsonSchema(serde_json::from_str(&std::fs::read_to_string(what)?)?),
        "--grammar" => GuideSpec::Lark(std::fs::read_to_string(what)?),
        "--regex" => GuideSpec::Regex(what.to_owned()),
        "--choice" => GuideSpec::Choice(what.split(',').map(str::to_owned).collect()),
        _ => return Err(USAGE.into()),
    })
}
