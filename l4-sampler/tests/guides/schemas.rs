//! Ten thousand answers of a tiny model under five hundred random schemas. Every finished one parses and is valid by
//! another program's judgement; every one that ran out of room can still be finished.

use boon::{Compiler, SchemaIndex, Schemas};
use l1_tensor::{Device, DeviceRequest, Precision, PrecisionRequest, Runtime, RuntimeOptions};
use l2_model::{
    Batch, ContiguousState, Decoder, ModelFiles, Workspace, WorkspaceSpec, open_tokenizer,
};
use l4_sampler::guide::{Guide, GuideSpec, Guides};
use l4_sampler::{DrawKey, History, Logits, Row, Sampled, Sampler, SamplingParams, TokenMask};
use serde_json::{Map, Value, json};

use crate::support::{Dice, accepts, fixtures, llama, schema};

const NAMES: [&str; 8] = ["id", "name", "a b", "é", "kind", "x\"y", "value", "tags"];

/// A schema without unbounded parts, so that most answers come to an end.
fn random_schema(dice: &mut Dice, depth: usize) -> Value {
    match dice.below(if depth == 0 { 7 } else { 10 }) {
        0 => json!({"type": "boolean"}),
        1 => {
            let low = dice.below(400) as i64 - 200;
            json!({"type": "integer", "minimum": low, "maximum": low + dice.below(300) as i64})
        }
        2 => {
            let low = dice.below(80) as f64 / 4.0 - 10.0;
            let high = low + 0.5 + dice.below(40) as f64 / 8.0;
            json!({"type": "number", "minimum": low, "exclusiveMaximum": high})
        }
        3 => {
            let low = dice.below(3);
            json!({"type": "string", "minLength": low, "maxLength": low + dice.below(6)})
        }
        4 => {
            let values =
                [json!("red"), json!("re"), json!(7), json!(null), json!([1, "x"]), json!("\n\"")];
            let from = dice.below(values.len());
            let to = from + 1 + dice.below(values.len() - from);
            json!({"enum": values[from..to]})
        }
        5 => json!({"const": *dice.pick(&["x", "true", "a\\b"])}),
        6 => json!({"type": ["null", "boolean"]}),
        7 => {
            let low = dice.below(2);
            json!({
                "type": "array",
                "items": random_schema(dice, depth - 1),
                "minItems": low,
                "maxItems": low + dice.below(3),
            })
        }
        8 => {
            let options: Vec<Value> =
                (0..1 + dice.below(3)).map(|_| random_schema(dice, depth - 1)).collect();
            json!({"anyOf": options})
        }
        _ => {
            let mut properties = Map::new();
            let mut required = Vec::new();
            for _ in 0..1 + dice.below(4) {
                let name = *dice.pick(&NAMES);
                if !properties.contains_key(name) {
                    properties.insert(name.into(), random_schema(dice, depth - 1));
                    if dice.chance(60) {
                        required.push(name);
                    }
                }
            }
            json!({
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": false,
            })
        }
    }
}

/// Whether a number is bounded by an excluded, negative, whole number: llguidance 1.9 lets `-5` pass as below -5.0 where
/// the lower bound is above -6.
fn has_negative_open_bound(schema: &Value) -> bool {
    match schema {
        Value::Array(all) => all.iter().any(has_negative_open_bound),
        Value::Object(map) => {
            let bound = map.get("exclusiveMaximum").and_then(Value::as_f64);
            bound.is_some_and(|x| x < 0.0 && x.fract() == 0.0)
                || map.values().any(has_negative_open_bound)
        }
        _ => false,
    }
}

/// The same without a word about further properties, as people and Pydantic write it: in parts, behind references, beside
/// titles and defaults.
fn as_written(schema: &Value, dice: &mut Dice, definitions: &mut Map<String, Value>) -> Value {
    let mut written = match schema {
        Value::Object(map) => {
            let mut written = Map::new();
            for (key, value) in map {
                let value = match (key.as_str(), value) {
                    ("additionalProperties", _) => continue,
                    ("properties", Value::Object(all)) => {
                        let one = |(name, schema): (&String, &Value)| {
                            (name.clone(), as_written(schema, dice, definitions))
                        };
                        all.iter().map(one).collect()
                    }
                    ("anyOf", Value::Array(all)) => {
                        all.iter().map(|one| as_written(one, dice, definitions)).collect()
                    }
                    ("items", item) => as_written(item, dice, definitions),
                    (_, value) => value.clone(),
                };
                written.insert(key.clone(), value);
            }
            Value::Object(written)
        }
        other => other.clone(),
    };
    if written.get("properties").is_some() && dice.chance(40) {
        // In two parts, each with some of the properties.
        let all = written["properties"].as_object().unwrap().clone();
        let (mut first, mut second) = (Map::new(), Map::new());
        for (name, schema) in all {
            let part = if dice.chance(50) { &mut first } else { &mut second };
            part.insert(name, schema);
        }
        let required = written["required"].clone();
        let second = json!({"type": "object", "properties": second});
        let other = if dice.chance(50) { json!({"required": required}) } else { second.clone() };
        written = match dice.below(3) {
            0 => {
                json!({"type": "object", "properties": first, "required": required, "allOf": [second]})
            }
            1 => {
                json!({"allOf": [{"properties": first, "type": "object", "required": required}, second, other]})
            }
            _ => {
                json!({"properties": first, "anyOf": [second.clone(), second], "required": required, "type": "object"})
            }
        };
    }
    if dice.chance(30) {
        let name = format!("D{}", definitions.len());
        definitions.insert(name.clone(), written);
        let reference = json!({"$ref": format!("#/$defs/{name}")});
        written = match dice.below(3) {
            0 => reference,
            1 => json!({"allOf": [reference], "title": "T", "default": null}),
            _ => json!({"$ref": reference["$ref"], "description": "D"}),
        };
    }
    written
}

/// The schema, as another program understands it.
struct Judge {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Judge {
    fn new(schema: &Value) -> Self {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("schema.json", schema.clone()).unwrap();
        let index = compiler.compile("schema.json", &mut schemas).unwrap();
        Self { schemas, index }
    }

    #[track_caller]
    fn check(&self, text: &str, what: &str, schema: &Value) {
        let value: Value = serde_json::from_str(text)
            .unwrap_or_else(|e| panic!("{what} is no JSON ({e}): {text}\nunder {schema}"));
        if let Err(e) = self.schemas.validate(&value, self.index) {
            panic!("{what} is not valid: {text}\nunder {schema}\n{e}");
        }
    }
}

/// One answer on its way.
struct Run {
    guide: Guide,
    mask: TokenMask,
    tokens: Vec<u32>,
    last: u32,
    ended: bool,
}

struct Model {
    rt: Runtime,
    decoder: Decoder,
}

/// The most tokens of an answer.
const ROOM: usize = 40;

impl Model {
    fn new() -> Self {
        let rt = Runtime::new(RuntimeOptions {
            device: DeviceRequest::Exactly(Device::Cpu),
            precision: PrecisionRequest::Exactly(Precision::F32),
            threads: Some(2),
            ..Default::default()
        })
        .unwrap();
        let files = ModelFiles::open(&fixtures().join("tiny-llama")).unwrap();
        let decoder = files.decoder(&rt).unwrap();
        Self { rt, decoder }
    }

    /// Bring all answers to their ends, or to as many tokens as there is room for.
    fn answer(&self, runs: &mut [Run], ends: &[u32], seed: u64) {
        let n = runs.len();
        let config = self.decoder.config();
        let spec = WorkspaceSpec { max_tokens: n, max_rows: n, max_context: ROOM };
        let mut ws = Workspace::new(&self.rt, config, spec).unwrap();
        let dtype = self.rt.activation_dtype();
        let mut state = ContiguousState::new(config, n, ROOM, dtype).unwrap();
        let mut sampler = Sampler::new(&self.rt, config.vocab);
        let (params, history) = (SamplingParams::default(), History::default());
        let mut drawn = vec![Sampled::default(); n];
        for step in 0..ROOM {
            let open: Vec<usize> = (0..n).filter(|&i| !runs[i].ended).collect();
            if open.is_empty() {
                return;
            }
            let tokens: Vec<u32> = open.iter().map(|&i| runs[i].last).collect();
            let slots: Vec<u32> = open.iter().map(|&i| i as u32).collect();
            let rows: Vec<u32> = (0..open.len() as u32).collect();
            let batch = Batch {
                tokens: &tokens,
                positions: &vec![step as i32; open.len()],
                cu_seqlens_q: &(0..=open.len() as i32).collect::<Vec<_>>(),
                state_slots: &slots,
                logit_rows: &rows,
                ..Batch::default()
            };
            let logits = self.decoder.forward(&batch, &mut state, &mut ws).unwrap();
            for &i in &open {
                let Run { guide, mask, .. } = &mut runs[i];
                guide.mask(mask).unwrap();
            }
            let row = |&i: &usize| Row {
                params: &params,
                history: &history,
                ends: &[],
                mask: Some(&runs[i].mask),
                key: DrawKey { seed, sample: i as u32, position: step as u32 + 1 },
            };
            let rows: Vec<Row> = open.iter().map(row).collect();
            let drawn = &mut drawn[..open.len()];
            sampler.sample(Logits::Shared(logits), &rows, drawn).unwrap();
            for (&i, drawn) in open.iter().zip(drawn) {
                let run = &mut runs[i];
                run.last = drawn.token.unwrap();
                run.guide.advance(run.last).unwrap();
                run.ended = ends.contains(&run.last);
                if !run.ended {
                    run.tokens.push(run.last);
                }
            }
        }
    }
}

/// Finish an answer without looking into its schema: close whatever can be closed, else go on anyhow.
fn close(
    run: &mut Run,
    ends: &[u32],
    dice: &mut Dice,
    bytes: impl Fn(u32) -> Vec<u8>,
    vocab: usize,
) {
    const CLOSERS: [&[u8]; 3] = [b"\"", b"}", b"]"];
    for _ in 0..600 {
        run.guide.mask(&mut run.mask).unwrap();
        let may: Vec<u32> = (0..vocab as u32).filter(|&t| run.mask.allows(t)).collect();
        if may.iter().any(|t| ends.contains(t)) {
            return;
        }
        let closer = CLOSERS.iter().find_map(|c| may.iter().find(|&&t| bytes(t) == *c));
        let token = *closer.unwrap_or_else(|| dice.pick(&may));
        run.guide.advance(token).unwrap();
        run.tokens.push(token);
    }
    panic!("an answer that does not end: {} tokens", run.tokens.len());
}

#[test]
fn ten_thousand_answers_to_random_schemas_are_all_valid() {
    let model = Model::new();
    let tokenizer = open_tokenizer(&fixtures().join("tiny-llama")).unwrap();
    let vocab = model.decoder.config().vocab;
    let ends = ["<|eot_id|>", "<|end_of_text|>"].map(|name| tokenizer.token_id(name).unwrap());
    let guides = Guides::new(&tokenizer, vocab, &ends).unwrap();
    let text = |tokens: &[u32]| tokenizer.decode(tokens, false).unwrap();
    let mut dice = Dice::new(2024);
    let (mut finished, mut cut) = (0, 0);
    for number in 0..500 {
        let schema = random_schema(&mut dice, 3);
        let judge = Judge::new(&schema);
        let spec = GuideSpec::JsonSchema(schema.clone());
        let guide = guides.guide(&spec).unwrap_or_else(|e| panic!("{e}\n{schema}"));
        let mut runs: Vec<Run> = (0..20)
            .map(|_| Run {
                guide: guide.clone(),
                mask: TokenMask::default(),
                tokens: Vec::new(),
                last: tokenizer.bos().unwrap(),
                ended: false,
            })
            .collect();
        model.answer(&mut runs, &ends, number);
        for run in &mut runs {
            if run.ended {
                finished += 1;
                judge.check(&text(&run.tokens), "a finished answer", &schema);
            } else {
                cut += 1;
                let was = text(&run.tokens);
                let bytes = |t| tokenizer.token_bytes(t).unwrap().to_vec();
                close(run, &ends, &mut dice, bytes, vocab);
                judge.check(&text(&run.tokens), &format!("`{was}`, completed,"), &schema);
            }
        }
    }
    assert_eq!(finished + cut, 10_000, "answers");
    assert!(finished > 7_000, "only {finished} of 10000 answers came to an end");
    assert!(cut > 100, "only {cut} of 10000 answers were cut off");
}

#[test]
fn answers_to_schemas_as_people_write_them_have_no_property_that_was_not_declared() {
    let model = Model::new();
    let tokenizer = open_tokenizer(&fixtures().join("tiny-llama")).unwrap();
    let vocab = model.decoder.config().vocab;
    let ends = ["<|eot_id|>", "<|end_of_text|>"].map(|name| tokenizer.token_id(name).unwrap());
    let guides = Guides::new(&tokenizer, vocab, &ends).unwrap();
    let text = |tokens: &[u32]| tokenizer.decode(tokens, false).unwrap();
    let mut dice = Dice::new(77);
    let (mut finished, mut cut, mut objects) = (0, 0, 0);
    for number in 0..200 {
        // Every object of this one is closed; the one below says the same in a way that leaves all of them open.
        let mut schemas = std::iter::repeat_with(|| random_schema(&mut dice, 3));
        let fits = |schema: &Value| schema["type"] == "object" && !has_negative_open_bound(schema);
        let strict = schemas.find(fits).unwrap();
        let mut definitions = Map::new();
        let mut written = as_written(&strict, &mut dice, &mut definitions);
        written["$defs"] = Value::Object(definitions);
        let judges = [Judge::new(&strict), Judge::new(&written)];
        let spec = GuideSpec::ClosedJsonSchema(written.clone());
        let guide = guides.guide(&spec).unwrap_or_else(|e| panic!("{e}\n{written}"));
        let new = |_| Run {
            guide: guide.clone(),
            mask: TokenMask::default(),
            tokens: Vec::new(),
            last: tokenizer.bos().unwrap(),
            ended: false,
        };
        let mut runs: Vec<Run> = (0..10).map(new).collect();
        model.answer(&mut runs, &ends, number);
        for run in &mut runs {
            if run.ended {
                finished += 1;
            } else {
                cut += 1;
                let bytes = |t| tokenizer.token_bytes(t).unwrap().to_vec();
                close(run, &ends, &mut dice, bytes, vocab);
            }
            let text = text(&run.tokens);
            objects += usize::from(text.contains('{'));
            judges[0].check(&text, "an answer to the open schema", &strict);
            judges[1].check(&text, "an answer", &written);
        }
    }
    assert!(
        finished > 1_000 && objects == 2_000,
        "{finished} finished, {cut} cut, {objects} objects"
    );
}

#[test]
fn an_object_is_open_only_where_the_schema_says_so() {
    let world = llama();
    let open = r#"{"a":1,"b":2}"#;
    for (text, takes) in [
        (r#"{"type":"object"}"#, true),
        (r#"{"properties":{"a":{"type":"integer"}}}"#, false),
        (r#"{"properties":{"a":{"type":"integer"}},"additionalProperties":true}"#, true),
        (
            r#"{"properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"integer"}}"#,
            true,
        ),
        (
            r#"{"properties":{"a":{"type":"integer"}},"unevaluatedProperties":{"type":"integer"}}"#,
            true,
        ),
        (r#"{"properties":{"a":{"type":"integer"}},"unevaluatedProperties":false}"#, false),
        (
            r#"{"allOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}],"unevaluatedProperties":false}"#,
            true,
        ),
        (r#"{"properties":{"a":{}},"patternProperties":{"^b":{}}}"#, true),
        (r##"{"$ref":"#/$defs/A","$defs":{"A":{"properties":{"a":{}}}},"required":["b"]}"##, true),
    ] {
        let value: Value = serde_json::from_str(text).unwrap();
        let spec = GuideSpec::ClosedJsonSchema(value.clone());
        assert_eq!(accepts(world, &spec, open), takes, "{text}");
        if !text.contains("unevaluated") {
            assert!(
                accepts(world, &GuideSpec::JsonSchema(value), open),
                "{text}, as it is written"
            );
        }
    }
}

#[test]
fn json_is_compact_unless_the_schema_says_otherwise() {
    let world = llama();
    let plain = r#""type":"object","properties":{"a":{"type":"integer"},"b":{"type":"array","items":{"type":"integer"}}},
        "required":["a","b"],"additionalProperties":false"#;
    let compact = r#"{"a":1,"b":[2,3]}"#;
    let loose = "{ \"a\" : 1,\n  \"b\" : [ 2,3 ]}";
    let python = r#"{"a": 1, "b": [2, 3]}"#;
    for (options, takes) in [
        ("", [true, false, false]),
        (r#","x-guidance":{}"#, [true, false, false]),
        (r#","x-guidance":{"whitespace_flexible":true}"#, [true, true, true]),
        (r#","x-guidance":{"item_separator":", ","key_separator":": "}"#, [false, false, true]),
    ] {
        let spec = schema(&format!("{{{plain}{options}}}"));
        let got = [compact, loose, python].map(|text| accepts(world, &spec, text));
        assert_eq!(got, takes, "compact, loose and Python's spelling with `{options}`");
    }
    let got = [r#"{"a":[1,"x",null]}"#, r#"{"a": 1}"#, "[\n]"]
        .map(|text| accepts(world, &GuideSpec::Json, text));
    assert_eq!(got, [true, false, false], "any JSON is compact");
}

#[test]
fn any_json_is_any_json() {
    let world = llama();
    for text in [
        "null",
        "-0.5e+10",
        "\"\\u001f\\n é\"",
        "[]",
        "{}",
        r#"[[],{"":{"a":[true,false,null,0]}}]"#,
    ] {
        assert!(serde_json::from_str::<Value>(text).is_ok(), "`{text}` is JSON");
        assert!(accepts(world, &GuideSpec::Json, text), "`{text}`");
        assert!(accepts(world, &schema("true"), text), "`{text}` under the schema `true`");
    }
    for text in ["", "nul", "01", "[1,]", "{a:1}", "\"\n\"", "'a'", "[1}"] {
        assert!(!accepts(world, &GuideSpec::Json, text), "`{text}` is no JSON");
    }
}
