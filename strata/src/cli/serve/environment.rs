//! Warnings about variables that are named like settings and are not: a misspelt one would be ignored silently.

use super::file::similar;
use super::layers::{command, is_setting, variable};

/// Prefix of the names of all settings.
const PREFIX: &str = "STRATA_";

/// Other variables with that prefix: of the program itself, its tests and its tools.
const OTHERS: [&str; 35] = [
    "STRATA_ASAN_CHILD",
    "STRATA_BROWSER",
    "STRATA_CACHE",
    "STRATA_CHROMIUM",
    "STRATA_CI",
    "STRATA_CPU",
    "STRATA_CUDA",
    "STRATA_ENV_CHILD",
    "STRATA_FIXTURES",
    "STRATA_GEMM",
    "STRATA_KERNELS",
    "STRATA_LIBLLAMA",
    "STRATA_ATTACKED",
    "STRATA_ATTACKS",
    "STRATA_LONG",
    "STRATA_SOAK",
    "STRATA_MUTANT",
    "STRATA_NODE_MODULES",
    "STRATA_NVRTC",
    "STRATA_PAGE",
    "STRATA_PROMETHEUS",
    "STRATA_PYTHON",
    "STRATA_PYTHON_INSTRUCTOR",
    "STRATA_REDIS_SERVER",
    "STRATA_SCHEMATA",
    "STRATA_SHIM_MEMORY",
    "STRATA_SHIM_ORDER",
    "STRATA_SHIM_SANITIZE",
    "STRATA_SHIM_THREADS",
    "STRATA_SMOLLM2",
    "STRATA_SMOLLM2_EAGLE",
    "STRATA_TEST_DEVICE",
    "STRATA_TIKTOKEN",
    "STRATA_TOKENIZER",
    "STRATA_VLLM_BENCH",
];

/// A warning for each name with the prefix that is not a setting. Values are not read.
pub fn unknown(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let command = command();
    let settings = || command.get_arguments().filter(|arg| is_setting(arg));
    let known = |name: &str| settings().any(|arg| variable(arg) == name) || OTHERS.contains(&name);
    let mut unknown: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with(PREFIX) && !known(name) && !of_a_cluster(name))
        .collect();
    unknown.sort();
    let warning = |name: String| {
        let long = name.trim_start_matches(PREFIX).to_lowercase().replace('_', "-");
        // It may be an alias of a flag; the variable has the flag's first name.
        let is = |long: &str| {
            let aliases =
                |arg: &clap::Arg| arg.get_all_aliases().unwrap_or_default().contains(&long);
            settings().find(|arg| arg.get_long() == Some(long) || aliases(arg)).map(variable)
        };
        let similar = || is(similar(&command, &long)?.trim_start_matches("--"));
        match is(&long).or_else(similar) {
            Some(near) => format!("{name} is not a setting and is ignored: did you mean {near}?"),
            None => format!("{name} is not a setting and is ignored: see strata serve --help"),
        }
    };
    unknown.into_iter().map(warning).collect()
}

/// Kubernetes sets these for a service that is called `strata`.
fn of_a_cluster(name: &str) -> bool {
    name.starts_with("STRATA_SERVICE_") || name.starts_with("STRATA_PORT_")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn warnings(names: &[&str]) -> Vec<String> {
        unknown(names.iter().map(|name| name.to_string()))
    }

    #[test]
    fn a_misspelt_setting_is_reported_with_the_nearest_one() {
        let lines =
            warnings(&["STRATA_MAX_NUM_SEQ", "STRATA_POTR", "STRATA_DTYPE", "STRATA_XYZZY"]);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].starts_with("STRATA_DTYPE is not a setting"), "{lines:?}");
        assert!(lines[0].ends_with("did you mean STRATA_PRECISION?"), "{lines:?}");
        assert!(lines[1].ends_with("did you mean STRATA_MAX_NUM_SEQS?"), "{lines:?}");
        assert!(lines[2].ends_with("did you mean STRATA_PORT?"), "{lines:?}");
        assert!(lines[3].ends_with("see strata serve --help"), "{lines:?}");
    }

    #[test]
    fn settings_and_other_known_variables_are_not_reported() {
        let settings = ["STRATA_PORT", "STRATA_API_KEY", "STRATA_MODEL", "STRATA_CONFIG"];
        let others = ["STRATA_CACHE", "STRATA_SERVICE_HOST", "STRATA_PORT_8000_TCP_ADDR", "PATH"];
        assert_eq!(warnings(&settings), [""; 0]);
        assert_eq!(warnings(&others), [""; 0]);
    }

    /// Every variable that a source file names in quotes, this file apart: a comment may name any.
    fn named_in(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if path.is_dir() {
                named_in(&path, found);
            } else if matches!(extension, Some("rs" | "cpp" | "hpp"))
                && !path.ends_with("cli/serve/environment.rs")
            {
                let text = std::fs::read_to_string(&path).unwrap();
                let is_name = |text: &&str| {
                    let plain = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_';
                    text.len() > PREFIX.len() && text.starts_with(PREFIX) && text.bytes().all(plain)
                };
                found.extend(text.split('"').filter(is_name).map(str::to_owned));
            }
        }
    }

    #[test]
    fn the_other_variables_are_those_that_the_sources_name() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(root).unwrap() {
            let dir = entry.unwrap().path();
            if dir.join("Cargo.toml").is_file() {
                ["src", "tests", "shim", "benches", "examples"]
                    .iter()
                    .map(|part| dir.join(part))
                    .filter(|dir| dir.is_dir())
                    .for_each(|dir| named_in(&dir, &mut found));
            }
        }
        let settings: BTreeSet<_> =
            command().get_arguments().filter(|arg| is_setting(arg)).map(variable).collect();
        found.retain(|name| !settings.contains(name));
        let listed: BTreeSet<_> = OTHERS.iter().map(|name| name.to_string()).collect();
        let missing: Vec<_> = found.difference(&listed).collect();
        assert!(missing.is_empty(), "add to OTHERS: {missing:?}");
        let gone: Vec<_> = listed.difference(&found).collect();
        assert!(gone.is_empty(), "remove from OTHERS: {gone:?}");
    }
}
