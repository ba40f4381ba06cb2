//! Options that several subcommands share.

use std::str::FromStr;

use l1_tensor::{DeviceRequest, PrecisionRequest, Runtime, RuntimeOptions};

/// Which model.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    /// smollm2, a hub id (org/name), a Hugging Face directory, or a .gguf file
    #[arg(short, long, value_name = "MODEL", default_value = "smollm2")]
    pub model: String,
}

/// What to run it on.
#[derive(Debug, Clone, clap::Args)]
pub struct RuntimeArgs {
    /// auto, cpu, cuda or cuda:N. Without a GPU, STRATA_CUDA=emulated lets the processor run the CUDA kernels: slow, but
    /// right
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceRequest,
    /// How activations enter a matmul: auto, f32 (exact) or bf16 (fast)
    #[arg(long, value_name = "PRECISION", default_value = "auto")]
    pub precision: PrecisionRequest,
    /// Threads that work on one forward pass [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// On CUDA: an answer's bits do not depend on the requests beside it, where that is slower. A CPU keeps this always
    #[arg(long)]
    pub batch_invariant: bool,
}

impl RuntimeArgs {
    /// The device, with its threads started.
    ///
    /// # Errors
    /// A device or an instruction set that is not here.
    pub fn runtime(&self) -> l1_tensor::Result<Runtime> {
        Runtime::new(self.options())
    }

    /// The same, for whoever makes the runtime.
    pub fn options(&self) -> RuntimeOptions {
        RuntimeOptions {
            device: self.device,
            precision: self.precision,
            threads: self.threads.map(usize::from),
            isa: None,
            batch_invariant: self.batch_invariant,
        }
    }
}

/// Token ids as typed by hand or by a script: `1,2,3`, `1 2 3`, `[1, 2, 3]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

impl FromStr for TokenIds {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let list = s.trim();
        let inner = list.strip_prefix('[').and_then(|l| l.strip_suffix(']'));
        let separated = |c: char| c == ',' || c.is_whitespace();
        let words = inner.unwrap_or(list).split(separated).filter(|word| !word.is_empty());
        let id = |word: &str| {
            word.parse().map_err(|_| {
                format!("`{word}` is not a token id: write ids as in 1,2,3, each below 2^32")
            })
        };
        words.map(id).collect::<Result<_, _>>().map(TokenIds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_are_read_as_people_and_scripts_write_them() {
        for text in ["1,2,3", "1 2 3", " 1, 2,\n3 ", "[1, 2, 3]", "1,2,3,"] {
            assert_eq!(text.parse(), Ok(TokenIds(vec![1, 2, 3])), "{text}");
        }
        assert_eq!("".parse(), Ok(TokenIds(vec![])));
        assert_eq!("4294967295".parse(), Ok(TokenIds(vec![u32::MAX])));
    }

    #[test]
    fn what_is_not_a_token_id_is_named() {
        for (text, word) in
            [("1,x,3", "`x`"), ("-1", "`-1`"), ("4294967296", "`4294967296`"), ("[1", "`[1`")]
        {
            let error = text.parse::<TokenIds>().unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
