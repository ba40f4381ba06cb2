//! What is measured: a model with its storage of weights, and perhaps an adapter.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use l1_tensor::{Runtime, WeightStorage};
use l2_model::Decoder;
use l5_scheduler::RequestAdapter;

use super::BenchArgs;
use super::measure::{Rounds, Run, Workload};
use super::on_device;
use crate::cli::args::{ModelArgs, RuntimeArgs};
use crate::cli::context::{Context, warn};
use crate::cli::kv::Kv;
use crate::cli::load::Loaded;

/// A model in memory, as it is measured. A clone is the same model in the same memory.
#[derive(Clone)]
pub(super) struct Subject {
    /// Its name on the command line.
    pub model: String,
    /// Requested storage of its weights.
    pub weights: WeightStorage,
    pub rt: Runtime,
    /// Its weights, shared by the subjects with an adapter and without.
    pub decoder: Arc<Decoder>,
    /// Adapter of every sequence.
    pub adapter: Option<RequestAdapter>,
    /// Time to load the model from the disk.
    pub took: Duration,
    /// Anonymous memory that loading it has added to the process, in bytes; `None` where the system does not say.
    pub resident: Option<i64>,
}

impl Subject {
    /// Loads every model in every storage, each without an adapter, and then with the one of `--adapter`.
    ///
    /// # Errors
    /// What the models and the adapter report.
    pub fn open_all(args: &BenchArgs, context: &Context) -> anyhow::Result<Vec<Self>> {
        let mut all = Vec::new();
        for model in args.models() {
            for weights in &args.weights {
                Self::open(args, &model, *weights, context, &mut all)?;
            }
        }
        Ok(all)
    }

    /// Loads a model.
    ///
    /// # Errors
    /// What the model reports.
    pub fn load(
        args: &BenchArgs,
        model: &str,
        weights: WeightStorage,
        context: &Context,
    ) -> anyhow::Result<Loaded> {
        let runtime = RuntimeArgs { device: args.device.clone(), weights };
        match &args.config {
            Some(config) => Loaded::random(config, &runtime, context),
            None => Loaded::open(&ModelArgs { model: model.to_owned() }, &runtime, context),
        }
    }

    fn open(
        args: &BenchArgs,
        model: &str,
        weights: WeightStorage,
        context: &Context,
        all: &mut Vec<Self>,
    ) -> anyhow::Result<()> {
        let before = anonymous_bytes();
        let Loaded { rt, decoder, took, .. } = Self::load(args, model, weights, context)?;
        let adapter = args.adapter.open(&rt, decoder.config(), context)?;
        let resident = growth(before, anonymous_bytes());
        let storage = decoder.weight_storage();
        let same = |other: &&Self| {
            file(&other.model) == file(model) && other.decoder.weight_storage() == storage
        };
        if let Some(other) = all.iter().find(same) {
            let twice = other.model == model && other.weights == weights;
            warn(match twice {
                true => format!("{model} is given twice, and is measured once"),
                false => format!(
                    "{model} with --weights {weights} has no row of its own: in memory it is what {} with --weights {} \
                     is, {storage}",
                    other.model, other.weights
                ),
            });
            return Ok(());
        }
        let (model, decoder) = (model.to_owned(), Arc::new(decoder));
        let plain = Self { model, weights, rt, decoder, adapter: None, took, resident };
        let adapted = adapter.map(|adapter| Self { adapter: Some(adapter), ..plain.clone() });
        all.extend([Some(plain), adapted].into_iter().flatten());
        Ok(())
    }

    /// Makes the buffers of a workload.
    ///
    /// # Errors
    /// No memory.
    pub fn prepare(
        &self,
        args: &BenchArgs,
        kv: &Kv,
        work: &Workload,
    ) -> anyhow::Result<Box<dyn Rounds + '_>> {
        let Self { rt, decoder, adapter, .. } = self;
        Ok(match rt.gpu() {
            Some(gpu) => {
                let (adapter, eager) = (adapter.as_ref(), args.capture.eager);
                Box::new(on_device::Run::new(gpu, rt, decoder, adapter, &args.kv, work, eager)?)
            }
            None => {
                let adapter = adapter.as_ref().map(|adapter| &adapter.weights);
                Box::new(Run::new(rt, decoder, adapter, kv, work)?)
            }
        })
    }

    /// Name among several: the last `parts` parts of the path, the storage of the weights, the adapter.
    fn label(&self, parts: usize) -> String {
        let name = tail(&self.model, parts);
        let storage = self.decoder.weight_storage();
        match &self.adapter {
            Some(adapter) => format!("{name}, {storage}, {}", adapter.name),
            None => format!("{name}, {storage}"),
        }
    }
}

/// Names of subjects in a comparison: as much of each path as tells all of them apart.
pub(super) fn labels(subjects: &[Subject]) -> Vec<String> {
    let depth = subjects.iter().map(|one| Path::new(&one.model).components().count()).max();
    let of = |parts| subjects.iter().map(|one| one.label(parts)).collect::<Vec<_>>();
    let differ =
        |labels: &Vec<String>| labels.iter().collect::<BTreeSet<_>>().len() == labels.len();
    let depth = depth.unwrap_or(1);
    (1..depth).map(of).find(differ).unwrap_or_else(|| of(depth))
}

/// The last parts of a path.
fn tail(path: &str, parts: usize) -> String {
    let all: Vec<_> = Path::new(path).components().collect();
    let tail: PathBuf = all.iter().skip(all.len().saturating_sub(parts.max(1))).collect();
    tail.display().to_string()
}

/// What tells models apart: the path without links, or else the name.
fn file(model: &str) -> PathBuf {
    Path::new(model).canonicalize().unwrap_or_else(|_| model.into())
}

/// Anonymous memory of this process, in bytes: mapped files do not count, for the system may reclaim their pages at any
/// time. Linux only.
pub(super) fn anonymous_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Bytes by which memory has grown.
pub(super) fn growth(before: Option<u64>, after: Option<u64>) -> Option<i64> {
    Some(after? as i64 - before? as i64)
}
