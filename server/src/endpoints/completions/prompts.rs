//! Prompts of a request as tokens. All are checked before the first is submitted.

use std::sync::Arc;

use super::max_tokens;
use crate::error::ApiError;
use crate::model::ServedModel;
use crate::protocol::completions::{CompletionFields, PromptField};
use crate::request::{Generation, Plan};

/// A prompt.
pub(super) struct Prompt {
    /// Tokens, shared with the engine.
    pub tokens: Arc<[u32]>,
    /// Text of the prompt, with `echo`.
    pub echo: Option<String>,
}

/// Reads every prompt of a request, in order.
///
/// # Errors
/// [`ApiError`] with the path of an invalid prompt, or for too many.
pub(super) async fn read(
    generation: &Generation,
    own: &mut CompletionFields,
    plan: &Plan,
) -> Result<Vec<Prompt>, ApiError> {
    let many = match &own.prompt {
        PromptField::Text(_) | PromptField::Ids(_) => 1,
        PromptField::Texts(texts) => texts.len(),
        PromptField::IdLists(lists) => lists.len(),
    };
    let (choices, most) =
        (many.saturating_mul(plan.samples as usize), generation.rules.max_choices);
    if choices > most {
        let message = format!(
            "`prompt`: {many} prompts with {} choices each are {choices} choices, but a request may have at most \
             {most}",
            plan.samples
        );
        return Err(ApiError::param("prompt", message));
    }
    plan.check_num_logprobs(&generation.model, choices)?;
    generation.admission.room_for(choices)?;
    let shown = plan.template.stop.special_tokens;
    let mut prompts = Vec::new();
    // A text is not kept beside its tokens.
    let prompt = std::mem::replace(&mut own.prompt, PromptField::Ids(Vec::new()));
    match prompt {
        PromptField::Text(text) => {
            prompts.push(of_text(generation, own, shown, text, "prompt").await?)
        }
        PromptField::Ids(ids) => prompts.push(of_ids(generation, own, shown, &ids, "prompt")?),
        PromptField::Texts(texts) => {
            for (at, text) in texts.into_iter().enumerate() {
                prompts
                    .push(of_text(generation, own, shown, text, &format!("prompt[{at}]")).await?);
                // A hundred prompts must not block the thread at once.
                tokio::task::yield_now().await;
            }
        }
        PromptField::IdLists(lists) => {
            for (at, ids) in lists.iter().enumerate() {
                prompts.push(of_ids(generation, own, shown, ids, &format!("prompt[{at}]"))?);
            }
        }
    }
    Ok(prompts)
}

async fn of_text(
    generation: &Generation,
    own: &CompletionFields,
    shown: bool,
    text: String,
    path: &str,
) -> Result<Prompt, ApiError> {
    let encoder = &generation.encoder;
    encoder.check_text(&text, path)?;
    let special = own.add_special_tokens.unwrap_or(true);
    let wanted = own.echo == Some(true);
    let echo = wanted.then(|| text.clone());
    let mut tokens = encoder.encode(text, special, path).await?;
    let cut = truncate(&generation.model, own, tokens.len())?;
    tokens.drain(..cut);
    encoder.check_prompt(&tokens, path)?;
    // What was cut off is not the prompt any more.
    let echo = match (echo, cut) {
        (None, _) => None,
        (Some(text), 0) => Some(text),
        (Some(_), _) => Some(decode(&generation.model, &tokens, shown, path)?),
    };
    Ok(Prompt { tokens: tokens.into(), echo })
}

fn of_ids(
    generation: &Generation,
    own: &CompletionFields,
    shown: bool,
    ids: &[u32],
    path: &str,
) -> Result<Prompt, ApiError> {
    let cut = truncate(&generation.model, own, ids.len())?;
    let tokens = ids.get(cut..).unwrap_or_default();
    generation.encoder.check_prompt(tokens, path)?;
    let vocab = generation.rules.vocab;
    if let Some((at, id)) = tokens.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
        let path = format!("{path}[{}]", cut + at);
        let message = format!("`{path}` must be a token id below {vocab}, got {id}");
        return Err(ApiError::param(path, message));
    }
    let wanted = own.echo == Some(true);
    let echo = wanted.then(|| decode(&generation.model, tokens, shown, path)).transpose()?;
    Ok(Prompt { tokens: tokens.into(), echo })
}

/// Number of tokens that `truncate_prompt_tokens` removes at the beginning of a prompt.
fn truncate(model: &ServedModel, own: &CompletionFields, len: usize) -> Result<usize, ApiError> {
    let kept = match own.truncate_prompt_tokens {
        None => return Ok(0),
        Some(-1) => model.max_model_len.saturating_sub(max_tokens(own).max(1)).max(1),
        Some(kept) => match usize::try_from(kept) {
            Ok(kept) if kept > 0 => kept,
            _ => {
                let path = "truncate_prompt_tokens";
                let message = format!("`{path}` must be -1, or at least 1, got {kept}");
                return Err(ApiError::param(path, message));
            }
        },
    };
    Ok(len.saturating_sub(kept))
}

/// Text of a prompt, with or without special tokens. An id above the tokenizer's vocabulary has none.
fn decode(
    model: &ServedModel,
    tokens: &[u32],
    special: bool,
    path: &str,
) -> Result<String, ApiError> {
    let text = model.tokenizer.decode(tokens, !special);
    text.map_err(|why| ApiError::param(path, format!("{path}: {why}")))
}
