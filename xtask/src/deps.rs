//! `cargo x deps`: checks Cargo.lock against `deny.toml`, in a moment and without network.
//!
//! cargo-deny checks more (licences of all platforms, known vulnerabilities), takes minutes to install, and fetches a
//! database. What can be checked from the lock file and from the crates that are on this machine anyway is checked
//! here, by the same rules from the same file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Deserialize;

use course::shell::{cargo, program, quiet_output, root};

/// Prefix of the source of a crate from a registry. cargo-deny checks which registry it is.
const REGISTRY: &str = "registry+";

/// Check licences, duplicates and sources of all dependencies against deny.toml
#[derive(Args)]
pub struct DepsArgs {}

/// The part of `deny.toml` that is checked here.
#[derive(Deserialize)]
struct Policy {
    licenses: Licences,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    #[serde(default)]
    skip: Vec<Skip>,
}

/// One of several versions of a crate that is known.
#[derive(Deserialize)]
struct Skip {
    /// `name@version`.
    #[serde(rename = "crate")]
    spec: String,
}

/// A crate in `Cargo.lock`.
#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    /// None: it is of this workspace.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

/// A crate as `cargo metadata` has it.
#[derive(Deserialize)]
struct Described {
    name: String,
    version: String,
    license: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Described>,
}

/// Run the command.
pub fn run(_: &DepsArgs) -> Result<()> {
    let policy = policy()?;
    let lock = lock()?;
    let described = described()?;
    let mut faults = duplicates(&lock.package, &policy.bans.skip);
    faults.extend(foreign(&lock.package));
    faults.extend(licences(&described.packages, &policy.licenses));
    let list = faults.iter().map(|fault| format!("\n  {fault}")).collect::<String>();
    ensure!(faults.is_empty(), "dependencies violate deny.toml:{list}");
    println!(
        "{} crates: sources and versions are as deny.toml allows; so are the licences of the {} that this machine builds.",
        lock.package.len(),
        described.packages.len()
    );
    println!(
        "Not checked: known vulnerabilities, licences of other platforms (`cargo deny check`)."
    );
    Ok(())
}

fn policy() -> Result<Policy> {
    let text = fs::read_to_string(root().join("deny.toml")).context("deny.toml")?;
    toml::from_str(&text).context("deny.toml")
}

fn lock() -> Result<Lock> {
    let text = fs::read_to_string(root().join("Cargo.lock")).context("Cargo.lock")?;
    toml::from_str(&text).context("Cargo.lock")
}

/// The crates that are built on this machine: those of other platforms may not be here.
fn described() -> Result<Metadata> {
    let version = quiet_output(program("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let mut metadata = cargo("metadata");
    metadata.args(["--locked", "--format-version", "1", "--filter-platform"]);
    let text = quiet_output(metadata.arg(host.context("rustc does not say its host")?))?;
    serde_json::from_str(&text).context("cargo metadata")
}

/// Crates of several versions, but for those that are known; and known ones that are gone.
fn duplicates(locked: &[Locked], skip: &[Skip]) -> Vec<String> {
    let spec = |package: &Locked| format!("{}@{}", package.name, package.version);
    let mut known: BTreeSet<&str> = skip.iter().map(|skip| skip.spec.as_str()).collect();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // Crates of this workspace do not count: a learner's workspace has some twice.
    for package in locked.iter().filter(|package| package.source.is_some()) {
        if !known.remove(spec(package).as_str()) {
            versions.entry(&package.name).or_default().push(&package.version);
        }
    }
    let several = versions.iter().filter(|(_, versions)| versions.len() > 1);
    let mut faults: Vec<String> = several
        .map(|(name, versions)| {
            format!(
                "{name} has versions {}: find one that all can use (`cargo tree -i {name}@VERSION`), or name \
                 the older ones in deny.toml under `skip`",
                versions.join(", ")
            )
        })
        .collect();
    faults.extend(known.into_iter().map(|gone| {
        format!("{gone} is not in Cargo.lock any more: remove it from `skip` in deny.toml")
    }));
    faults
}

/// Crates that come from elsewhere than the registry.
fn foreign(locked: &[Locked]) -> Vec<String> {
    let is_foreign = |source: &str| !source.starts_with(REGISTRY);
    let elsewhere = |package: &&Locked| package.source.as_deref().is_some_and(is_foreign);
    let fault = |package: &Locked| {
        let source = package.source.as_deref().unwrap_or_default();
        format!("{} {} comes from {source}, not from the registry", package.name, package.version)
    };
    locked.iter().filter(elsewhere).map(fault).collect()
}

/// Crates under a licence that is not allowed.
fn licences(described: &[Described], rules: &Licences) -> Vec<String> {
    let mut faults = Vec::new();
    for package in described {
        let own = rules.exceptions.iter().filter(|exception| exception.name == package.name);
        let own: BTreeSet<&str> =
            own.flat_map(|exception| &exception.allow).map(String::as_str).collect();
        let allowed = |licence: &str| rules.allow.contains(licence) || own.contains(licence);
        let licence = package.license.as_deref().unwrap_or("no licence");
        if !satisfied(licence, &allowed) {
            let (name, version) = (&package.name, &package.version);
            faults.push(format!(
                "{name} {version} is under {licence}, which deny.toml does not allow"
            ));
        }
    }
    faults
}

/// Whether an SPDX expression is met. AND binds stronger than OR; `/` is an old way to write OR.
fn satisfied(expression: &str, allowed: &impl Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let met = any_of(&mut rest, allowed);
    met && rest.is_empty()
}

fn any_of(words: &mut &[&str], allowed: &impl Fn(&str) -> bool) -> bool {
    let mut met = all_of(words, allowed);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        met |= all_of(words, allowed);
    }
    met
}

fn all_of(words: &mut &[&str], allowed: &impl Fn(&str) -> bool) -> bool {
    let mut met = one(words, allowed);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut &[&str], allowed: &impl Fn(&str) -> bool) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let met = any_of(words, allowed);
            match *words {
                [")", rest @ ..] => {
                    *words = rest;
                    met
                }
                _ => false,
            }
        }
        [licence, "WITH", exception, rest @ ..] => {
            *words = rest;
            allowed(&format!("{licence} WITH {exception}"))
        }
        [licence, rest @ ..] => {
            *words = rest;
            allowed(licence)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_expression_is_met_as_spdx_says() {
        let allowed = |licence: &str| ["MIT", "ISC", "Zlib"].contains(&licence);
        for met in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "MIT AND ISC",
            "(GPL-3.0 OR MIT) AND ISC",
            "GPL-3.0 AND X OR MIT",
            "Apache-2.0 WITH LLVM-exception OR Zlib",
        ] {
            assert!(satisfied(met, &allowed), "{met}");
        }
        for unmet in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR ISC) AND GPL-3.0",
            "MIT WITH some-exception",
            "no licence",
            "",
            "(MIT",
            "MIT)",
        ] {
            assert!(!satisfied(unmet, &allowed), "{unmet}");
        }
    }

    fn locked(name: &str, version: &str, source: &str) -> Locked {
        Locked { name: name.into(), version: version.into(), source: Some(source.into()) }
    }

    #[test]
    fn a_new_duplicate_is_a_fault_and_so_is_a_known_one_that_is_gone() {
        let crates =
            [("a", "1.0.0"), ("a", "2.0.0"), ("b", "1.0.0")].map(|(n, v)| locked(n, v, REGISTRY));
        let skip =
            |specs: &[&str]| specs.iter().map(|s| Skip { spec: s.to_string() }).collect::<Vec<_>>();
        assert_eq!(duplicates(&crates, &skip(&["a@1.0.0"])), [""; 0]);
        let new = duplicates(&crates, &[]);
        assert!(new.len() == 1 && new[0].starts_with("a has versions 1.0.0, 2.0.0"), "{new:?}");
        let gone = duplicates(&crates, &skip(&["a@1.0.0", "b@0.9.0"]));
        assert!(gone.len() == 1 && gone[0].starts_with("b@0.9.0 is not in Cargo.lock"), "{gone:?}");
    }

    #[test]
    fn a_crate_from_a_repository_is_a_fault() {
        let crates = [locked("a", "1.0.0", REGISTRY), locked("b", "1.0.0", "git+ssh://x/b#1")];
        let faults = foreign(&crates);
        assert!(
            faults.len() == 1 && faults[0].starts_with("b 1.0.0 comes from git+"),
            "{faults:?}"
        );
    }

    #[test]
    fn an_exception_is_for_one_crate() {
        let rules = Licences {
            allow: ["MIT".to_owned()].into(),
            exceptions: vec![Exception { name: "a".into(), allow: ["MPL-2.0".to_owned()].into() }],
        };
        let described = |name: &str, licence: Option<&str>| Described {
            name: name.into(),
            version: "1.0.0".into(),
            license: licence.map(str::to_owned),
        };
        let crates = [
            described("a", Some("MPL-2.0")),
            described("b", Some("MPL-2.0")),
            described("c", None),
            described("d", Some("MIT")),
        ];
        let faults = licences(&crates, &rules);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("b 1.0.0 is under MPL-2.0"), "{faults:?}");
        assert!(faults[1].starts_with("c 1.0.0 is under no licence"), "{faults:?}");
    }

    #[test]
    fn the_lock_file_keeps_to_the_policy() {
        let (policy, lock) = (policy().unwrap(), lock().unwrap());
        assert_eq!(duplicates(&lock.package, &policy.bans.skip), [""; 0]);
        assert_eq!(foreign(&lock.package), [""; 0]);
    }
}
