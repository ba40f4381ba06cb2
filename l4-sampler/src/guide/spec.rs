//! What an answer must look like, and its translation into what llguidance compiles.

use std::fmt::Write;

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::GuideError;

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum GuideSpec {
    /// JSON, of any shape.
    Json,
    /// JSON that a schema describes. Written compactly unless the schema says otherwise (`x-guidance`). Properties come in
    /// the order of the schema.
    JsonSchema(Value),
    /// A regular expression that the whole answer matches.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// The deepest nesting of a schema or of brackets.
const MAX_DEPTH: usize = 100;

/// The longest source of a schema or a list of choices, in bytes.
const MAX_SOURCE: usize = 1 << 20;

/// The longest grammar, and of the expressions in a schema together.
const MAX_GRAMMAR: usize = 32 << 10;

/// The longest regular expression. Optional parts one behind the other take time in the square of their number.
const MAX_REGEX: usize = 8 << 10;

/// The most lists and objects in a schema: each may be a link of one chain of references, and a step of a recursion.
const MAX_PARTS: usize = 10_000;

/// The most properties of one object, which cost time in the square of their number.
const MAX_PROPERTIES: usize = 1000;

/// The most remainders that a number is looked at by: a lexer has a state for each.
const MAX_MULTIPLE: u64 = 100_000;

impl GuideSpec {
    /// Which kind this is, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Json | Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "grammar",
            Self::Choice(_) => "list of choices",
        }
    }

    /// Bytes of its source, of a schema as compact JSON.
    pub fn source_bytes(&self) -> usize {
        self.key().len()
    }

    /// What compiled grammars are found by. Two schemas that differ only in the order of properties are equal as values, and
    /// yet ask for different texts; so the key is the spelling.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Json => "json".to_owned(),
            Self::JsonSchema(schema) => format!("schema {schema}"),
            Self::Regex(source) => format!("regex {source}"),
            Self::Lark(source) => format!("lark {source}"),
            Self::Choice(choices) => format!("choice {}", json!(choices)),
        }
    }

    /// Refuse what cannot be handed to a compiler without risk. llguidance limits the work of a lexer and of a step; what
    /// it does before, it does without a limit, by recursion in part, and a stack that overflows takes the whole process
    /// with it. (The largest schemas in use, FHIR's, do not pass. They come from no request.)
    pub(super) fn check(&self) -> Result<(), GuideError> {
        match self {
            Self::Json => Ok(()),
            Self::JsonSchema(schema) => {
                self.at_most("levels of nesting", depth(schema), MAX_DEPTH)?;
                self.check_schema(schema)
            }
            Self::Regex(source) => {
                self.at_most("bytes", source.len(), MAX_REGEX)?;
                self.at_most("levels of nesting", brackets(source), MAX_DEPTH)
            }
            Self::Lark(source) => {
                self.at_most("bytes", source.len(), MAX_GRAMMAR)?;
                self.at_most("levels of nesting", brackets(source), MAX_DEPTH)?;
                // There may be schemas in it.
                let steps = source.split("\"multipleOf\"").skip(1);
                let steps = steps.filter_map(|s| s.split([',', '}', '\n']).next()).map(digits);
                self.check_multiple(steps.fold(1, common_multiple))
            }
            Self::Choice(choices) => {
                self.at_most("bytes", choices.iter().map(String::len).sum(), MAX_SOURCE)?;
                self.at_most("choices", choices.len(), MAX_PARTS)?;
                if choices.is_empty() {
                    return Err(self.impossible("it is empty"));
                }
                match choices.iter().position(String::is_empty) {
                    Some(at) => {
                        let why = format!("choice {} of {} is empty", at + 1, choices.len());
                        Err(self.impossible(&why))
                    }
                    None => Ok(()),
                }
            }
        }
    }

    fn check_schema(&self, schema: &Value) -> Result<(), GuideError> {
        let (mut containers, mut expressions, mut multiple) = (0, 0, 1);
        for (part, _) in parts(schema) {
            containers += usize::from(part.is_object() || part.is_array());
            let Value::Object(part) = part else { continue };
            let map = |key| part.get(key).and_then(Value::as_object);
            let properties = map("properties").map_or(0, Map::len);
            self.at_most("properties of one object", properties, MAX_PROPERTIES)?;
            let pattern = part.get("pattern").and_then(Value::as_str);
            let names = map("patternProperties").into_iter().flat_map(Map::keys);
            let all = pattern.into_iter().chain(names.map(String::as_str));
            for source in all {
                self.at_most("bytes of one pattern", source.len(), MAX_REGEX)?;
                expressions += source.len();
            }
            if let Some(Value::Number(step)) = part.get("multipleOf") {
                // A number that is a multiple of several is one of their common multiple.
                multiple = common_multiple(multiple, digits(&step.to_string()));
            }
        }
        self.at_most("lists and objects", containers, MAX_PARTS)?;
        self.at_most("bytes of patterns", expressions, MAX_GRAMMAR)?;
        self.check_multiple(multiple)?;
        self.at_most("bytes", self.key().len(), MAX_SOURCE)
    }

    fn check_multiple(&self, multiple: u64) -> Result<(), GuideError> {
        if multiple > MAX_MULTIPLE {
            let why = format!("multipleOf: more than {MAX_MULTIPLE} remainders to keep apart");
            return Err(self.broken(&why));
        }
        Ok(())
    }

    /// The grammar, for llguidance.
    pub(super) fn grammar(&self) -> Result<TopLevelGrammar, GuideError> {
        Ok(match self {
            Self::Json => TopLevelGrammar::from_json_schema(compact(Map::new())?),
            Self::JsonSchema(Value::Object(schema)) => {
                TopLevelGrammar::from_json_schema(compact(schema.clone())?)
            }
            Self::JsonSchema(Value::Bool(true)) => return Self::Json.grammar(),
            Self::JsonSchema(Value::Bool(false)) => {
                return Err(self.impossible("the schema `false` describes nothing"));
            }
            Self::JsonSchema(_) => {
                return Err(self.broken("a schema is an object, `true` or `false`"));
            }
            Self::Regex(source) => TopLevelGrammar::from_regex(source),
            Self::Lark(source) => TopLevelGrammar::from_lark(source.clone()),
            Self::Choice(choices) => TopLevelGrammar::from_lark(one_of(choices)),
        })
    }

    fn at_most(&self, what: &str, n: usize, most: usize) -> Result<(), GuideError> {
        if n > most {
            return Err(self.broken(&format!("it has {n} {what}, more than {most}")));
        }
        Ok(())
    }

    pub(super) fn broken(&self, why: &str) -> GuideError {
        GuideError::Compile { kind: self.kind(), why: why.to_owned() }
    }

    pub(super) fn impossible(&self, why: &str) -> GuideError {
        GuideError::Impossible { kind: self.kind(), why: why.to_owned() }
    }
}

/// A schema that is written without white space unless it asks for some itself. Left to themselves small models like
/// nothing better than one more blank, and a grammar with flexible white space never stops them.
fn compact(mut schema: Map<String, Value>) -> Result<Value, GuideError> {
    let options = schema.entry("x-guidance").or_insert_with(|| json!({}));
    let Value::Object(options) = options else {
        let why = "x-guidance must be an object".to_owned();
        return Err(GuideError::Compile { kind: "JSON schema", why });
    };
    options.entry("whitespace_flexible").or_insert(Value::Bool(false));
    Ok(Value::Object(schema))
}

/// A terminal that is one of these texts. (One terminal, not a rule of many: its lexer tries all texts at once, also where
/// one begins another.)
fn one_of(choices: &[String]) -> String {
    let choices: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
    format!("start: CHOICE\nCHOICE: {}", choices.join("\n  | "))
}

/// A text as Lark writes it, for whoever writes a grammar for [`GuideSpec::Lark`]: as JSON does, but with no control
/// character left, DEL and its kind included.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    for c in Value::from(text).to_string().chars() {
        if c.is_control() {
            // Writing to a string cannot fail.
            let _ = write!(quoted, "\\u{:04x}", u32::from(c));
        } else {
            quoted.push(c);
        }
    }
    quoted
}

/// A value and all that is in it, each with its depth; without recursion.
fn parts(value: &Value) -> impl Iterator<Item = (&Value, usize)> {
    let mut open = vec![(value, 1)];
    std::iter::from_fn(move || {
        let (value, depth) = open.pop()?;
        match value {
            Value::Array(items) => open.extend(items.iter().map(|v| (v, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|v| (v, depth + 1))),
            _ => {}
        }
        Some((value, depth))
    })
}

fn depth(value: &Value) -> usize {
    parts(value).map(|(_, depth)| depth).max().unwrap_or(0)
}

/// A number's digits, read without its point: 25 for 0.25.
fn digits(number: &str) -> u64 {
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(u64::MAX).max(1)
}

fn common_multiple(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}

/// How many brackets are open at once. One behind a backslash is a character; those in texts are counted, which errs on
/// the safe side.
fn brackets(source: &str) -> usize {
    let (mut deepest, mut depth, mut escaped) = (0, 0_usize, false);
    for byte in source.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}
