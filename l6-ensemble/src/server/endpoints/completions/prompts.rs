//! The prompts of a request as tokens, each checked before anything is done with any of them.

use std::sync::Arc;

use super::max_tokens;
use crate::server::app::App;
use crate::server::backpressure::room_for;
use crate::server::error::ApiError;
use crate::server::protocol::completions::{CompletionFields, PromptField};
use crate::server::request::Plan;
use crate::server::tokenise::{could_fit, encode, fits};

/// A prompt.
pub(super) struct Prompt {
    /// What the model sees. Shared with the engine.
    pub tokens: Arc<[u32]>,
    /// What the answer's text begins with, if the client wants that.
    pub echo: Option<String>,
}

/// Every prompt of a request, in its order.
///
/// # Errors
/// [`ApiError`] with the path of the prompt that cannot be one, or for too many.
pub(super) async fn read(
    app: &Arc<App>,
    own: &mut CompletionFields,
    plan: &Plan,
) -> Result<Vec<Prompt>, ApiError> {
    let many = match &own.prompt {
        PromptField::Text(_) | PromptField::Ids(_) => 1,
        PromptField::Texts(texts) => texts.len(),
        PromptField::IdLists(lists) => lists.len(),
    };
    let (answers, most) = (many.saturating_mul(plan.samples as usize), app.options.limits.answers);
    if answers > most {
        let message = format!(
            "prompt: {many} prompts with {} answers to each are {answers} answers, and a request may ask for {most}",
            plan.samples
        );
        return Err(ApiError::param("prompt", message));
    }
    plan.bound_logprobs(app, answers)?;
    room_for(app, answers)?;
    let shown = plan.template.stop.special_tokens;
    let mut prompts = Vec::new();
    // A text is not kept beside its tokens.
    let prompt = std::mem::replace(&mut own.prompt, PromptField::Ids(Vec::new()));
    match prompt {
        PromptField::Text(text) => prompts.push(of_text(app, own, shown, text, "prompt").await?),
        PromptField::Ids(ids) => prompts.push(of_ids(app, own, shown, &ids, "prompt")?),
        PromptField::Texts(texts) => {
            for (at, text) in texts.into_iter().enumerate() {
                prompts.push(of_text(app, own, shown, text, &format!("prompt[{at}]")).await?);
                // Each is short work; a hundred of them are not.
                tokio::task::yield_now().await;
            }
        }
        PromptField::IdLists(lists) => {
            for (at, ids) in lists.iter().enumerate() {
                prompts.push(of_ids(app, own, shown, ids, &format!("prompt[{at}]"))?);
            }
        }
    }
    Ok(prompts)
}

async fn of_text(
    app: &Arc<App>,
    own: &CompletionFields,
    shown: bool,
    text: String,
    path: &str,
) -> Result<Prompt, ApiError> {
    could_fit(app, &text, path)?;
    let special = own.add_special_tokens.unwrap_or(true);
    let wanted = own.echo == Some(true);
    let echo = wanted.then(|| text.clone());
    let mut tokens = encode(app, text, special, path).await?;
    let cut = truncate(app, own, tokens.len())?;
    tokens.drain(..cut);
    fits(app, &tokens, path)?;
    // What was cut off is not the prompt any more.
    let echo = match (echo, cut) {
        (None, _) => None,
        (Some(text), 0) => Some(text),
        (Some(_), _) => Some(decode(app, &tokens, shown, path)?),
    };
    Ok(Prompt { tokens: tokens.into(), echo })
}

fn of_ids(
    app: &App,
    own: &CompletionFields,
    shown: bool,
    ids: &[u32],
    path: &str,
) -> Result<Prompt, ApiError> {
    let cut = truncate(app, own, ids.len())?;
    let tokens = ids.get(cut..).unwrap_or_default();
    fits(app, tokens, path)?;
    let vocab = app.engine.model().vocab;
    if let Some((at, id)) = tokens.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
        let path = format!("{path}[{}]", cut + at);
        let message = format!("{path}: there is no token {id}, the model has {vocab}");
        return Err(ApiError::param(path, message));
    }
    let wanted = own.echo == Some(true);
    let echo = wanted.then(|| decode(app, tokens, shown, path)).transpose()?;
    Ok(Prompt { tokens: tokens.into(), echo })
}

/// How many of a prompt's tokens are cut off at its head, as `truncate_prompt_tokens` says.
fn truncate(app: &App, own: &CompletionFields, len: usize) -> Result<usize, ApiError> {
    let kept = match own.truncate_prompt_tokens {
        None => return Ok(0),
        Some(-1) => app.model.max_model_len.saturating_sub(max_tokens(own).max(1)).max(1),
        Some(kept) => match usize::try_from(kept) {
            Ok(kept) if kept > 0 => kept,
            _ => {
                let path = "truncate_prompt_tokens";
                let message = format!("{path}: {kept} should be -1, or 1 or above");
                return Err(ApiError::param(path, message));
            }
        },
    };
    Ok(len.saturating_sub(kept))
}

/// A prompt's text, as the answer continues it, with or without special tokens. Ids that the model has room for and the tokenizer no word have none.
fn decode(app: &App, tokens: &[u32], special: bool, path: &str) -> Result<String, ApiError> {
    let text = app.model.tokenizer.decode(tokens, !special);
    text.map_err(|why| ApiError::param(path, format!("{path}: {why}")))
}
