//! Whether a valid ensemble file can be served here, without reading weights or asking another machine.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use l2_model::ModelFiles;
use l2_model::tokenizer::Tokenizer;
use l6_ensemble::router::{Classifier, REJECT, Tripwire};
use l6_ensemble::{EnsembleConfig, SpecialistConfig};

use crate::hub;

/// What a check of this machine found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Why the file cannot be served, each with the path of its field.
    pub problems: Vec<String>,
    /// What is no error, and probably not what was meant.
    pub warnings: Vec<String>,
    /// What will happen at the start.
    pub notes: Vec<String>,
}

/// Looks for the models, the classifier and the API keys that the file names.
pub fn verify(
    config: &EnsembleConfig,
    options: &hub::Options,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Findings {
    let mut found = Findings::default();
    models(config, options, &mut found);
    for own in &config.specialists {
        for (at, remote) in own.remotes.iter().enumerate() {
            let Some(name) = remote.api_key_env.as_deref() else { continue };
            if environment(name).is_none_or(|key| key.is_empty()) {
                found.problems.push(format!(
                    "`specialist.{}.remotes[{at}].api_key_env` names the environment variable {name}, which is not set",
                    own.name
                ));
            }
        }
    }
    router(config, &mut found);
    found
}

/// Each model once, under the first specialist that names it, and what drafts for it.
fn models(config: &EnsembleConfig, options: &hub::Options, found: &mut Findings) {
    let mut models: BTreeMap<&str, Option<(ModelFiles, Tokenizer)>> = BTreeMap::new();
    for SpecialistConfig { name, model, .. } in &config.specialists {
        if models.contains_key(model.as_str()) {
            continue;
        }
        let problem = |why: String| format!("`specialist.{name}.model` is `{model}`: {why}");
        let mut here = None;
        match hub::find(model, options) {
            Err(why) => found.problems.push(problem(why.to_string())),
            Ok(None) if options.offline => {
                found.notes.push(format!("the model {model} is not here, and downloads are off"));
            }
            Ok(None) => {
                found.notes.push(format!("the model {model} is not here: it will be downloaded"))
            }
            Ok(Some(source)) => {
                let read = ModelFiles::open(source.path()).and_then(|files| {
                    let tokenizer = files.tokenizer()?;
                    Ok((files, tokenizer))
                });
                match read {
                    Ok(read) => here = Some(read),
                    Err(why) => found.problems.push(problem(why.to_string())),
                }
            }
        }
        models.insert(model, here);
    }
    for own in &config.specialists {
        let SpecialistConfig { name, model, max_model_len, speculative_config, .. } = own;
        let Some((files, tokenizer)) = models.get(model.as_str()).and_then(Option::as_ref) else {
            continue;
        };
        let context = files.config().max_context;
        if let Some(length) = max_model_len.filter(|length| *length > context) {
            found.problems.push(format!(
                "`specialist.{name}.max_model_len` must be at most the context of the model, which is {context}, got \
                 {length}"
            ));
        }
        let drafts = speculative_config.as_ref();
        let drafts = drafts.map(|config| config.check_files(files.config(), Some(tokenizer)));
        if let Some(Err(why)) = drafts {
            found.problems.push(format!("`specialist.{name}.speculative_config`: {why}"));
        }
    }
}

/// The classifier, and classes that nothing decides for.
fn router(config: &EnsembleConfig, found: &mut Findings) {
    let classifier = match config.router.classifier.load() {
        Ok(classifier) => classifier,
        Err(why) => {
            found.problems.push(format!("`router.classifier` {why}"));
            return;
        }
    };
    let mut given: BTreeSet<String> = BTreeSet::new();
    if let Some(classifier) = &classifier {
        given.extend(classifier.classes().iter().map(ToString::to_string));
    }
    given.remove(REJECT);
    let rules = Tripwire::ALL.map(|tripwire| config.router.threshold(tripwire));
    given.extend(rules.into_iter().filter(|rule| rule.enabled).map(|rule| rule.class));
    let intents = config.router.intents();
    let classes = intents.into_iter().filter_map(|intent| config.router.intent_class(intent));
    given.extend(classes.map(str::to_owned));
    let served_by = |class: &String| given.contains(class);
    for own in &config.specialists {
        // The file need not state the class of its own name: a specialist may be a fallback, or have other classes.
        let falls_back = |to: &Option<String>| to.as_deref() == Some(own.name.as_str());
        let reached = own.classes.iter().any(served_by)
            || falls_back(&config.fallback)
            || config.specialists.iter().any(|other| falls_back(&other.fallback));
        let matters = |class: &&String| **class != own.name || !reached;
        for class in own.classes.iter().filter(|class| !served_by(class)).filter(matters) {
            let all: Vec<&str> = given.iter().map(String::as_str).collect();
            found.warnings.push(format!(
                "`specialist.{}.classes` has `{class}`, which the classifier ({}), the rules and the intents never \
                 give. They give: {}",
                own.name,
                config.router.classifier,
                all.join(", ")
            ));
        }
    }
    for (tripwire, own) in &config.router.tripwires {
        let Some(class) = &own.class else { continue };
        if !config.serves(class) {
            found.warnings.push(format!(
                "`router.tripwires.{tripwire}.class` is `{class}`, which no specialist serves: the rule decides nothing"
            ));
        }
    }
}
