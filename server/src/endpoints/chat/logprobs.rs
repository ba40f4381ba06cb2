//! Log probabilities in the format of chats: token by token, with the bytes of each.

use l2_model::tokenizer::Tokenizer;
use l4_sampler::TokenLogprobs;

use crate::protocol::chat::{ChatLogprobs, ChatTokenLogprob, ChatTopLogprob};

/// Log probability that stands for minus infinity, which JSON does not have: OpenAI's value.
const MIN_LOGPROB: f32 = -9999.0;

/// Formats the log probabilities of some tokens.
pub fn logprobs(tokenizer: &Tokenizer, tokens: &[TokenLogprobs]) -> ChatLogprobs {
    let entry = |(id, logprob): (u32, f32)| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        // A token may end in the middle of a character: `bytes` has what `token` cannot show.
        let token = String::from_utf8_lossy(bytes).into_owned();
        ChatTopLogprob { token, logprob: logprob.max(MIN_LOGPROB), bytes: Some(bytes.to_vec()) }
    };
    let token = |of: &TokenLogprobs| {
        let ChatTopLogprob { token, logprob, bytes } = entry((of.id, of.logprob));
        let top_logprobs = of.top.iter().copied().map(entry).collect();
        ChatTokenLogprob { token, logprob, bytes, top_logprobs }
    };
    ChatLogprobs { content: tokens.iter().map(token).collect() }
}
