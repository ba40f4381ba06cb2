//! Chat completions as one object.

use super::Chat;
use super::format::{Parts, message};
use super::logprobs::logprobs;
use crate::choices::ChoiceDelta;
use crate::protocol::chat::{ChatChoice, ChatCompletion};
use crate::protocol::common::Usage;

/// The object around whole choices.
pub(super) fn completion(chat: Chat, outputs: Vec<ChoiceDelta>, usage: Usage) -> ChatCompletion {
    let choices = outputs.into_iter().map(|output| choice(&chat, output)).collect();
    ChatCompletion {
        id: chat.id,
        object: "chat.completion",
        created: chat.created,
        model: chat.model.name().into(),
        choices,
        usage,
        prompt_token_ids: chat.token_ids.then_some(chat.prompt),
    }
}

fn choice(chat: &Chat, output: ChoiceDelta) -> ChatChoice {
    let ChoiceDelta { index, events, tokens, logprobs: of_tokens } = output;
    let Parts { delta, end, .. } = Parts::of(events);
    let end = end.map(|(finish, stop, calls)| chat.end(finish, stop, calls, false));
    let (finish_reason, stop_reason) = end.unzip();
    ChatChoice {
        index,
        message: message(delta),
        logprobs: chat.logprobs.then(|| logprobs(&chat.model.tokenizer, &of_tokens)),
        finish_reason,
        stop_reason: stop_reason.flatten(),
        token_ids: chat.token_ids.then_some(tokens),
    }
}
