//! Specifications of guides, and their translation into grammars of llguidance.

use std::fmt::Write;

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::GuideError;
use super::closed::closed;

/// What an output must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum GuideSpec {
    /// JSON of any shape.
    Json,
    /// JSON that a schema describes, as [JSON Schema](https://json-schema.org) defines it: an object may have any
    /// further property unless its schema forbids that. Written compactly unless the schema says otherwise
    /// (`x-guidance`). Properties come in the order of the schema. A keyword that cannot be enforced is ignored (`not`,
    /// `if`, `contains`, `uniqueItems`, `propertyNames`, `dependentRequired` and the like, an unknown `format`; `oneOf`
    /// counts as `anyOf`), unless `x-guidance` has `"lenient": false`.
    JsonSchema(Value),
    /// The same, but an object whose schema declares properties has no others, unless the schema has
    /// `additionalProperties`: see [`GuideSpec::closed`]. This is what authors of such schemas usually mean.
    ClosedJsonSchema(Value),
    /// A regular expression that the whole output matches.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

// A request's guide must not take over about a second of one core or 64 MiB to compile, and its parser, of which every
// running request has one, not over some ten MiB. The figures below are of a Zen 5 core and a vocabulary of 512 tokens;
// beside each limit is the worst case found just below it: seconds and MiB to compile, MiB of a parser.

/// Maximum nesting of a schema or of brackets.
const MAX_DEPTH: usize = 100;

/// Maximum number of bytes of a source. Descriptions are most of a long schema, and cost nothing.
const MAX_SOURCE: usize = 1 << 20;

/// Maximum number of bytes of a grammar with its schemas, which are parsed to be measured.
const MAX_LARK: usize = 256 << 10;

/// Maximum number of bytes of a separator or white-space pattern in `x-guidance`: each is an expression that is
/// inserted wherever it may occur. (A thousand times as long: minutes, and gigabytes.)
const MAX_SEPARATOR: usize = 64;

/// Maximum number of bytes of a grammar without its schemas, and of all expressions in a schema. (3,400 optional
/// letters in a row: 0.3 s, 47 MiB, 23 MiB.)
const MAX_GRAMMAR: usize = 24 << 10;

/// Maximum number of bytes of a regular expression. Optional parts in a row take time and memory in the square of their
/// number. (2,000 of them: 0.1 s, 19 MiB, 9 MiB.)
const MAX_REGEX: usize = 4 << 10;

/// Maximum number of lists and objects in a schema, and of properties without one. Each may be a link of one chain of
/// references, and a step of a recursion. (Properties of any type with three bounds each: 0.8 s, 70 MiB, 5 MiB; plain
/// ones: 0.3 s, 40 MiB, 0.5 MiB.)
const MAX_PARTS: usize = 2000;

/// Maximum number of properties of one object, which take time in the square of their number. (0.2 s, 12 MiB, 0.5 MiB.)
const MAX_PROPERTIES: usize = 1000;

/// Maximum number of numbers with bounds and texts with a format in a schema: each is an expression of its own. (0.1 s,
/// 13 MiB, 4 MiB.)
const MAX_BOUNDED: usize = 256;

/// Maximum number of bytes of a text that is given letter by letter: a choice, a `const`, one value of an `enum`, a
/// property's name. If nothing else is possible, every byte of it is a state of the lexer. (0.01 s, 5 MiB, 2 MiB; a
/// thousand times as long, 2.6 s and 300 MiB.)
const MAX_TEXT: usize = 4 << 10;

/// Maximum number of bytes of such texts together. (0.1 s, 10 MiB, 3 MiB.)
const MAX_TEXTS: usize = 256 << 10;

/// Maximum number of choices, or of values of all `enum`s together. (0.2 s, 11 MiB, 3 MiB.)
const MAX_VALUES: usize = 10_000;

/// Maximum number of remainders by which a number is tested: a lexer has a state for each.
const MAX_MULTIPLE: u64 = 10_000;

impl GuideSpec {
    /// Kind of guide, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Json | Self::JsonSchema(_) | Self::ClosedJsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "grammar",
            Self::Choice(_) => "list of choices",
        }
    }

    /// Number of bytes of its source; of a schema, as compact JSON.
    pub fn source_bytes(&self) -> usize {
        self.key().len()
    }

    /// Key of compiled grammars in the cache. Two schemas that differ only in the order of properties are equal as
    /// values, but allow different texts; so the key is the spelling.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Json => "json".to_owned(),
            Self::JsonSchema(schema) => format!("schema {schema}"),
            Self::ClosedJsonSchema(schema) => format!("closed schema {schema}"),
            Self::Regex(source) => format!("regex {source}"),
            Self::Lark(source) => format!("lark {source}"),
            Self::Choice(choices) => format!("choice {}", json!(choices)),
        }
    }

    /// Rejects specifications that cannot be compiled without risk. llguidance limits the work of a lexer and of a
    /// step; what it does before that has no limit and is partly recursive, and a stack overflow ends the whole
    /// process. (The largest schemas in use, FHIR's, are rejected; they come from no request.)
    ///
    /// # Errors
    /// [`GuideError::Compile`], [`GuideError::Impossible`].
    pub fn check(&self) -> Result<(), GuideError> {
        match self {
            Self::Json => Ok(()),
            Self::JsonSchema(schema) | Self::ClosedJsonSchema(schema) => {
                self.at_most("levels of nesting", depth(schema), MAX_DEPTH)?;
                self.check_schema(schema)
            }
            Self::Regex(source) => {
                self.at_most("bytes", source.len(), MAX_REGEX)?;
                self.at_most("levels of nesting", brackets(source), MAX_DEPTH)
            }
            Self::Lark(source) => {
                self.at_most("bytes", source.len(), MAX_LARK)?;
                let schemas = embedded(source);
                let within: usize = schemas.iter().map(|(_, bytes)| bytes).sum();
                self.at_most("bytes without its schemas", source.len() - within, MAX_GRAMMAR)?;
                self.at_most("levels of nesting", brackets(source), MAX_DEPTH)?;
                let mut size = Size::default();
                for (schema, _) in &schemas {
                    self.at_most("levels of nesting", depth(schema), MAX_DEPTH)?;
                    self.measure(schema, &mut size)?;
                }
                // Some schemas may not have been found.
                let steps = source.split("\"multipleOf\"").skip(1);
                let steps = steps.filter_map(|s| s.split([',', '}', '\n']).next()).map(digits);
                self.check_multiple(steps.fold(1, common_multiple))
            }
            Self::Choice(choices) => {
                self.at_most("choices", choices.len(), MAX_VALUES)?;
                let longest = choices.iter().map(String::len).max().unwrap_or(0);
                self.at_most("bytes in one choice", longest, MAX_TEXT)?;
                self.at_most("bytes", choices.iter().map(String::len).sum(), MAX_TEXTS)?;
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
        self.measure(schema, &mut Size { multiple: 1, ..Size::default() })?;
        self.at_most("bytes", self.key().len(), MAX_SOURCE)
    }

    /// Adds the cost of a schema, up to the limits.
    fn measure(&self, schema: &Value, size: &mut Size) -> Result<(), GuideError> {
        for (part, _) in parts(schema) {
            size.containers += usize::from(part.is_object() || part.is_array());
            self.at_most("lists, objects and properties", size.containers, MAX_PARTS)?;
            let Value::Object(part) = part else { continue };
            let map = |key| part.get(key).and_then(Value::as_object);
            let properties = map("properties").map_or(0, Map::len);
            self.at_most("properties of one object", properties, MAX_PROPERTIES)?;
            let all = map("properties").into_iter().flatten();
            size.containers += all.clone().filter(|(_, schema)| schema.is_boolean()).count();
            for (name, _) in all {
                self.text("bytes in the name of a property", name.len(), size)?;
            }
            let required = part.get("required").and_then(Value::as_array);
            let required = required.map_or(&[][..], Vec::as_slice);
            self.at_most("required properties of one object", required.len(), MAX_PROPERTIES)?;
            size.values += required.len();
            for name in required {
                let bytes = name.as_str().map_or(0, str::len);
                self.text("bytes in the name of a property", bytes, size)?;
            }
            if let Some(Value::Object(options)) = part.get("x-guidance") {
                for source in options.values().filter_map(Value::as_str) {
                    self.at_most(
                        "bytes in an option of `x-guidance`",
                        source.len(),
                        MAX_SEPARATOR,
                    )?;
                }
            }
            if let Some(value) = part.get("const") {
                self.text("bytes in one `const`", value.to_string().len(), size)?;
            }
            for value in part.get("enum").and_then(Value::as_array).into_iter().flatten() {
                size.values += 1;
                self.at_most("values in `enum`s and `required`", size.values, MAX_VALUES)?;
                self.text("bytes in one value of an `enum`", value.to_string().len(), size)?;
            }
            let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
            let bounded = bounds.iter().any(|key| part.get(*key).is_some_and(Value::is_number));
            let format = part.get("format").is_some_and(Value::is_string);
            size.bounded += usize::from(bounded) + usize::from(format);
            self.at_most("numbers with bounds and formats", size.bounded, MAX_BOUNDED)?;
            let pattern = part.get("pattern").and_then(Value::as_str);
            let names = map("patternProperties").into_iter().flat_map(Map::keys);
            let all = pattern.into_iter().chain(names.map(String::as_str));
            for source in all {
                self.at_most("bytes of one pattern", source.len(), MAX_REGEX)?;
                size.expressions += source.len();
            }
            self.at_most("bytes of patterns", size.expressions, MAX_GRAMMAR)?;
            if let Some(Value::Number(step)) = part.get("multipleOf") {
                // A number that is a multiple of several is one of their common multiple.
                size.multiple = common_multiple(size.multiple.max(1), digits(&step.to_string()));
            }
        }
        self.check_multiple(size.multiple)
    }

    /// Adds a text that the output may have letter by letter.
    fn text(&self, what: &str, bytes: usize, size: &mut Size) -> Result<(), GuideError> {
        self.at_most(what, bytes, MAX_TEXT)?;
        size.texts += bytes;
        self.at_most("bytes in names, `const`s and `enum`s", size.texts, MAX_TEXTS)
    }

    fn check_multiple(&self, multiple: u64) -> Result<(), GuideError> {
        if multiple > MAX_MULTIPLE {
            let why = format!("multipleOf: more than {MAX_MULTIPLE} remainders to keep apart");
            return Err(self.broken(&why));
        }
        Ok(())
    }

    /// Closes a schema for a [`GuideSpec::Lark`] (`%json`), as [`GuideSpec::ClosedJsonSchema`] does.
    ///
    /// A schema with `properties` or `patternProperties` and without `additionalProperties` forbids further properties.
    /// Schemas of one object (`allOf`, `$ref`, ...) are closed together: each allows what any of them declares.
    ///
    /// # Errors
    /// [`GuideError::Compile`]: a schema that is too large, also as [`GuideSpec::JsonSchema`].
    pub fn closed(schema: Value) -> Result<Value, GuideError> {
        let spec = Self::ClosedJsonSchema(schema);
        spec.check()?;
        let Self::ClosedJsonSchema(schema) = &spec else { return Ok(Value::Bool(true)) };
        spec.close(schema)
    }

    /// Closes the objects of a schema, which may make it larger.
    fn close(&self, schema: &Value) -> Result<Value, GuideError> {
        let closed = closed(schema).map_err(|why| self.broken(&why))?;
        self.check_schema(&closed)?;
        Ok(closed)
    }

    /// The grammar for llguidance.
    pub(super) fn grammar(&self) -> Result<TopLevelGrammar, GuideError> {
        Ok(match self {
            Self::Json => TopLevelGrammar::from_json_schema(compact(Map::new())?),
            Self::JsonSchema(schema) | Self::ClosedJsonSchema(schema) => match schema {
                Value::Object(_) => {
                    let closed = match self {
                        Self::ClosedJsonSchema(_) => self.close(schema)?,
                        _ => schema.clone(),
                    };
                    let Value::Object(schema) = closed else { return Self::Json.grammar() };
                    TopLevelGrammar::from_json_schema(compact(schema)?)
                }
                Value::Bool(true) => return Self::Json.grammar(),
                Value::Bool(false) => {
                    return Err(self.impossible("the schema `false` describes nothing"));
                }
                _ => return Err(self.broken("a schema is an object, `true` or `false`")),
            },
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

/// Cost of schemas.
#[derive(Debug, Default)]
struct Size {
    /// Lists and objects, and properties without one.
    containers: usize,
    /// Numbers with bounds and texts with a format.
    bounded: usize,
    /// Bytes of expressions.
    expressions: usize,
    /// Values of `enum`s, and names in `required`.
    values: usize,
    /// Bytes of names and values.
    texts: usize,
    /// The common multiple of all `multipleOf`.
    multiple: u64,
}

/// The schemas in a grammar (`name: %json {...}`), each with its number of bytes. Behind a quote or a slash on its line
/// it may be part of a text or an expression, and is ignored.
fn embedded(source: &str) -> Vec<(Value, usize)> {
    let (mut schemas, mut read) = (Vec::new(), 0);
    while let Some(at) = source[read..].find("%json").map(|at| read + at) {
        // What was read already is no part of it. (Searching back to the beginning of the line each time would take
        // time in the square of the line's length.)
        let before = source[read..at].rsplit('\n').next().unwrap_or_default();
        read = at + "%json".len();
        if before.contains(['"', '/']) {
            continue;
        }
        let mut values = serde_json::Deserializer::from_str(&source[read..]).into_iter::<Value>();
        if let Some(Ok(schema @ Value::Object(_))) = values.next() {
            let bytes = values.byte_offset();
            read += bytes;
            schemas.push((schema, bytes));
        }
    }
    schemas
}

/// Makes a schema compact: without white space unless it asks for some itself, and ignoring keywords that cannot be
/// enforced. Small models often repeat blanks, and a grammar with flexible white space never stops them.
fn compact(mut schema: Map<String, Value>) -> Result<Value, GuideError> {
    let options = schema.entry("x-guidance").or_insert_with(|| json!({}));
    let Value::Object(options) = options else {
        let why = "x-guidance must be an object".to_owned();
        return Err(GuideError::Compile { kind: "JSON schema", why });
    };
    options.entry("whitespace_flexible").or_insert(Value::Bool(false));
    options.entry("lenient").or_insert(Value::Bool(true));
    Ok(Value::Object(schema))
}

/// A terminal that is one of these texts. (One terminal instead of a rule with alternatives: its lexer follows all
/// texts at once, even if one is the beginning of another.)
fn one_of(choices: &[String]) -> String {
    let choices: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
    format!("start: CHOICE\nCHOICE: {}", choices.join("\n  | "))
}

/// Quotes a text for a [`GuideSpec::Lark`]: as in JSON, but without control characters, DEL and its like included.
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

/// A value and all values in it, each with its depth; without recursion.
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

/// Digits of a number without its point: 25 for 0.25.
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

/// Maximum number of open brackets. A bracket behind a backslash is a character; brackets in texts are counted, which
/// errs on the safe side.
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
