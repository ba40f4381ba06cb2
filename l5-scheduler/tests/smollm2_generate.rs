//! SmolLM2-135M-Instruct: answers in the shape of three schemas as they are in use, and greedy tokens that are those of
//! the model's layer.
//!
//! These tests need the model's file: `cargo x test --full` fetches it and names it in `STRATA_SMOLLM2`. Without that
//! variable they say so and pass.

#[path = "../../l2-model/tests/support/smollm2.rs"]
mod real;
#[path = "../../l1-tensor/tests/support/runtime.rs"]
mod runtime;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use boon::{Compiler, Schemas};
use l1_tensor::{Precision, Runtime};
use l2_model::chat_template::Message;
use l2_model::generate::generate;
use l2_model::tokenizer::Tokenizer;
use l2_model::{Decoder, GenerateOptions, ModelFiles, Session, chat_template};
use l4_sampler::guide::{Guide, GuideSpec, Guides};
use l4_sampler::stop::StopRules;
use l4_sampler::{SamplingParams, TokenMask};
use l5_scheduler::engine::{EngineModel, EngineOptions, Startup};
use l5_scheduler::generate::{Choice, GenerateRequest, Generator};
use l5_scheduler::{EngineRequest, FinishReason};
use runtime::runtime;
use serde_json::{Map, Value};

/// What is asked, and the schema of the answer.
const ASKED: [(&str, &str); 3] = [
    ("geojson-point", "Where is the Eiffel tower? Answer with a GeoJSON point."),
    (
        "tool-call",
        "You may call get_weather(city, unit, days) or search(query, exact). What will the weather be in Oslo?",
    ),
    (
        "calendar-event",
        "Make a calendar event of this: Ada and Grace meet on 3 May 2026 at 2 pm in room 12 to plan the launch.",
    ),
];

const MAX_LEN: usize = 700;

/// Strings are bounded in all of the schemas, so most answers are much shorter.
const MAX_TOKENS: usize = 400;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

fn schema(name: &str) -> Value {
    let text = std::fs::read(fixture(&format!("schemas/{name}.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

struct SmolLm2 {
    rt: Runtime,
    decoder: Arc<Decoder>,
    tokenizer: Tokenizer,
    ends: Vec<u32>,
}

impl SmolLm2 {
    fn load(path: &Path) -> Self {
        let rt = runtime(Precision::Bf16, 2);
        let files = ModelFiles::open(path).unwrap();
        let (decoder, tokenizer) = files.decoder_and_tokenizer(&rt);
        let (decoder, tokenizer) = (decoder.unwrap(), tokenizer.unwrap());
        Self { rt, decoder: Arc::new(decoder), tokenizer, ends: files.stop_tokens().to_vec() }
    }

    fn generator(&self, choices: usize) -> Generator {
        let model = EngineModel {
            rt: self.rt.clone(),
            decoder: Arc::clone(&self.decoder),
            tokenizer: Some(self.tokenizer.clone()),
            stop_tokens: self.ends.clone(),
            digest: None,
            startup: Startup::default(),
        };
        let options = EngineOptions {
            max_num_seqs: choices,
            max_model_len: Some(MAX_LEN),
            ..EngineOptions::default()
        };
        Generator::open(model, &options).unwrap()
    }

    fn asked(&self, text: &str) -> Vec<u32> {
        let template = chat_template(&self.tokenizer).unwrap().unwrap();
        let rendered = template.render(&[Message::new("user", text)], true, &Map::new()).unwrap();
        self.tokenizer.encode(&rendered, false).unwrap()
    }
}

/// Whether an answer is what its schema describes, by another program's judgement.
fn check(name: &str, schema: &Value, choice: &Choice) {
    let value: Value = serde_json::from_str(&choice.text)
        .unwrap_or_else(|e| panic!("{name}: {e} in {:?} ({:?})", choice.text, choice.stop));
    let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
    compiler.enable_format_assertions();
    compiler.add_resource("schema.json", without_multiple_of(schema)).unwrap();
    let index = compiler.compile("schema.json", &mut schemas).unwrap();
    if let Err(why) = schemas.validate(&value, index) {
        panic!("{name}: {why:#} in {}", choice.text);
    }
    if let Some(numbers) = value["coordinates"].as_array() {
        let millionths = numbers.iter().map(|n| n.as_f64().unwrap() * 1e6);
        assert!(millionths.into_iter().all(|x| (x - x.round()).abs() < 1e-3), "{}", choice.text);
    }
}

/// A schema without what boon decides by a division in f64, where 0.3 is no multiple of 0.1.
fn without_multiple_of(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| *key != "multipleOf");
            kept.map(|(key, value)| (key.clone(), without_multiple_of(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_multiple_of).collect(),
        other => other.clone(),
    }
}

/// Whether an answer is the beginning of one: its guide takes it, and knows how to go on.
fn check_beginning(name: &str, guide: &Guide, choice: &Choice) {
    let (mut guide, mut mask) = (guide.clone(), TokenMask::default());
    for token in &choice.tokens {
        guide.advance(*token).unwrap_or_else(|e| panic!("{name}: {e} in {}", choice.text));
    }
    guide.mask(&mut mask).unwrap();
    assert!(mask.count() > 0, "{name}: nothing can follow {}", choice.text);
}

#[test]
fn answers_are_what_three_real_schemas_describe() {
    let Some(path) = real::file() else { return };
    let smollm2 = SmolLm2::load(&path);
    let vocab = smollm2.decoder.config().vocab;
    let guides = Guides::new(&smollm2.tokenizer, vocab, &smollm2.ends).unwrap();
    let stop =
        StopRules { eos: smollm2.ends.clone(), max_tokens: MAX_TOKENS, ..StopRules::default() };
    let mut generator = smollm2.generator(4);
    for (name, question) in ASKED {
        let schema = schema(name);
        let guide = guides.guide(&GuideSpec::JsonSchema(schema.clone())).unwrap();
        let prompt = smollm2.asked(question);
        let mut whole = 0;
        let greedy = SamplingParams::greedy();
        let warm = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
        for (params, n, seed) in [(&greedy, 1, 0), (&warm, 4, 1), (&warm, 4, 2)] {
            let plain = EngineRequest::new(prompt.clone(), params.clone(), stop.clone());
            let spec = GuideSpec::JsonSchema(schema.clone());
            let request = EngineRequest { seed, guide: Some(spec.into()), ..plain };
            let request = GenerateRequest { n, ..request.into() };
            let generation = generator.run(&request, |_, _| true).unwrap();
            for choice in &generation.choices {
                let t = params.temperature;
                println!("{name}, temperature {t}, seed {seed}: {}", choice.text);
                // The fraction of a second has no longest form: a model at a temperature may write digits until it is
                // stopped.
                if choice.finish == FinishReason::Length {
                    check_beginning(name, &guide, choice);
                } else {
                    check(name, &schema, choice);
                    whole += 1;
                }
            }
            let longest =
                generation.choices.iter().map(|choice| choice.tokens.len()).max().unwrap();
            let steps = generation.work.steps;
            assert!(
                steps + 5 <= longest,
                "{name}: {steps} steps for {longest} tokens: some are forced"
            );
        }
        assert!(whole >= 6, "{name}: {whole} of 9 answers came to an end");
    }
}

#[test]
fn greedy_tokens_of_the_engine_are_those_of_the_models_own_loop() {
    let Some(path) = real::file() else { return };
    let smollm2 = SmolLm2::load(&path);
    let decoder = &smollm2.decoder;
    let options = GenerateOptions { max_tokens: 32, ignore_eos: true, ..Default::default() };
    let stop = StopRules { max_tokens: 32, ignore_eos: true, ..StopRules::default() };
    let params = SamplingParams::greedy();
    let mut generator = smollm2.generator(1);
    for text in ["The capital of France is", "fn main() {", "Once upon a time", "1, 1, 2, 3, 5,"] {
        let prompt = smollm2.tokenizer.encode(text, true).unwrap();
        let mut session = Session::new(decoder, &smollm2.rt, MAX_LEN).unwrap();
        let expected = generate(&mut session, &prompt, &options, |_| true).unwrap().tokens;
        let request = EngineRequest::new(prompt, params.clone(), stop.clone());
        let request = EngineRequest { continues: true, ..request };
        let got = generator.run(&request.into(), |_, _| true).unwrap().choices.remove(0);
        assert_eq!(got.tokens, expected, "greedy tokens after {text:?}");
    }
}
