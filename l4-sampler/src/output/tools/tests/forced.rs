//! Answers that are made to call: whatever a model says within the guide is read as calls that keep to the schemas.

use crate::TokenMask;
use crate::guide::Guides;
use boon::{Compiler, Schemas};
use l2_model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::super::{ToolChoice, ToolDefinition, ToolFormat, ToolParser, guide};
use crate::output::event::OutputEvent;

/// Arguments whose schema refers to a definition of its own.
fn weather() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": {"$ref": "#/$defs/city"},
            "unit": {"enum": ["C", "F", "\"K\n"]},
            "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 14}, "maxItems": 3},
        },
        "required": ["city", "unit", "days"],
        "$defs": {"city": {"type": "string", "pattern": "^[a-zé]{1,8}$"}},
    })
}

fn tools(weather: &Value) -> [ToolDefinition<'_>; 2] {
    let weather = ToolDefinition { name: "get_weather", parameters: Some(weather) };
    [weather, ToolDefinition { name: "now", parameters: None }]
}

/// The calls of an answer that is drawn at random among those a guide allows.
fn forced(
    format: ToolFormat,
    choice: &ToolChoice,
    parallel: bool,
    seed: u64,
) -> Vec<(String, Value)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-qwen3/tokenizer.json");
    let tokenizer = Tokenizer::from_file(path).unwrap();
    let vocab = tokenizer.vocab_size();
    let end = (0..vocab as u32).find(|&id| tokenizer.is_special(id)).unwrap();
    let guides = Guides::new(&tokenizer, vocab, &[end]).unwrap();
    let spec = guide(format, &tools(&weather()), choice, parallel, true).unwrap().unwrap();
    let mut guide = guides.guide(&spec).unwrap();

    let mut parser = ToolParser::new(format, &tools(&weather()), choice);
    let mut events = Vec::new();
    let mut bytes = Vec::new();
    let mut mask = TokenMask::default();
    // Seeds that lie side by side must not begin alike.
    let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    loop {
        guide.mask(&mut mask).unwrap();
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Where it may end it does so every other time.
        let allowed: Vec<u32> = (0..vocab as u32).filter(|&id| mask.allows(id)).collect();
        let token = match (allowed.contains(&end), dice >> 63) {
            (true, 1) => end,
            _ => allowed[(dice >> 33) as usize % allowed.len()],
        };
        if token == end {
            break;
        }
        guide.advance(token).unwrap();
        bytes.extend_from_slice(tokenizer.token_bytes(token).unwrap_or_default());
        if let Ok(text) = std::str::from_utf8(&bytes) {
            parser.push(text, &mut events);
            bytes.clear();
        }
    }
    parser.finish(&mut events);

    let mut calls: Vec<(String, String)> = Vec::new();
    for event in events {
        match event {
            OutputEvent::Text(text) => panic!("text beside calls: {text:?}"),
            OutputEvent::ToolCallStart { name, .. } => calls.push((name, String::new())),
            OutputEvent::ToolCallArguments { index, arguments } => {
                calls[index].1.push_str(&arguments)
            }
            other => panic!("a tool parser gave {other:?}"),
        }
    }
    calls.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect()
}

fn assert_follows(name: &str, arguments: &Value) {
    let declared = ["city", "unit", "days"];
    let names: Vec<&String> = arguments.as_object().unwrap().keys().collect();
    assert!(names.iter().all(|name| declared.contains(&name.as_str())), "{arguments}");
    let weather = weather();
    let tools = tools(&weather);
    let tool = tools.iter().find(|tool| tool.name == name).unwrap();
    let Some(schema) = tool.parameters.cloned() else {
        assert_eq!(*arguments, json!({}), "{name} takes no arguments");
        return;
    };
    let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
    compiler.add_resource("tool.json", schema).unwrap();
    let schema = compiler.compile("tool.json", &mut schemas).unwrap();
    schemas.validate(arguments, schema).unwrap_or_else(|e| panic!("{e}: {arguments}"));
}

const FORMATS: [ToolFormat; 3] = [ToolFormat::Hermes, ToolFormat::Llama3Json, ToolFormat::None];

#[test]
fn required_calls_are_read_back_and_keep_to_their_schemas() {
    for format in FORMATS {
        let (mut names, mut most) = (Vec::new(), 0);
        for seed in 0..12 {
            let calls = forced(format, &ToolChoice::Required, true, seed);
            assert!(!calls.is_empty(), "{format:?}, seed {seed}");
            calls.iter().for_each(|(name, arguments)| assert_follows(name, arguments));
            most = most.max(calls.len());
            names.extend(calls.into_iter().map(|(name, _)| name));
        }
        assert!(most > 1, "{format:?}: several calls may come");
        for name in ["get_weather", "now"] {
            assert!(names.iter().any(|called| called == name), "{format:?}: {name} may be called");
        }
    }
}

#[test]
fn one_call_comes_where_they_may_not_be_parallel_or_one_is_named() {
    let named = ToolChoice::Named("get_weather".into());
    for format in FORMATS {
        for seed in 0..6 {
            let calls = forced(format, &ToolChoice::Required, false, seed);
            assert_eq!(calls.len(), 1, "{format:?}, seed {seed}");
            let calls = forced(format, &named, true, seed);
            assert!(matches!(&calls[..], [(name, _)] if name == "get_weather"), "{calls:?}");
            assert_follows("get_weather", &calls[0].1);
        }
    }
}

#[test]
fn a_choice_that_forces_nothing_has_no_guide() {
    for format in [ToolFormat::Hermes, ToolFormat::Llama3Json] {
        for free in [ToolChoice::Auto, ToolChoice::None] {
            assert_eq!(guide(format, &tools(&weather()), &free, true, true), Ok(None));
            assert_eq!(guide(format, &[], &free, true, true), Ok(None));
        }
    }
    assert_eq!(
        guide(ToolFormat::None, &tools(&weather()), &ToolChoice::None, true, true),
        Ok(None)
    );
    assert_eq!(guide(ToolFormat::None, &[], &ToolChoice::Auto, true, true), Ok(None));
}

#[test]
fn what_cannot_be_called_is_refused_by_path() {
    let refusal = |format, tools: &[ToolDefinition<'_>], choice: ToolChoice| {
        let error = guide(format, tools, &choice, true, true).unwrap_err();
        assert_eq!(error.unsupported, format == ToolFormat::None, "{error}");
        error.param
    };
    let hermes = ToolFormat::Hermes;
    let empty = json!({});
    let one = [ToolDefinition { name: "f", parameters: Some(&empty) }];
    let named = ToolChoice::Named("g".into());
    assert_eq!(refusal(hermes, &one, named), "tool_choice.function.name");
    assert_eq!(refusal(hermes, &[], ToolChoice::Required), "tool_choice");
    assert_eq!(refusal(ToolFormat::None, &one, ToolChoice::Auto), "tools");
    for (name, parameters, path) in [
        ("f", json!([]), "tools[0].function.parameters"),
        ("f", json!({"type": "array"}), "tools[0].function.parameters.type"),
        ("", json!({}), "tools[0].function.name"),
    ] {
        let tools = [ToolDefinition { name, parameters: Some(&parameters) }];
        assert_eq!(refusal(hermes, &tools, ToolChoice::Required), path);
    }
}
