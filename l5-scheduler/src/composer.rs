//! The composer: which shape the next step has, and which adapter its rows use.
//!
//! A captured step is replayed only for the shape that it was captured with: rows that decode, as many as the captured
//! width. A chunk of a prompt in the step changes the shape, and the step is launched kernel by kernel. A [`Composer`]
//! decides at the beginning of each step which kinds of rows it may have. It knows no blocks and no order: which
//! requests run first, and which are preempted, is the decision of the [`Policy`](crate::Policy). Every composer works
//! with every policy.
//!
//! There are still no two queues, and no second loop: a request has tokens, of which some are computed, and a shape
//! says how many of them a step may take.

mod demand;
mod mixed;
mod stable;
#[cfg(test)]
mod tests;
mod turns;

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::{Adapter, StepPlan};

pub use demand::Demand;
pub use mixed::Mixed;
pub use stable::Stable;
pub(crate) use turns::CurrentTurn;
pub use turns::Turns;

/// Which rows a step may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepShape {
    /// Rows that decode and chunks of prompts, as in vLLM.
    #[default]
    Mixed,
    /// Rows that decode only. No request is admitted.
    DecodeOnly,
    /// Chunks of prompts only, and of tokens that are computed again after a preemption: at most `chunk` tokens, all
    /// requests together. 0: as many as a step takes. Without chunked prefill a prompt is computed in one step, and
    /// `chunk` has no effect.
    Prefill {
        /// Maximum number of tokens.
        chunk: usize,
    },
}

/// Which adapters the rows of a step may have. Requests without an adapter may have rows in every step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdapterTurn<'a> {
    /// Any, several in one step too.
    #[default]
    All,
    /// One: that of the first request with an adapter that gets a row.
    First,
    /// This one.
    Of(&'a Adapter),
}

/// What a step is composed of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Composition<'a> {
    /// Shape of the step.
    pub shape: StepShape,
    /// Adapters of its rows.
    pub turn: AdapterTurn<'a>,
}

/// A step that was applied, as its composer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Applied<'a> {
    /// The step, whose [`shape`](StepPlan::shape) is the one that it was planned with.
    pub step: &'a StepPlan,
    /// The turn that it was planned with.
    pub turn: AdapterTurn<'a>,
}

/// Decides which shape each step has.
///
/// The scheduler asks with [`begin`](Composer::begin) and reports each step that counts with
/// [`applied`](Composer::applied). `begin` changes nothing, so a step that is planned and abandoned leaves no trace, and
/// planning it again gives the same shape. There is one exception. When another step is
/// [planned ahead](crate::Scheduler::plan_ahead) of its end, a step is reported before it has run; if it fails, it has
/// counted.
///
/// A composition without any row gives way, so that no request waits for the composer while the step is empty. The
/// scheduler asks a second time, with a [`Demand`] without a head: the head of the queue cannot be admitted in this
/// step. If the second composition is empty as well, the step is [`StepShape::Mixed`].
///
/// # Example
///
/// A composer that never lets a step decode beside a prompt, and computes prompts first:
///
/// ```
/// use l5_scheduler::composer::{Composer, Composition, Demand, StepShape};
/// use l5_scheduler::{Request, RequestId, Scheduler, SchedulerConfig, Time};
///
/// struct PromptsFirst;
///
/// impl Composer for PromptsFirst {
///     fn name(&self) -> &'static str {
///         "prompts-first"
///     }
///
///     fn begin<'a>(&self, demand: &Demand<'a>) -> Composition<'a> {
///         let prompts = demand.prefilling().next().is_some() || demand.head().is_some();
///         let shape = if prompts { StepShape::Prefill { chunk: 0 } } else { StepShape::DecodeOnly };
///         Composition { shape, ..Composition::default() }
///     }
/// }
///
/// let mut scheduler = Scheduler::new(SchedulerConfig::new(64, 16))?.with_composer(Box::new(PromptsFirst));
/// let request = Request { id: RequestId(0), prompt: vec![7; 40], max_tokens: 4, ..Request::default() };
/// scheduler.add_request(request)?;
/// assert_eq!(scheduler.plan(Time::ZERO).shape, StepShape::Prefill { chunk: 0 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Composer: Send {
    /// Name of the composer, as on the command line.
    fn name(&self) -> &'static str;

    /// Composition of the next step. A function of `demand` and of the steps that were applied.
    fn begin<'a>(&self, demand: &Demand<'a>) -> Composition<'a>;

    /// A step was applied that had rows, or in which requests were preempted or ended.
    fn applied(&mut self, applied: &Applied<'_>) {
        let _ = applied;
    }
}

/// Configuration of a built-in composer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compose {
    /// Prompts beside rows that decode, as in vLLM: [`Mixed`].
    #[default]
    Mixed,
    /// Steps that decode only, with a step of prompts between them: [`Stable`].
    Stable {
        /// Maximum number of steps in a row that decode only while a prompt waits. At least 1.
        max_decode_steps: usize,
        /// Maximum number of tokens of a step of prompts. 0: as many as a step takes.
        #[serde(default)]
        chunk: usize,
    },
}

impl Compose {
    /// [`Compose::Stable`] with its usual values: of 17 steps with a prompt waiting at least 16 decode only (94%).
    pub const STABLE: Self = Self::Stable { max_decode_steps: 16, chunk: 0 };

    /// Creates the composer. With an `adapter_turn` above 0, a step has rows of one adapter only, and another adapter
    /// has its turn after at most that many steps.
    pub fn composer(self, adapter_turn: usize) -> Box<dyn Composer> {
        match self {
            Self::Mixed => Box::new(Mixed::new(adapter_turn)),
            Self::Stable { max_decode_steps, chunk } => {
                Box::new(Stable::new(max_decode_steps, chunk, adapter_turn))
            }
        }
    }
}

impl Compose {
    /// As [`Compose::composer`]; `None` if it decides nothing, because steps are mixed and adapters share them.
    pub(crate) fn decides(self, adapter_turn: usize) -> Option<Box<dyn Composer>> {
        let any = self == Self::Mixed && adapter_turn == 0;
        (!any).then(|| self.composer(adapter_turn))
    }
}

impl fmt::Display for Compose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mixed => "mixed",
            Self::Stable { .. } => "stable",
        })
    }
}

impl FromStr for Compose {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let all = [Self::Mixed, Self::STABLE];
        let found = all.into_iter().find(|compose| compose.to_string() == s);
        found.ok_or_else(|| format!("unknown composition of steps `{s}`: use mixed or stable"))
    }
}
