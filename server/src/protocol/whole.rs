//! Whole numbers as clients write them. JSON has one kind of number, so `16.0` is 16; `16.5` is not a number of tokens.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A kind of whole number.
pub trait Whole: TryFrom<i128> {
    /// Description of the numbers that the type holds, for errors.
    const EXPECTED: &'static str;
}

impl Whole for usize {
    const EXPECTED: &'static str = "a whole number, 0 or above";
}

impl Whole for u32 {
    const EXPECTED: &'static str = "a whole number from 0 to 4294967295";
}

impl Whole for i64 {
    const EXPECTED: &'static str = "a whole number";
}

/// For `deserialize_with`: a whole number, or null for none.
///
/// # Errors
/// Anything else.
pub fn option<'de, D: Deserializer<'de>, T: Whole>(from: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Number<T>>::deserialize(from)?.map(|number| number.0))
}

/// A whole number on its own.
pub struct Number<T>(pub T);

impl<'de, T: Whole> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NumberVisitor(PhantomData)).map(Self)
    }
}

struct NumberVisitor<T>(PhantomData<T>);

impl<T: Whole> Visitor<'_> for NumberVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_u64<E: Error>(self, x: u64) -> Result<T, E> {
        let wrong = |_| E::invalid_value(Unexpected::Unsigned(x), &self);
        T::try_from(i128::from(x)).map_err(wrong)
    }

    fn visit_i64<E: Error>(self, x: i64) -> Result<T, E> {
        T::try_from(i128::from(x)).map_err(|_| E::invalid_value(Unexpected::Signed(x), &self))
    }

    fn visit_f64<E: Error>(self, x: f64) -> Result<T, E> {
        let wrong = || E::invalid_value(Unexpected::Float(x), &self);
        // The conversion rounds towards zero and saturates: a number that is not whole changes.
        let whole = x as i128;
        if whole as f64 != x {
            return Err(wrong());
        }
        T::try_from(whole).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Fields {
        #[serde(deserialize_with = "super::option")]
        n: Option<u32>,
        #[serde(deserialize_with = "super::option")]
        seed: Option<i64>,
    }

    fn parse(body: Value) -> Result<(Option<u32>, Option<i64>), String> {
        let fields: Result<Fields, _> = serde_json::from_value(body);
        fields.map(|fields| (fields.n, fields.seed)).map_err(|why| why.to_string())
    }

    #[test]
    fn a_number_with_a_zero_fraction_is_whole() {
        assert_eq!(parse(json!({"n": 2.0, "seed": -3})), Ok((Some(2), Some(-3))));
        assert_eq!(parse(json!({"n": null})), Ok((None, None)));
        assert_eq!(parse(json!({})), Ok((None, None)));
    }

    #[test]
    fn an_error_says_which_numbers_are_valid() {
        for n in
            [json!(-1), json!(1.5), json!(4_294_967_296_u64), json!(1e300), json!("2"), json!([])]
        {
            let why = parse(json!({"n": n})).unwrap_err();
            assert!(why.contains("a whole number from 0 to 4294967295"), "{why}");
        }
    }
}
