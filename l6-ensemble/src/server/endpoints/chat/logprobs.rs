//! Log probabilities as chats tell them: token by token, with the bytes of each.

use l2_model::tokenizer::Tokenizer;
use l4_sampler::TokenLogprobs;

use crate::server::protocol::chat::{ChatLogprobs, ChatTokenLogprob, ChatTopLogprob};

/// Stands for a probability of nothing: JSON has no infinity, and OpenAI's API uses this number.
const NEVER: f32 = -9999.0;

/// What the model thought of some tokens.
pub fn logprobs(tokenizer: &Tokenizer, tokens: &[TokenLogprobs]) -> ChatLogprobs {
    let told = |(id, logprob): (u32, f32)| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        // A token may end in the middle of a character: `bytes` has what `token` cannot show.
        let token = String::from_utf8_lossy(bytes).into_owned();
        ChatTopLogprob { token, logprob: logprob.max(NEVER), bytes: Some(bytes.to_vec()) }
    };
    let token = |of: &TokenLogprobs| {
        let ChatTopLogprob { token, logprob, bytes } = told((of.id, of.logprob));
        let top_logprobs = of.top.iter().copied().map(told).collect();
        ChatTokenLogprob { token, logprob, bytes, top_logprobs }
    };
    ChatLogprobs { content: tokens.iter().map(token).collect() }
}
