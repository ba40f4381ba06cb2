//! Closing JSON schemas: objects without properties that their schema does not declare.
//!
//! JSON Schema allows any further property in an object whose schema does not mention `additionalProperties`. Pydantic,
//! Zod and most authors write such schemas and mean the declared properties only; a model that may add properties
//! invents them until `max_tokens`. So a schema can be *closed* before it is compiled.
//!
//! The rule:
//!
//! 1. A schema with `properties` or `patternProperties` and without `additionalProperties` gets
//!    `"additionalProperties": false`. (vLLM's `disable_additional_properties` does this for its backend "guidance";
//!    XGrammar's strict mode, which is vLLM's default, has the same effect on these schemas.)
//! 2. An explicit `additionalProperties` stays as it is, and so does an object schema that declares no properties, such
//!    as `{"type": "object"}`.
//! 3. `unevaluatedProperties` counts as `additionalProperties` where that is missing.
//! 4. Schemas that apply to the same object (`allOf`, `anyOf`, `oneOf`, `$ref`, and the keywords beside them) are
//!    closed together: a property that one of them declares is allowed by all. Closed one by one they would contradict
//!    each other. If one of them has `"additionalProperties": true` or a schema there, the others stay open too. Of an
//!    `anyOf`, each alternative is closed by itself.
//! 5. A property that is `required` counts as declared.
//!
//! Every output that the closed schema allows is valid under the original schema. Definitions are copied: one that is
//! used alone and within an `allOf` is closed in two ways, so each use refers to a copy of its own.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

/// Maximum amount of work for one schema: names that are passed between schemas of one object, and schemas that are
/// read for them. Takes less than 0.1 s; typical schemas need some hundreds.
const MAX_WORK: usize = 100_000;

/// Keywords of the object itself, which define its properties.
const OWN: [&str; 5] = [
    "properties",
    "patternProperties",
    "required",
    "additionalProperties",
    "unevaluatedProperties",
];

/// Closes the objects of a schema.
///
/// # Errors
/// A message for schemas that combine too many others.
pub(super) fn closed(schema: &Value) -> Result<Value, String> {
    let mut closer =
        Closer { root: schema, work: 0, copies: HashMap::new(), open: VecDeque::new() };
    let mut root = closer.schema(schema, &Others::default())?;
    let mut definitions = Map::new();
    while let Some((name, target, others)) = closer.open.pop_front() {
        definitions.insert(name, closer.schema(target, &others)?);
    }
    if let (Value::Object(root), false) = (&mut root, definitions.is_empty()) {
        root.insert("$defs".into(), Value::Object(definitions));
    }
    Ok(root)
}

/// Declarations of other schemas of the same object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Others {
    names: BTreeSet<String>,
    patterns: BTreeSet<String>,
    /// Whether one of them allows undeclared properties.
    open: bool,
    /// Whether any of them has `properties` or `patternProperties`.
    declares: bool,
}

impl Others {
    fn add(&mut self, more: &Self) {
        self.names.extend(more.names.iter().cloned());
        self.patterns.extend(more.patterns.iter().cloned());
        self.open |= more.open;
        self.declares |= more.declares;
    }

    fn len(&self) -> usize {
        self.names.len() + self.patterns.len()
    }
}

struct Closer<'a> {
    root: &'a Value,
    work: usize,
    /// Name of each copy of a definition, by what it is a copy of and what is declared around it.
    copies: HashMap<(String, Others), String>,
    /// Copies that are still to be made. (A list instead of recursion, since chains of definitions may be long.)
    open: VecDeque<(String, &'a Value, Others)>,
}

/// A schema that applies to an object.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// Keywords of the object itself.
    Own(&'a Map<String, Value>),
    /// A schema that applies as a whole.
    Schema(&'a Value),
    /// Alternatives, of which one applies.
    Any(&'a [Value]),
    /// Target of a reference.
    Reference(&'a str),
}

impl<'a> Closer<'a> {
    /// Closes a schema. `others` is what is declared for the same object outside of it.
    fn schema(&mut self, schema: &'a Value, others: &Others) -> Result<Value, String> {
        let Value::Object(map) = schema else { return Ok(schema.clone()) };
        let around = self.around(map, others)?;
        // In the order of `parts`.
        let mut around = around.iter();
        let own = if has_own(map) { around.next() } else { None };
        let mut closed = Map::new();
        let mut objects_done = false;
        for (key, value) in map {
            let value = match (key.as_str(), value) {
                // Every reference is to a copy.
                ("$defs" | "definitions", Value::Object(_)) => continue,
                ("properties" | "patternProperties" | "additionalProperties", _)
                | ("unevaluatedProperties", _) => {
                    if !std::mem::replace(&mut objects_done, true) {
                        self.objects(map, own, false, &mut closed)?;
                    }
                    continue;
                }
                ("allOf", Value::Array(all)) => {
                    let all = all.iter().map(|part| match around.next() {
                        Some(others) => self.schema(part, others),
                        None => Ok(part.clone()),
                    });
                    Value::Array(all.collect::<Result<_, _>>()?)
                }
                ("anyOf" | "oneOf", Value::Array(any)) => {
                    let others = around.next().cloned().unwrap_or_default();
                    let any = any.iter().map(|part| self.alternative(part, &others));
                    Value::Array(any.collect::<Result<_, _>>()?)
                }
                ("$ref", Value::String(reference)) => {
                    let others = around.next().cloned().unwrap_or_default();
                    Value::String(self.reference(reference, others))
                }
                ("items" | "additionalItems" | "prefixItems", Value::Array(list)) => {
                    let list = list.iter().map(|item| self.schema(item, &Others::default()));
                    Value::Array(list.collect::<Result<_, _>>()?)
                }
                ("items" | "additionalItems", item) => self.schema(item, &Others::default())?,
                (_, value) => value.clone(),
            };
            closed.insert(key.clone(), value);
        }
        Ok(Value::Object(closed))
    }

    /// Closes an alternative. Beside declared properties, an alternative that declares none allows those and no others.
    fn alternative(&mut self, schema: &'a Value, others: &Others) -> Result<Value, String> {
        let mut closed = self.schema(schema, others)?;
        let (Value::Object(written), Value::Object(closed_map)) = (schema, &mut closed) else {
            return Ok(closed);
        };
        let said = OWN.iter().any(|key| *key != "required" && written.contains_key(*key));
        let object = written.get("type").is_none_or(|kind| kind == "object");
        if others.declares && !others.open && object && !said && in_place(written).next().is_none()
        {
            self.objects(written, Some(others), true, closed_map)?;
        }
        Ok(closed)
    }

    /// Writes the keywords about properties next to each other: a compiler that reads keywords in their order meets
    /// `additionalProperties` together with what it is in addition to. `mute`: the schema is closed although it
    /// declares nothing.
    fn objects(
        &mut self,
        map: &'a Map<String, Value>,
        others: Option<&Others>,
        mute: bool,
        closed: &mut Map<String, Value>,
    ) -> Result<(), String> {
        let mut subschemas = |key: &str| match map.get(key) {
            Some(Value::Object(all)) => {
                let all = all.iter().map(|(name, schema)| {
                    Ok((name.clone(), self.schema(schema, &Others::default())?))
                });
                all.collect::<Result<Map<_, _>, String>>().map(Value::Object).map(Some)
            }
            other => Ok(other.cloned()),
        };
        let properties = subschemas("properties")?;
        let patterns = subschemas("patternProperties")?;
        let said = match (map.get("additionalProperties"), map.get("unevaluatedProperties")) {
            (Some(said), _) => Some(said),
            // Beside other schemas it would depend on what these evaluate. The property is forbidden instead.
            (None, Some(Value::Bool(true))) => Some(&Value::Bool(true)),
            (None, Some(schema)) if in_place(map).next().is_none() => Some(schema),
            (None, _) => None,
        };
        let said = said.map(|said| self.schema(said, &Others::default())).transpose()?;
        let sealed = map.contains_key("unevaluatedProperties");
        let declares = declares(map) || sealed || mute;
        let nothing = Others::default();
        let others = others.unwrap_or(&nothing);
        if said.is_some() || others.open || !declares {
            let all = [
                ("properties", properties),
                ("patternProperties", patterns),
                ("additionalProperties", said),
            ];
            for (key, value) in all {
                if let Some(value) = value {
                    closed.insert(key.into(), value);
                }
            }
            return Ok(());
        }
        let mut names = match properties {
            Some(Value::Object(names)) => names,
            None => Map::new(),
            // The compiler reports what is wrong with it.
            Some(other) => {
                closed.insert("properties".into(), other);
                return Ok(());
            }
        };
        let required = map.get("required").and_then(Value::as_array);
        let required = required.into_iter().flatten().filter_map(Value::as_str);
        for name in required.chain(others.names.iter().map(String::as_str)) {
            self.spend(1)?;
            if !names.contains_key(name) {
                names.insert(name.to_owned(), Value::Bool(true));
            }
        }
        closed.insert("properties".into(), Value::Object(names));
        let mut patterns = match patterns {
            Some(Value::Object(patterns)) => patterns,
            _ => Map::new(),
        };
        for pattern in &others.patterns {
            self.spend(1)?;
            if !patterns.contains_key(pattern) {
                patterns.insert(pattern.clone(), Value::Bool(true));
            }
        }
        if !patterns.is_empty() {
            closed.insert("patternProperties".into(), Value::Object(patterns));
        }
        closed.insert("additionalProperties".into(), Value::Bool(false));
        Ok(())
    }

    /// For each part of a schema, in the order of [`parts`]: declarations of the other parts and of the schemas
    /// outside.
    fn around(
        &mut self,
        map: &'a Map<String, Value>,
        others: &Others,
    ) -> Result<Vec<Others>, String> {
        let parts: Vec<Part<'a>> = parts(map).collect();
        if parts.len() < 2 {
            // The usual case: only what came from outside is passed on.
            self.spend(1 + others.len())?;
            return Ok(vec![others.clone(); parts.len()]);
        }
        let mut declared = Vec::with_capacity(parts.len());
        for part in &parts {
            declared.push(self.declared(*part)?);
        }
        let mut around = Vec::with_capacity(parts.len());
        for (at, own) in declared.iter().enumerate() {
            let mut beside = Others::default();
            // A part that declares nothing is not closed, and need not know the others.
            if own.declares {
                beside = others.clone();
                for (_, other) in declared.iter().enumerate().filter(|(i, _)| *i != at) {
                    self.spend(1 + other.len())?;
                    beside.add(other);
                }
            }
            around.push(beside);
        }
        Ok(around)
    }

    /// All declarations of a part, including its references.
    fn declared(&mut self, part: Part<'a>) -> Result<Others, String> {
        let mut found = Others::default();
        let (mut open, mut seen) = (vec![part], HashSet::new());
        while let Some(part) = open.pop() {
            self.spend(1)?;
            match part {
                Part::Own(map) => {
                    let keys = |key| map.get(key).and_then(Value::as_object).into_iter().flatten();
                    let required = map.get("required").and_then(Value::as_array);
                    let required = required.into_iter().flatten().filter_map(Value::as_str);
                    let before = found.len();
                    found.names.extend(keys("properties").map(|(name, _)| name.clone()));
                    found.names.extend(required.map(str::to_owned));
                    found.patterns.extend(keys("patternProperties").map(|(name, _)| name.clone()));
                    self.spend(found.len() - before)?;
                    found.declares |= declares(map);
                    let said = map.get("additionalProperties");
                    let opens = said.is_some_and(|said| *said != Value::Bool(false))
                        || map.get("unevaluatedProperties") == Some(&Value::Bool(true));
                    found.open |= opens;
                    // A closed object counts as declaring, too.
                    found.declares |= said.is_some() || map.contains_key("unevaluatedProperties");
                }
                Part::Schema(Value::Object(map)) => open.extend(parts(map)),
                Part::Schema(_) => {}
                Part::Any(any) => open.extend(any.iter().map(Part::Schema)),
                Part::Reference(reference) => {
                    if let Some(target) = self.target(reference).filter(|_| seen.insert(reference))
                    {
                        open.push(Part::Schema(target));
                    }
                }
            }
        }
        Ok(found)
    }

    /// The reference to a copy. A reference without a target stays as it is, and the compiler reports it.
    fn reference(&mut self, reference: &str, others: Others) -> String {
        let Some(target) = self.target(reference) else { return reference.to_owned() };
        let next = self.copies.len();
        let key = (reference.to_owned(), others);
        if let Some(name) = self.copies.get(&key) {
            return format!("#/$defs/{name}");
        }
        let name = format!("{next}");
        self.open.push_back((name.clone(), target, key.1.clone()));
        self.copies.insert(key, name.clone());
        format!("#/$defs/{name}")
    }

    /// Target of a reference within this document.
    fn target(&self, reference: &str) -> Option<&'a Value> {
        let pointer = reference.strip_prefix('#')?;
        if pointer == "/" {
            return Some(self.root);
        }
        self.root.pointer(&percent_decoded(pointer)?)
    }

    fn spend(&mut self, work: usize) -> Result<(), String> {
        self.work += work;
        if self.work <= MAX_WORK {
            return Ok(());
        }
        Err(format!(
            "its allOf, anyOf and $ref combine too many properties, more than {MAX_WORK}: combine fewer, or give each \
             its own `additionalProperties`"
        ))
    }
}

/// Whether a schema declares properties.
fn declares(map: &Map<String, Value>) -> bool {
    ["properties", "patternProperties"]
        .iter()
        .any(|key| map.get(*key).is_some_and(Value::is_object))
}

fn has_own(map: &Map<String, Value>) -> bool {
    OWN.iter().any(|key| map.contains_key(*key))
}

/// The schemas that apply to the same value as this one: its own keywords first, then the others in their order.
fn parts(map: &Map<String, Value>) -> impl Iterator<Item = Part<'_>> {
    has_own(map).then_some(Part::Own(map)).into_iter().chain(in_place(map))
}

fn in_place(map: &Map<String, Value>) -> impl Iterator<Item = Part<'_>> {
    map.iter().flat_map(|(key, value)| {
        let (mut all, mut one) = (None, None);
        match (key.as_str(), value) {
            ("allOf", Value::Array(parts)) => all = Some(parts.iter().map(Part::Schema)),
            ("anyOf" | "oneOf", Value::Array(any)) => one = Some(Part::Any(any)),
            ("$ref", Value::String(reference)) => one = Some(Part::Reference(reference)),
            _ => {}
        }
        all.into_iter().flatten().chain(one)
    })
}

/// Decodes the percent-encoding (`%20`) of a pointer in a URI.
fn percent_decoded(pointer: &str) -> Option<String> {
    if !pointer.contains('%') {
        return Some(pointer.to_owned());
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(pointer.len()), pointer.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn becomes(written: Value, expected: Value) {
        assert_eq!(closed(&written).unwrap(), expected, "{written}");
    }

    #[test]
    fn an_object_that_declares_properties_has_no_others() {
        becomes(
            json!({"type": "object", "properties": {"a": {"properties": {}}}, "required": ["a"]}),
            json!({
                "type": "object",
                "properties": {"a": {"properties": {}, "additionalProperties": false}},
                "additionalProperties": false, "required": ["a"],
            }),
        );
        becomes(
            json!({"items": {"patternProperties": {"^x": true}}}),
            json!({"items": {"properties": {}, "patternProperties": {"^x": true}, "additionalProperties": false}}),
        );
    }

    #[test]
    fn what_a_schema_says_itself_stays() {
        for same in [
            json!({"type": "object"}),
            json!({"required": ["a"]}),
            json!(true),
            json!({"properties": {"a": true}, "additionalProperties": true}),
            json!({"properties": {"a": true}, "additionalProperties": {"type": "string"}}),
            json!({"additionalProperties": false}),
            // No schema, but a value.
            json!({"const": {"properties": {}}}),
            json!({"enum": [{"properties": {}}], "default": {"properties": {}}}),
        ] {
            becomes(same.clone(), same);
        }
        becomes(
            json!({"properties": {"a": true}, "unevaluatedProperties": {"type": "null"}}),
            json!({"properties": {"a": true}, "additionalProperties": {"type": "null"}}),
        );
        becomes(
            json!({"properties": {"a": true}, "unevaluatedProperties": true}),
            json!({"properties": {"a": true}, "additionalProperties": true}),
        );
    }

    #[test]
    fn schemas_of_one_object_allow_what_any_of_them_declares() {
        becomes(
            json!({"allOf": [{"properties": {"a": true}}, {"properties": {"b": {"type": "null"}}}]}),
            json!({"allOf": [
                {"properties": {"a": true, "b": true}, "additionalProperties": false},
                {"properties": {"b": {"type": "null"}, "a": true}, "additionalProperties": false},
            ]}),
        );
        // An alternative is closed by itself, with what is declared beside the alternatives.
        becomes(
            json!({"anyOf": [{"properties": {"a": true}}, {"properties": {"b": true}}]}),
            json!({"anyOf": [
                {"properties": {"a": true}, "additionalProperties": false},
                {"properties": {"b": true}, "additionalProperties": false},
            ]}),
        );
        becomes(
            json!({"properties": {"k": true}, "anyOf": [{"properties": {"a": true}}, {"required": ["k"]}]}),
            json!({
                "properties": {"k": true, "a": true}, "additionalProperties": false,
                "anyOf": [
                    {"properties": {"a": true, "k": true}, "additionalProperties": false},
                    {"required": ["k"], "properties": {"k": true}, "additionalProperties": false},
                ],
            }),
        );
        // One that is open keeps the others open.
        let open = json!({"allOf": [
            {"properties": {"a": true}, "additionalProperties": true}, {"properties": {"b": true}},
        ]});
        becomes(open.clone(), open);
    }

    #[test]
    fn a_definition_is_closed_for_each_of_its_uses() {
        becomes(
            json!({
                "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}}}},
                "properties": {
                    "alone": {"$ref": "#/$defs/A"},
                    "more": {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": true}}]},
                },
            }),
            json!({
                "$defs": {
                    "0": {"properties": {"a": {"$ref": "#/$defs/0"}}, "additionalProperties": false},
                    "1": {
                        "properties": {"a": {"$ref": "#/$defs/0"}, "b": true},
                        "additionalProperties": false,
                    },
                },
                "properties": {
                    "alone": {"$ref": "#/$defs/0"},
                    "more": {"allOf": [
                        {"$ref": "#/$defs/1"},
                        {"properties": {"b": true, "a": true}, "additionalProperties": false},
                    ]},
                },
                "additionalProperties": false,
            }),
        );
        becomes(json!({"$ref": "#/$defs/none"}), json!({"$ref": "#/$defs/none"}));
        becomes(
            json!({"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"type": "null"}}}),
            json!({"$ref": "#/$defs/0", "$defs": {"0": {"type": "null"}}}),
        );
    }

    #[test]
    fn what_is_required_counts_as_declared() {
        becomes(
            json!({"properties": {"a": true}, "required": ["a", "b"]}),
            json!({"properties": {"a": true, "b": true}, "additionalProperties": false, "required": ["a", "b"]}),
        );
        becomes(
            json!({"allOf": [{"properties": {"a": true}}, {"required": ["b"]}]}),
            json!({"allOf": [
                {"properties": {"a": true, "b": true}, "additionalProperties": false},
                {"required": ["b"]},
            ]}),
        );
    }

    #[test]
    fn combinations_without_measure_are_refused() {
        let object = |i: usize| {
            let names: Map<String, Value> =
                (0..300).map(|k| (format!("p{i}_{k}"), Value::Bool(true))).collect();
            json!({"properties": names})
        };
        let all: Vec<Value> = (0..300).map(object).collect();
        let why = closed(&json!({"allOf": all})).unwrap_err();
        assert!(why.contains("combine too many properties"), "{why}");
    }
}
