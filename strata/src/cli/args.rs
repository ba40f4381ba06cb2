//! Options that several subcommands share: model, device and token ids.

use std::str::FromStr;

use l1_tensor::{DeviceRequest, PrecisionRequest, Runtime, RuntimeOptions, WeightStorage};

use super::options::{Switch, values};

/// The model.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct ModelArgs {
    /// The model: smollm2, a hub id (org/name), a Hugging Face directory, or a .gguf file
    #[arg(short, long, value_name = "MODEL", default_value = "smollm2")]
    pub model: String,
}

/// The device, and how it computes.
#[derive(Debug, Clone, clap::Args)]
pub struct DeviceArgs {
    /// The device: auto, cpu, cuda or cuda:N. Without a GPU, STRATA_CUDA=emulated runs the CUDA kernels on the
    /// processor: correct but slow
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceRequest,
    /// Data type of activations in matrix multiplications: auto, f32 (exact) or bf16 (fast)
    #[arg(long, alias = "dtype", value_name = "PRECISION", default_value = "auto", value_parser = values::precision)]
    pub precision: PrecisionRequest,
    /// Number of threads that compute a forward pass, from 1 to 1024 [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// On CUDA: make results independent of the other requests in the batch, which is slower. On a CPU they always are
    #[arg(long, switch("false"))]
    pub batch_invariant: bool,
}

/// The device, how it computes, and what the weights are in memory.
#[derive(Debug, Clone, clap::Args)]
pub struct RuntimeArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Weights of a quantised checkpoint in memory: packed (codes and scales as in the file), bf16 (expanded, 2 bytes a
    /// weight), or auto: packed on processors with AVX-512 BF16, where it is fast. The results are the same bits. On
    /// CUDA only NVFP4 can be packed (auto: unless --precision f32 or --batch-invariant is set); others are bf16
    #[arg(long, value_name = "STORAGE", default_value_t)]
    pub weights: WeightStorage,
}

impl RuntimeArgs {
    /// Opens the device and starts its threads.
    ///
    /// # Errors
    /// A device or an instruction set that this machine lacks.
    pub fn runtime(&self) -> l1_tensor::Result<Runtime> {
        Runtime::new(self.options())
    }

    /// The options of a [`Runtime`].
    pub fn options(&self) -> RuntimeOptions {
        let DeviceArgs { device, precision, threads, batch_invariant } = self.device;
        let threads = threads.map(usize::from);
        RuntimeOptions {
            device,
            precision,
            threads,
            isa: None,
            batch_invariant,
            weights: self.weights,
        }
    }
}

/// Token ids, in any of these forms: `1,2,3`, `1 2 3`, `[1, 2, 3]`.
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
