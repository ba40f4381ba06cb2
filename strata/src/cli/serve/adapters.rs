//! LoRA adapters of the command line.

use std::collections::BTreeSet;

use anyhow::Context as _;
use l5_scheduler::AdapterRegistry;
use l5_scheduler::adapters::AdapterOptions;
use l5_scheduler::engine::EngineModel;
use server::Adapters;

use super::flags::{Flags, LoraFlags};
use super::lanes::Parts;
use super::layers::{Layers, Source};
use super::values::LoraModule;
use crate::cli::error::CliError;

/// Turns adapters on where some are listed and nothing says whether there may be any.
pub fn turn_on(layers: &mut Layers) {
    let listed = layers.get("lora_modules").filter(|(modules, _)| !modules.is_empty());
    if let Some(source) = listed.map(|(_, source)| source.clone()) {
        layers.add_below("enable_lora", "true".to_owned(), source);
    }
}

/// Refuses flags that contradict each other.
///
/// # Errors
/// [`CliError::Usage`]: adapters are listed and turned off, or two have one name.
pub fn check(layers: &Layers, lora: &LoraFlags) -> Result<(), CliError> {
    let modules = &lora.lora_modules;
    if !modules.is_empty() && !lora.enable_lora {
        let source = |id| layers.get(id).map(|(_, source)| source.to_string()).unwrap_or_default();
        return Err(CliError::Usage(format!(
            "--lora-modules ({}) lists adapters, and --enable-lora=false ({}) turns them off: remove one of the two",
            source("lora_modules"),
            source("enable_lora"),
        )));
    }
    let mut names = BTreeSet::new();
    match modules.iter().find(|module| !names.insert(&module.name)) {
        None => Ok(()),
        Some(LoraModule { name, .. }) => Err(CliError::Usage(format!(
            "--lora-modules has two adapters with the name `{name}`: give each a name of its own"
        ))),
    }
}

/// A warning for each flag that has no effect, since no adapters are taken.
pub fn without_effect(layers: &Layers, lora: &LoraFlags) -> Vec<String> {
    let ids = ["max_lora_rank", "max_cpu_loras", "max_lora_wait"];
    let given = ids.into_iter().filter(|_| !lora.on()).filter_map(|id| Some((id, layers.get(id)?)));
    let warning = |(id, (_, source)): (&str, (_, &Source))| {
        let flag = id.replace('_', "-");
        format!("--{flag} ({source}) has no effect without --enable-lora or --lora-modules")
    };
    given.map(warning).collect()
}

/// The LoRA adapters of a server of one model: those of --lora-modules are loaded. `names` are those of the model.
///
/// # Errors
/// An adapter that cannot be loaded, or that is for another model.
pub fn load(
    flags: &Flags,
    model: &EngineModel,
    names: &[&String],
    parts: &Parts,
) -> anyhow::Result<Adapters> {
    let lora = &flags.lora;
    let options = AdapterOptions {
        max_lora_rank: lora.rank.max_lora_rank,
        max_cpu_loras: lora.max_cpu_loras,
        reserved_names: names.iter().map(|name| (*name).clone()).collect(),
        ..AdapterOptions::default()
    };
    let registry = AdapterRegistry::new(model, options);
    for LoraModule { name, path, base_model_name } in &lora.lora_modules {
        if let Some(base) = base_model_name.as_ref().filter(|base| !names.contains(base)) {
            let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
            let names = names.join(", ");
            let why = format!("--lora-modules {name}: base_model_name must be {names}, got {base}");
            return Err(CliError::Usage(why).into());
        }
        registry.load(name, path, false).context("--lora-modules")?;
    }
    Ok(Adapters::new(registry, parts.background.clone(), lora.max_lora_wait))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::layers::{command, given};
    use super::*;

    fn checked(words: &[&str], environment: &[(&str, &str)]) -> Result<LoraFlags, String> {
        let given = given(&command().try_get_matches_from(words).unwrap());
        let environment = |name: &str| {
            let found = environment.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let mut layers = Layers::new(given, environment).map_err(|why| why.to_string())?;
        turn_on(&mut layers);
        let flags = layers.flags().map_err(|why| why.to_string())?;
        check(&layers, &flags.lora).map_err(|why| why.to_string())?;
        Ok(flags.lora)
    }

    #[test]
    fn adapters_that_are_listed_are_on_unless_they_are_turned_off_which_is_refused() {
        assert!(!checked(&[], &[]).unwrap().enable_lora);
        for words in [&["--lora-modules", "a=b"][..], &["--lora-modules", "a=b", "--enable-lora"]] {
            assert!(checked(words, &[]).unwrap().enable_lora, "{words:?}");
        }
        let off = checked(&["--lora-modules", "a=b", "--enable-lora=false"], &[]).unwrap_err();
        assert!(off.contains("--enable-lora=false (command line)"), "{off}");
        let modules = [("STRATA_LORA_MODULES", "a=b")];
        let off = checked(&["--enable-lora=false"], &modules).unwrap_err();
        assert!(off.contains("--lora-modules (STRATA_LORA_MODULES)"), "{off}");
        assert!(!checked(&["--enable-lora=false"], &[]).unwrap().enable_lora);
    }

    #[test]
    fn two_adapters_with_one_name_are_refused_with_what_to_change() {
        let twice = checked(&["--lora-modules", "a=b", "c=d", "a=e"], &[]).unwrap_err();
        assert!(twice.contains("`a`") && twice.contains("a name of its own"), "{twice}");
        assert!(!twice.contains("unload"), "{twice}");
        checked(&["--lora-modules", "a=b", "c=b"], &[]).unwrap();
    }
}
