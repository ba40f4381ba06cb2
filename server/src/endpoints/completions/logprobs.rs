//! Log probabilities in the format of completions: four lists side by side, with one entry for each token.

use l2_model::tokenizer::Tokenizer;
use l4_sampler::TokenLogprobs;
use l4_sampler::stop::TextStream;

use crate::protocol::completions::CompletionLogprobs;

/// Log probability that stands for minus infinity, which JSON does not have: vLLM's value.
const MIN_LOGPROB: f32 = -9999.0;

/// Name of a token in the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// By its text.
    Texts,
    /// `token_id:17`.
    Ids,
}

/// Offset of a choice's next token in its text, in characters.
#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    /// Decodes the tokens to the text of the choice. `None`: the request has no log probabilities.
    text: Option<TextStream>,
    /// Offset, in characters.
    offset: usize,
}

impl Cursor {
    /// Begins at the start of a choice, which continues a prompt. `special`: special tokens are part of the text.
    pub fn begin(&mut self, tokenizer: &Tokenizer, prompt: &[u32], special: bool) {
        self.text = Some(TextStream::continuing(Some(tokenizer), prompt, special));
    }

    /// The lists for the next tokens.
    pub fn table(
        &mut self,
        tokenizer: &Tokenizer,
        names: Names,
        tokens: &[TokenLogprobs],
    ) -> CompletionLogprobs {
        let mut lists = CompletionLogprobs::default();
        for about in tokens {
            lists.text_offset.push(self.advance(tokenizer, about.id));
            lists.tokens.push(name(tokenizer, names, about.id));
            lists.token_logprobs.push(Some(finite(about.logprob)));
            let chosen = (about.id, about.logprob);
            let all = about.top.iter().copied().chain([chosen]);
            let named = all.map(|(id, x)| (name(tokenizer, names, id), finite(x)));
            lists.top_logprobs.push(Some(named.collect()));
        }
        lists
    }

    /// Returns the offset of a token, and advances to the next one. A token that continues a character has the offset
    /// of that character.
    fn advance(&mut self, tokenizer: &Tokenizer, id: u32) -> usize {
        let Some(stream) = &mut self.text else { return self.offset };
        let text = stream.push(id);
        // Before its own text there may be replacement characters for bytes of tokens before it.
        let own = std::str::from_utf8(tokenizer.token_bytes(id).unwrap_or_default()).ok();
        let before = own.and_then(|own| text.strip_suffix(own)).unwrap_or_default();
        let at = self.offset + before.chars().count();
        self.offset += text.chars().count();
        at
    }
}

/// Name of a token. A token that is part of a character has no text: its bytes are its name, so that different tokens
/// have different names.
fn name(tokenizer: &Tokenizer, names: Names, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    // A row of logits may be longer than the vocabulary.
    if names == Names::Ids || bytes.is_empty() {
        return format!("token_id:{id}");
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let written: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{written}")
        }
    }
}

fn finite(logprob: f32) -> f32 {
    logprob.max(MIN_LOGPROB)
}
