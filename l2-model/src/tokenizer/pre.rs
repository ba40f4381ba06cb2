//! The pre-tokenizers that a GGUF file can name in `tokenizer.ggml.pre`.
//!
//! Before BPE merges, the text is cut into words, and merges never cross a cut. GGUF stores only the *name*
//! of the pre-tokenizer. The meaning of each name is in llama.cpp (`src/llama-vocab.cpp`,
//! `llm_tokenizer_bpe`) and, in another spelling, in the tokenizer.json of the family's published models.
//! Where the two differ (llama.cpp writes `'[sS]` for `(?i:'s)`), the spelling of tokenizer.json is used: its
//! ids are the reference.

use tokenizers::SplitDelimiterBehavior::Isolated;
use tokenizers::normalizers::{NFC, NormalizerWrapper};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::error::{Result, TokenizerError, invalid};

const SUPPORTED: &str =
    "default, gpt-2, smollm, llama-bpe (llama3, llama-v3), qwen2; or tokenizer.ggml.model = llama";

/// Llama 3. Contractions in any case; a word with the one sign before it; digits in threes; punctuation with its
/// newlines; newlines; spaces, of which the last belongs to the next word.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Qwen2 to Qwen3: as Llama 3, but every digit alone.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// llama.cpp's choice for a byte-level vocabulary of unknown origin: each regex cuts the pieces of the one before.
const DEFAULT: [&str; 4] = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

/// One named pre-tokenizer, with its options.
pub(super) struct PreKind {
    pub pre_tokenizer: PreTokenizerWrapper,
    pub normalizer: Option<NormalizerWrapper>,
    /// Whether a word of the vocabulary is taken whole, even if no merges lead to it (Llama 3).
    pub ignore_merges: bool,
    /// Whether a text starts with BOS when the file does not set it.
    pub add_bos: bool,
}

/// Returns the pre-tokenizer of `tokenizer.ggml.pre = name`.
///
/// # Errors
/// [`TokenizerError::Unsupported`] with the name and the list of known ones.
pub(super) fn pre_kind(name: &str) -> Result<PreKind> {
    // ByteLevel has two functions: cut by GPT-2's regex (only if enabled), then spell each byte as one
    // character.
    let spell = || ByteLevel::new(false, true, false).into();
    let gpt2 = || ByteLevel::new(false, true, true).into();
    let plain = |pre_tokenizer| PreKind {
        pre_tokenizer,
        normalizer: None,
        ignore_merges: false,
        add_bos: false,
    };
    Ok(match name {
        "gpt-2" => plain(gpt2()),
        "smollm" => plain(sequence(vec![Digits::new(true).into(), gpt2()])),
        "default" => {
            let mut steps = DEFAULT.iter().map(|regex| split(regex)).collect::<Result<Vec<_>>>()?;
            steps.push(spell());
            plain(sequence(steps))
        }
        "llama-bpe" | "llama3" | "llama-v3" => PreKind {
            ignore_merges: true,
            add_bos: true,
            ..plain(sequence(vec![split(LLAMA3)?, spell()]))
        },
        "qwen2" => PreKind {
            normalizer: Some(NFC.into()),
            ..plain(sequence(vec![split(QWEN2)?, spell()]))
        },
        other => {
            return Err(TokenizerError::Unsupported {
                part: "tokenizer.ggml.pre",
                found: other.to_owned(),
                supported: SUPPORTED,
            });
        }
    })
}

fn split(regex: &str) -> Result<PreTokenizerWrapper> {
    let pattern = SplitPattern::Regex(regex.to_owned());
    Ok(Split::new(pattern, Isolated, false).map_err(invalid)?.into())
}

fn sequence(steps: Vec<PreTokenizerWrapper>) -> PreTokenizerWrapper {
    Sequence::new(steps).into()
}
