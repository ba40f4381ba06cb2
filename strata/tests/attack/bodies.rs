//! What hostile clients send as JSON. Whatever has a number of something has it written out, so that its size is plain.

use serde_json::{Value, json};

const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// A body that is written as JSON.
fn of(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// An object's fields and one more, whose value is written out.
pub fn with(fields: &str, name: &str, value: &str) -> Vec<u8> {
    [b"{", fields.as_bytes(), b", \"", name.as_bytes(), b"\": ", value.as_bytes(), b"}"].concat()
}

const COMPLETION: &str = r#""prompt": "Once upon", "max_tokens": 8"#;
const CHAT: &str = r#""messages": [{"role": "user", "content": "Go"}], "max_tokens": 8"#;
/// 128 answers of some length.
const WIDE: &str =
    r#""prompt": [5, 6, 7], "n": 128, "max_tokens": 300, "ignore_eos": true, "temperature": 1"#;

pub fn completion(name: &str, value: &str) -> Vec<u8> {
    with(COMPLETION, name, value)
}

pub fn chat(name: &str, value: &str) -> Vec<u8> {
    with(CHAT, name, value)
}

pub fn wide(name: &str, value: &str) -> Vec<u8> {
    with(WIDE, name, value)
}

/// A text of so many bytes, as JSON.
pub fn text(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes))
}

/// A list of so many of the same.
pub fn list(element: &str, count: usize) -> String {
    let mut list = format!("[{}", format!("{element},").repeat(count));
    list.pop();
    list.push(']');
    list
}

/// A list of what is different each time.
pub fn each(count: usize, element: impl Fn(usize) -> String) -> String {
    let mut list = String::from("[");
    for at in 0..count {
        if at > 0 {
            list.push(',');
        }
        list.push_str(&element(at));
    }
    list.push(']');
    list
}

/// Brackets and what is in them, so often one in another.
pub fn nested(open: &str, close: &str, depth: usize) -> String {
    format!("{}1{}", open.repeat(depth), close.repeat(depth))
}

/// A schema of some 117 KiB.
pub fn large_schema() -> String {
    let properties: serde_json::Map<String, Value> = (0..800)
        .map(|at| {
            let values: Vec<String> = (0..8).map(|n| format!("value {n} of {at}")).collect();
            (format!("p{at}"), json!({"enum": values}))
        })
        .collect();
    json!({"type": "object", "properties": properties, "required": ["p0"]}).to_string()
}

/// Token 1, spelled in so many ways as keys of `logit_bias`.
pub fn spellings(count: usize) -> String {
    let mut object = String::from("{");
    for at in 0..count {
        let sign = if at % 2 == 0 { "" } else { "+" };
        object.push_str(&format!("\"{sign}{}1\":1,", "0".repeat(at / 2)));
    }
    object.pop();
    object.push('}');
    object
}

/// So many tokens with a bias each.
pub fn biases(count: usize) -> String {
    let mut object = String::from("{");
    for at in 0..count {
        object.push_str(&format!("\"{at}\":1,"));
    }
    object.pop();
    object.push('}');
    object
}

/// An object that has the same key so often.
pub fn same_keys(count: usize) -> String {
    let mut object = format!("{{{}", "\"a\":{},".repeat(count));
    object.pop();
    object.push('}');
    object
}

/// An object of so many keys.
pub fn keys(count: usize) -> String {
    let mut object = String::from("{");
    for at in 0..count {
        object.push_str(&format!("\"k{at}\":0,"));
    }
    object.pop();
    object.push('}');
    object
}

fn tool(name: &str, description: &str) -> String {
    format!(
        r#"{{"type":"function","function":{{"name":"{name}","description":"{description}","parameters":{{"type":"object","properties":{{"a":{{"type":"integer"}}}}}}}}}}"#
    )
}

/// So many tools, each with a name of its own.
pub fn tools(count: usize) -> String {
    each(count, |at| tool(&format!("tool_{at}"), "does something"))
}

/// So many tools with one name.
pub fn same_tools(count: usize) -> String {
    list(&tool("same", "does something"), count)
}

/// One tool with a name and a description of so many bytes.
pub fn large_tool(name: usize, description: usize) -> String {
    format!("[{}]", tool(&"n".repeat(name), &"d".repeat(description)))
}

/// One tool whose parameters are a schema of this depth.
pub fn deep_tool(depth: usize) -> String {
    let schema =
        nested(r#"{"type":"array","items":"#, "}", depth).replace(":1}", r#":{"type":"integer"}}"#);
    let schema = format!(r#"{{"type":"object","properties":{{"a":{schema}}}}}"#);
    format!(
        r#"[{{"type":"function","function":{{"name":"deep","description":"d","parameters":{schema}}}}}]"#
    )
}

/// A chat with tools of which one must be called.
pub fn required(tools: &str) -> Vec<u8> {
    with(&format!(r#"{CHAT}, "tool_choice": "required""#), "tools", tools)
}

/// A chat of so many messages of one byte.
pub fn messages(count: usize) -> Vec<u8> {
    let messages = list(r#"{"role":"user","content":"x"}"#, count);
    format!(r#"{{"max_tokens": 8, "messages": {messages}}}"#).into_bytes()
}

/// A chat whose one message has so many parts.
pub fn parts(count: usize) -> Vec<u8> {
    let parts = list(r#"{"type":"text","text":"x"}"#, count);
    format!(r#"{{"max_tokens": 8, "messages": [{{"role": "user", "content": {parts}}}]}}"#)
        .into_bytes()
}

/// A prompt of so many tokens for 128 answers.
pub fn long_prompt_times_n() -> Vec<u8> {
    let prompt: Vec<usize> = (0..400).map(|at| 5 + at * 7 % 300).collect();
    of(&json!({"prompt": prompt, "n": 128, "max_tokens": 100, "ignore_eos": true}))
}

/// As many long prompts as there may be.
pub fn many_prompts() -> Vec<u8> {
    let prompt = |n: usize| (0..400).map(|at| 5 + (at * 7 + n) % 300).collect::<Vec<_>>();
    let prompts: Vec<_> = (0..128).map(prompt).collect();
    of(&json!({"prompt": prompts, "max_tokens": 50, "ignore_eos": true}))
}

/// Stops that begin alike and never come, beside as many stop tokens as there may be.
pub fn nasty_stops() -> Vec<u8> {
    let stops: Vec<String> = (0..64)
        .map(|at| format!("{}{}", "a".repeat(at % 62), char::from(b'0' + at as u8)))
        .collect();
    let tokens: Vec<usize> = (0..1024).map(|at| 300 + at % 3).collect();
    of(&json!({
        "prompt": "aaaaaaaa", "n": 128, "max_tokens": 300, "min_tokens": 299, "stop": stops,
        "stop_token_ids": tokens, "logit_bias": {"68": 50, "69": 50}, "ignore_eos": true,
    }))
}

/// 128 streams with all the log probabilities that may be asked for.
pub fn all_logprobs(stream: bool) -> Vec<u8> {
    of(&json!({
        "prompt": "Once upon", "n": 128, "max_tokens": 200, "ignore_eos": true, "logprobs": 20,
        "stream": stream, "temperature": 1, "return_token_ids": true,
    }))
}

/// A request that computes for a long time.
pub fn lengthy() -> Vec<u8> {
    of(&json!({
        "prompt": "Once upon", "n": 128, "max_tokens": 480, "ignore_eos": true, "stream": true,
        "temperature": 1,
    }))
}

/// A request with a guide, and what makes it another guide than the last.
fn guided(field: &str, value: &str) -> Vec<u8> {
    completion(field, value)
}

/// 128 answers whose every step needs a mask that is hard to compute.
pub fn hard_to_follow(salt: usize) -> Vec<Vec<u8>> {
    let wide = |field: &str, value: &Value| {
        let start = r#""prompt": [5, 6, 7], "n": 128, "max_tokens": 300, "temperature": 1"#;
        with(start, field, &value.to_string())
    };
    let choices: Vec<String> = (0..9000).map(|at| format!("{salt} choice {at} of many")).collect();
    let words: Vec<String> = (0..900).map(|at| format!("w{at}x{salt}")).collect();
    vec![
        wide("guided_regex", &json!(format!("(.*a.{{20}}){{30}}{salt}"))),
        wide("guided_choice", &json!(choices)),
        wide("guided_grammar", &json!(format!("start: X+ \"{salt}\"\nX: /.{{0,5000}}/"))),
        wide("guided_json", &json!({"type": "array", "minItems": 100, "items": {"enum": words}})),
        wide(
            "guided_json",
            &json!({"type": "array", "minItems": 50, "items": {"type": "integer", "multipleOf": 9973 - salt % 50}}),
        ),
    ]
}

/// As many requests as there are numbers, each a step of a job of its own that never says that it is over.
pub fn jobs(salt: usize) -> Vec<Vec<u8>> {
    let job = |at: usize| {
        let name = format!("{salt} {at} {}", "j".repeat(100));
        of(
            &json!({"prompt": [5, 6, at % 300], "max_tokens": 1, "job_id": name, "cache_salt": name}),
        )
    };
    (0..1600).map(job).collect()
}

/// A guide by a schema.
pub fn schema(schema: &Value) -> Vec<u8> {
    guided("guided_json", &schema.to_string())
}

/// Schemas that ask for much. `salt` makes them others than those of the last time.
pub fn schemas(salt: usize) -> Vec<Vec<u8>> {
    let chain: serde_json::Map<String, Value> = (0..3000)
        .map(|at| (format!("d{at}"), json!({"$ref": format!("#/$defs/d{}", at + 1)})))
        .chain([("d3000".to_owned(), json!({"type": "integer", "maximum": salt}))])
        .collect();
    let enumeration: Vec<String> = (0..100_000).map(|at| format!("{salt}v{at}")).collect();
    let wide: serde_json::Map<String, Value> = (0..900)
        .map(|at| {
            (format!("property{salt}x{at}"), json!({"type": "string", "pattern": "^[a-z]{1,30}$"}))
        })
        .collect();
    let mut nested = json!({"type": "integer", "maximum": salt});
    for _ in 0..40 {
        nested = json!({"anyOf": [{"type": "array", "items": nested.clone(), "minItems": 3}, {"type": "null"}]});
    }
    [
        json!({"$ref": "#/$defs/d0", "$defs": chain}),
        json!({"enum": enumeration}),
        json!({"const": "x".repeat(MIB - 100 - salt % 50)}),
        json!({"type": "object", "properties": wide}),
        json!({"type": "integer", "multipleOf": 99_991 - salt % 100}),
        json!({"type": "number", "multipleOf": 0.00001 * (1 + salt % 9) as f64}),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000 + salt}),
        json!({"type": "array", "items": {"type": "integer"}, "maxItems": 4_000_000_000_u64 - salt as u64}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "array", "maxItems": 5000 + salt}, "maxItems": 5000}, "maxItems": 5000}),
        json!({"type": "string", "minLength": 100_000 + salt}),
        json!({"type": "string", "minLength": 10, "maxLength": 3_000_000_000_u64 - salt as u64}),
        json!({"type": "object", "patternProperties": {format!("^(a|b|{salt}){{1,200}}$"): {"type": "string"}, "^.*c.*d.*e.*$": {"type": "integer"}}, "additionalProperties": {"type": "null"}}),
        json!({"type": "string", "pattern": format!("^(([a-z]{{1,50}}){{1,50}}){{1,{}}}$", 50 + salt)}),
        nested,
        json!({"allOf": (0..60).map(|at| json!({"type": "string", "pattern": format!("^.*{at}x{salt}.*$")})).collect::<Vec<_>>()}),
        json!({"oneOf": (0..300).map(|at| json!({"type": "object", "properties": {format!("a{at}"): {"type": "integer", "minimum": salt}}, "required": [format!("a{at}")]})).collect::<Vec<_>>()}),
    ]
    .iter()
    .map(schema)
    .collect()
}

/// Regular expressions that ask for much.
pub fn expressions(salt: usize) -> Vec<Vec<u8>> {
    [
        format!("(a?){{1000}}a{{1000}}{salt}"),
        format!("((((a{{1,9}}){{1,9}}){{1,9}}){{1,9}}){{1,9}}{salt}"),
        format!("(a|aa)*(a|aa)*(a|aa)*b{salt}"),
        format!("(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*){salt}"),
        format!("{}{salt}", "a?".repeat(3900)),
        format!("(x+x+)+y{salt}"),
        format!("[a-z]{{100000}}{salt}"),
        format!(".*a.{{{}}}", 200 + salt % 100),
        format!("(.*a.{{20}}){{{}}}", 2 + salt % 20),
        format!(r"\p{{L}}{{1000}}\p{{N}}{{1000}}{salt}"),
    ]
    .iter()
    .map(|source| guided("guided_regex", &Value::from(source.as_str()).to_string()))
    .collect()
}

/// Grammars that ask for much.
pub fn grammars(salt: usize) -> Vec<Vec<u8>> {
    let chain: String = (0..1000).map(|at| format!("r{at}: r{} | \"{salt}\"\n", at + 1)).collect();
    [
        format!("start: start start | \"{salt}\""),
        format!("start: a\na: b | \"{salt}\"\nb: a"),
        format!("start: X\nX: /(a?){{500}}a{{500}}{salt}/"),
        format!("start: \"{}\"", "long".repeat(7 * KIB) + &salt.to_string()),
        format!("start: r0\n{chain}r1000: \"end\""),
        format!("start: (\"a\" | \"b\"){{1000000}} \"{salt}\""),
        format!("start: (((\"a\"?){{300}})?){{300}} \"{salt}\""),
        format!("start: X+ \"{salt}\"\nX: /.{{0,5000}}/"),
    ]
    .iter()
    .map(|source| guided("guided_grammar", &Value::from(source.as_str()).to_string()))
    .collect()
}

/// Guides that list their texts.
pub fn choices(salt: usize) -> Vec<Vec<u8>> {
    let many = each(10_000, |at| format!("\"{salt} choice {at}\""));
    let more = each(100_000, |at| format!("\"{salt} c{at}\""));
    let alike = each(300, |at| format!("\"{}{salt}\"", "a".repeat(at * 10 + 1)));
    let large = format!("[\"{}{salt}\"]", "x".repeat(MIB - 10));
    let larger = format!("[\"{}{salt}\"]", "x".repeat(15 * MIB));
    [many, more, alike, large, larger].map(|list| guided("guided_choice", &list)).into()
}

/// Requests whose errors could repeat what they complain about.
pub fn echoes() -> Vec<Vec<u8>> {
    let large = "e".repeat(MIB);
    let text = format!("\"{large}\"");
    let mut bodies: Vec<Vec<u8>> = [
        "temperature",
        "n",
        "seed",
        "stream",
        "model",
        "stop_token_ids",
        "logprobs",
        "response_format",
        "priority",
        "logit_bias",
        "structured_outputs",
        "guided_json",
        "allowed_token_ids",
        "stream_options",
        "suffix",
        "echo",
    ]
    .iter()
    .map(|name| completion(name, &text))
    .collect();
    bodies.extend([
        completion("logit_bias", &format!("{{\"{large}\": 1}}")),
        completion("logit_bias", &format!("{{\"1\": \"{large}\"}}")),
        completion("response_format", &format!("{{\"type\": \"{large}\"}}")),
        completion("structured_outputs", &format!("{{\"regex\": \"({large}\"}}")),
        completion("guided_regex", &format!("\"({}\"", "e".repeat(8000))),
        completion("guided_grammar", &format!("\"start: {}\"", "e".repeat(30_000))),
        completion("guided_json", &format!("{{\"type\": \"{large}\"}}")),
        completion("guided_json", &format!("{{\"$ref\": \"#/{}\"}}", "e".repeat(MIB / 2))),
        completion(
            "guided_json",
            &format!("{{\"type\": \"object\", \"{}\": 1}}", "e".repeat(MIB / 2)),
        ),
        completion(
            "guided_json",
            &format!("{{\"type\": \"string\", \"pattern\": \"({}\"}}", "e".repeat(8000)),
        ),
        completion(
            "guided_json",
            &format!("{{\"type\": \"string\", \"format\": \"{}\"}}", "e".repeat(8000)),
        ),
        completion("stop", &format!("{{\"{large}\": 1}}")),
        completion("n", &format!("1{}", "0".repeat(MIB))),
        chat("model", &text),
        chat("tool_choice", &text),
        chat("tools", &format!("[{{\"type\": \"{large}\", \"function\": {{\"name\": \"a\"}}}}]")),
        chat("tools", &text),
        chat(
            "tool_choice",
            &format!("{{\"type\": \"function\", \"function\": {{\"name\": \"{large}\"}}}}"),
        ),
        chat("modalities", &format!("[\"{large}\"]")),
        chat("reasoning_effort", &text),
        chat("chat_template_kwargs", &text),
        chat("documents", &format!("[\"{large}\"]")),
        chat(
            "response_format",
            &format!("{{\"type\": \"json_schema\", \"json_schema\": \"{large}\"}}"),
        ),
        format!(r#"{{"messages": [{{"role": "{large}", "content": "x"}}]}}"#).into_bytes(),
        format!(r#"{{"messages": [{{"role": "user", "content": [{{"type": "{large}"}}]}}]}}"#)
            .into_bytes(),
        format!(r#"{{"messages": [{{"role": "user", "content": {{"{large}": 1}}}}]}}"#)
            .into_bytes(),
        format!(r#"{{"messages": "{large}"}}"#).into_bytes(),
        format!(r#"{{"prompt": {{"{large}": 1}}}}"#).into_bytes(),
        format!(r#"{{"prompt": ["a", {{"{large}": 1}}]}}"#).into_bytes(),
        format!(r#"{{"{large}": 1}}"#).into_bytes(),
        text.into_bytes(),
        large.into_bytes(),
    ]);
    bodies
}

/// A text to cut into tokens.
pub fn tokenise(prompt: &str, more: &str) -> Vec<u8> {
    format!(r#"{{"prompt": {}{more}}}"#, Value::from(prompt)).into_bytes()
}
