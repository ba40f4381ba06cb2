//! Free-form JSON values: schemas, variables of templates, further fields of messages.
//!
//! They are parsed like [`Value`]s, and counted: a number in such a tree takes 36 times the bytes of its text, so the
//! number of values of a body is limited.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Maximum size of all trees of a body, in values. A list or an object counts as several, since it has capacity for
/// some.
const MAX_VALUES: u32 = 200_000;
const VALUES_PER_CONTAINER: u32 = 5;

thread_local! {
    /// Number of values that the body which this thread parses may still have.
    static REMAINING: Cell<u32> = const { Cell::new(MAX_VALUES) };
}

/// Resets the limit of this thread: a body is about to be parsed, or parsed once more.
pub fn reset_limit() {
    REMAINING.set(MAX_VALUES);
}

/// Parses a value from text, within the limit of the body that is being parsed.
///
/// # Errors
/// Invalid JSON, or more values than a body may have.
pub fn from_text(text: &str) -> Result<Value, String> {
    match serde_json::from_str::<Tree>(text) {
        Ok(Tree(value)) => Ok(value),
        Err(why) => Err(why.to_string()),
    }
}

/// A [`Value`] that counts towards the limit of its body.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree(pub Value);

/// For `deserialize_with`: a value, or null for none.
///
/// # Errors
/// More values than a body may have.
pub fn option<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Ok(Option::<Tree>::deserialize(from)?.map(|tree| tree.0))
}

/// For `deserialize_with`: an object, or null for none.
///
/// # Errors
/// Another kind of value, or more values than a body may have.
pub fn object<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Map<String, Value>>, D::Error> {
    Ok(Option::<Object>::deserialize(from)?.map(|object| object.0))
}

/// For `deserialize_with`: a list of objects, or null for none.
///
/// # Errors
/// As [`object`].
pub fn objects<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<Map<String, Value>>>, D::Error> {
    let objects = Option::<Vec<Object>>::deserialize(from)?;
    Ok(objects.map(|objects| objects.into_iter().map(|object| object.0).collect()))
}

fn count<E: Error>(values: u32) -> Result<(), E> {
    match REMAINING.get().checked_sub(values) {
        Some(left) => {
            REMAINING.set(left);
            Ok(())
        }
        None => Err(E::custom(format!(
            "schemas, template variables and other free-form values must have at most {MAX_VALUES} values in total; \
             a list or an object counts as {VALUES_PER_CONTAINER}"
        ))),
    }
}

/// Estimated number of bytes of a value as text.
pub fn written(value: &Value) -> usize {
    match value {
        Value::String(text) => 2 + text.len(),
        Value::Array(list) => list.iter().map(written).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(k, v)| k.len() + written(v) + 4).sum(),
        _ => 8,
    }
}

struct Object(Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object, A::Error> {
                fields(map).map(Object)
            }
        }
        from.deserialize_map(Fields)
    }
}

fn fields<'de, A: MapAccess<'de>>(mut map: A) -> Result<Map<String, Value>, A::Error> {
    let mut all = Map::new();
    while let Some((name, Tree(value))) = map.next_entry()? {
        all.insert(name, value);
    }
    Ok(all)
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Any).map(Self)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        count(1)?;
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        count(1)?;
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        count(1)?;
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        count(1)?;
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        count(1)?;
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        count(1)?;
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        count(1)?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        count(VALUES_PER_CONTAINER)?;
        let mut all = Vec::new();
        while let Some(Tree(value)) = list.next_element()? {
            all.push(value);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        count(VALUES_PER_CONTAINER)?;
        fields(map).map(Value::Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_the_value_that_it_is_written_as() {
        let text = r#"{"a": [null, true, -1, 18446744073709551615, 0.5, "x", {"b": []}], "c": {}}"#;
        reset_limit();
        let tree: Tree = serde_json::from_str(text).unwrap();
        assert_eq!(tree.0, serde_json::from_str::<Value>(text).unwrap());
        // Six scalars, and five that are lists or objects.
        assert_eq!(REMAINING.get(), MAX_VALUES - 6 - 5 * VALUES_PER_CONTAINER);
    }

    #[test]
    fn a_body_has_so_many_values_and_no_more() {
        let list = |n: u32| format!("[{}0]", "0,".repeat((n - VALUES_PER_CONTAINER) as usize - 1));
        reset_limit();
        assert!(serde_json::from_str::<Tree>(&list(MAX_VALUES)).is_ok());
        let why = serde_json::from_str::<Tree>("0").unwrap_err().to_string();
        assert!(why.contains("200000"), "{why}");
        reset_limit();
        assert!(serde_json::from_str::<Tree>(&list(MAX_VALUES + 1)).is_err());
    }
}
