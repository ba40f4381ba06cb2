//! Speculation of a specialist: the table `speculative_config`, with the fields of `--speculative-config`.

use l5_scheduler::speculation::{SpeculationError, SpeculativeConfig};
use toml::Value;

use super::reader::Reader;
use super::section;

/// Name of the table.
const FIELD: &str = "speculative_config";

/// Reads the table. Every field that is wrong by itself is an error; then the first that contradicts others.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<SpeculativeConfig> {
    let table = reader.table(FIELD)?;
    let wrong = section::field_errors::<SpeculativeConfig>(&table);
    for error in &wrong {
        let path = if error.path.is_empty() {
            FIELD.to_owned()
        } else {
            format!("{FIELD}.{}", error.path)
        };
        reader.error(&path, &error.what);
    }
    if !wrong.is_empty() {
        return None;
    }
    let config: SpeculativeConfig = Value::Table(table).try_into().ok()?;
    let Err(why) = config.validate() else { return Some(config) };
    let (field, what) = described(&why);
    reader.error(&format!("{FIELD}{field}"), what);
    None
}

/// An error as one of this file: the field behind the table's name, and what is wrong with it.
fn described(why: &SpeculationError) -> (String, String) {
    match why {
        SpeculationError::OutOfRange { name, expected, got } => {
            (format!(".{name}"), format!("must be {expected}, got {got}"))
        }
        SpeculationError::Missing { method, name, why } => {
            (format!(".{name}"), format!("is missing: method {method} needs {why}"))
        }
        SpeculationError::OfOtherMethod { name, of, method } => {
            let what = format!("is a field of {of}, and the method is {method}: remove it");
            (format!(".{name}"), what)
        }
        why => (String::new(), format!("is invalid: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::EnsembleConfig;
    use l5_scheduler::speculation::{SpeculativeConfig, WindowMode};

    fn parsed(table: &str) -> Result<Option<SpeculativeConfig>, String> {
        let file = format!("model = \"m\"\n[[specialist]]\nname = \"a\"\n{table}");
        let config = EnsembleConfig::parse(&file).map_err(|errors| errors.to_string())?;
        Ok(config.specialists[0].speculative_config.clone())
    }

    #[test]
    fn a_specialist_speculates_as_the_flag_with_the_same_fields_would() {
        assert_eq!(parsed(""), Ok(None));
        let table = r#"speculative_config = { method = "ngram", num_speculative_tokens = 4, window = "fixed" }"#;
        let flag = r#"{"method": "ngram", "num_speculative_tokens": 4, "window": "fixed"}"#;
        let config = parsed(table).unwrap().unwrap();
        assert_eq!(config, SpeculativeConfig::from_json(flag).unwrap());
        assert_eq!(config.window, WindowMode::Fixed);
    }

    #[test]
    fn every_error_names_its_field() {
        for (fields, errors) in [
            (
                r#"method = "ngram", num_speculative_tokens = 0"#,
                "`specialist.a.speculative_config.num_speculative_tokens` must be from 1 to 64, got 0",
            ),
            (
                r#"method = "ngram""#,
                "`specialist.a.speculative_config.num_speculative_tokens` is missing",
            ),
            (
                r#"num_speculative_tokens = 3"#,
                "`specialist.a.speculative_config` must have `method`",
            ),
            (
                r#"method = "ngram", num_speculative_tokens = 3, model = "m""#,
                "`specialist.a.speculative_config.model` is a field of methods draft_model, eagle,",
            ),
            (
                r#"method = "guess", num_speculative_tokens = 3, n = 1"#,
                "`specialist.a.speculative_config.method` is unknown: the names here are ngram,",
            ),
            (
                r#"method = "guess", num_speculative_tokens = 3, n = 1"#,
                "`specialist.a.speculative_config.n` is unknown: the fields here are method,",
            ),
        ] {
            let found = parsed(&format!("speculative_config = {{ {fields} }}")).unwrap_err();
            assert!(found.contains(errors), "{fields}: {found}");
        }
    }

    #[test]
    fn a_specialist_without_engines_here_cannot_speculate() {
        let remote = r#"
            replicas = 0
            remotes = [{ url = "http://h", model = "m" }]
            speculative_config = { method = "ngram", num_speculative_tokens = 3 }
        "#;
        let why = parsed(remote).unwrap_err();
        assert!(why.contains("`specialist.a.speculative_config` is for engines of this"), "{why}");
    }
}
