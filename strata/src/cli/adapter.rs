//! The LoRA adapter of a command that runs one model for one user.

use std::path::PathBuf;

use l1_tensor::Runtime;
use l2_model::ModelConfig;
use l5_scheduler::RequestAdapter;

use super::context::Context;
use super::options::values::count;
use server::words::size;

/// A LoRA adapter, and the maximum rank.
#[derive(Debug, Clone, clap::Args)]
pub struct AdapterArgs {
    /// LoRA adapter to apply to the model: a directory as PEFT writes it, with adapter_config.json and
    /// adapter_model.safetensors
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    #[command(flatten)]
    pub rank: RankOptions,
}

/// The maximum rank of adapters.
#[derive(Debug, Clone, clap::Args)]
pub struct RankOptions {
    /// Maximum rank of a LoRA adapter. Buffers of a step grow with it
    #[arg(long, value_name = "N", default_value = "64", value_parser = count)]
    pub max_lora_rank: usize,
}

impl AdapterArgs {
    /// Maximum rank for which an engine needs buffers. `None`: there is no adapter.
    pub fn max_rank(&self) -> Option<usize> {
        self.adapter.as_ref().map(|_| self.rank.max_lora_rank)
    }

    /// Loads the adapter, if one is given, and reports what it is.
    ///
    /// # Errors
    /// What [`RequestAdapter::open`] reports, with the directory.
    pub fn open(
        &self,
        rt: &Runtime,
        model: &ModelConfig,
        context: &Context,
    ) -> anyhow::Result<Option<RequestAdapter>> {
        let Some(path) = &self.adapter else { return Ok(None) };
        let opened = RequestAdapter::open(rt, path, model, self.rank.max_lora_rank);
        let adapter = opened.map_err(|why| {
            let (shown, why) = (path.display().to_string(), anyhow::Error::from(why));
            match why.to_string().contains(&shown) {
                true => why,
                false => why.context(shown),
            }
        })?;
        context.say(format_args!(
            "{}: LoRA adapter of rank {}, {}",
            path.display(),
            adapter.weights.rank(),
            size(adapter.weights.bytes() as u64)
        ));
        Ok(Some(adapter))
    }
}
