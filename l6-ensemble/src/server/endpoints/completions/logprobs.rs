//! Log probabilities as completions tell them: four lists side by side, one entry for each token.

use l2_model::tokenizer::Tokenizer;
use l4_sampler::TokenLogprobs;
use l4_sampler::stop::TextStream;

use crate::server::protocol::completions::CompletionLogprobs;

/// JSON has no infinity. vLLM's word for a token that could not come.
const NEVER: f32 = -9999.0;

/// What a token is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// By its text.
    Texts,
    /// `token_id:17`.
    Ids,
}

/// Where in an answer's text its next token begins, in characters.
#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    /// Makes of the tokens the text that the answer has. None where nobody asks for log probabilities.
    text: Option<TextStream>,
    /// Characters of it.
    passed: usize,
}

impl Cursor {
    /// At the head of an answer that continues a prompt. `special`: special tokens are part of its text.
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
            lists.text_offset.push(self.pass(tokenizer, about.id));
            lists.tokens.push(name(tokenizer, names, about.id));
            lists.token_logprobs.push(Some(finite(about.logprob)));
            let chosen = (about.id, about.logprob);
            let all = about.top.iter().copied().chain([chosen]);
            let named = all.map(|(id, x)| (name(tokenizer, names, id), finite(x)));
            lists.top_logprobs.push(Some(named.collect()));
        }
        lists
    }

    /// Where this token begins; the next one is behind it. A token that goes on with a character begins where that does.
    fn pass(&mut self, tokenizer: &Tokenizer, id: u32) -> usize {
        let Some(stream) = &mut self.text else { return self.passed };
        let text = stream.push(id);
        // Before its own text there may be what stands for bytes that became no character.
        let own = std::str::from_utf8(tokenizer.token_bytes(id).unwrap_or_default()).ok();
        let before = own.and_then(|own| text.strip_suffix(own)).unwrap_or_default();
        let at = self.passed + before.chars().count();
        self.passed += text.chars().count();
        at
    }
}

/// A token's name. One that is a part of a character has no text: its bytes are written out, so that two of them are two.
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
    logprob.max(NEVER)
}
