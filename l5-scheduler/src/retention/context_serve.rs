//! `context-serve`: blocks of an agent's step are held if the command that the step calls is short.

mod command;
mod estimate;
mod features;
mod line;
mod posterior;
mod rules;
mod student_t;
mod trees;

use l4_sampler::output::command_name;
use l4_sampler::philox::{DrawKey, Purpose};

use super::gaps::Gaps;
use super::tools::called_name;
use super::{Continuum, Retain, Ttl};
use crate::{JobKey, LeaseId, Note, PolicyContext, PolicyEvent, RequestView, Retention};
use estimate::Estimate;
use features::Features;
use trees::Trees;

pub use trees::TreesError;

/// Shortest time for which a lease is made, in seconds.
const SHORTEST_LEASE: f64 = 0.01;

/// Holds the blocks of a step of a job that calls a fast tool, and frees those of one that calls a slow tool at once.
/// Four estimators are asked in turn, until one knows:
///
/// | estimator | knows | fast | slow |
/// |---|---|---|---|
/// | rules | commands by name | `ls` and its like: 3 s | builds, tests, installations, a `sleep` of more than 2 s |
/// | posterior | tools with 8 recorded pauses | 95% of pauses, at most 3 s | a median of more than 2 s |
/// | trees | every command | 3 s, if the probability of more than 2 s is at most 0.2 | if it is at least 0.8 |
/// | fallback | every tool | | |
///
/// Where the one that knows says neither, and with the fallback, blocks are held for the time to live of [`Continuum`].
/// Pauses are recorded, and leases end for other requests, as there. A step that calls no known tool leaves no lease,
/// and neither does a job's last one.
///
/// Three classes of tools and four estimators in this order are an idea of ContextServe; what each of them looks at is
/// not from there.
///
/// # Example
///
/// ```
/// use l5_scheduler::retention::{ContextServe, Ttl, TreesError};
/// use l5_scheduler::{Scheduler, SchedulerConfig};
///
/// let retention = ContextServe::new(Ttl::Fixed);
/// let scheduler = Scheduler::new(SchedulerConfig::new(64, 16))?.with_retention(Box::new(retention));
/// let other = ContextServe::with_trees(Ttl::Fixed, "{}");
/// assert!(matches!(other, Err(TreesError::Malformed(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ContextServe {
    /// Records of pauses, time to live, and the order in which leases end.
    continuum: Continuum,
    trees: Trees,
}

impl ContextServe {
    /// Creates the retention. `ttl` is that of calls whose duration is uncertain.
    pub fn new(ttl: Ttl) -> Self {
        Self { continuum: Continuum::new(ttl), trees: Trees::built_in() }
    }

    /// Creates the retention with other trees than this program's. `trees` is JSON, as
    /// `fixtures/reference/make_tool_trees.py` writes it: the names of the features, `base` and `rate` of the model, and
    /// of each tree the nodes, `[feature, threshold, left, right]` or, for a leaf, `[value]`. The log odds that a call
    /// takes longer than 2 s are `base`, plus `rate` times the sum of the values of the leaves.
    ///
    /// # Errors
    /// [`TreesError`] if they are no trees on the features of this program.
    pub fn with_trees(ttl: Ttl, trees: &str) -> Result<Self, TreesError> {
        Ok(Self { continuum: Continuum::new(ttl), trees: Trees::read(trees)? })
    }

    /// Estimate of the first estimator that knows. `pauses` are those of the tool, `uniform` is a random number.
    fn estimate(&self, call: &Features, pauses: &[f64], uniform: f64) -> Estimate {
        rules::estimate(call)
            .or_else(|| posterior::estimate(pauses, uniform))
            .or_else(|| self.trees.estimate(call))
            .unwrap_or(Estimate::Uncertain)
    }
}

/// Tool whose pauses are recorded: the command that runs, if the function that is called runs any command.
fn recorded_tool<'a>(tool: &'a str, note: &'a Note) -> &'a str {
    note.command.as_deref().and_then(command_name).unwrap_or(tool)
}

/// A random number of a step of a job, from 0 to 1. It follows from the two alone, so the same jobs get the same
/// schedule. The step is told by its number of tokens: each begins with the one before.
fn uniform(job: &JobKey, finished: &RequestView<'_>) -> f64 {
    let key = DrawKey { seed: seed(job), sample: 0, position: finished.num_tokens() as u32 };
    key.uniform(Purpose::Draw)
}

/// Seed of a job, from its key.
fn seed(job: &JobKey) -> u64 {
    let tenant = job.tenant.as_deref();
    // The two bytes between the texts, of which no text has the first, tell whose end is whose beginning.
    let between = [0xff, u8::from(tenant.is_some())];
    fnv1a(tenant.into_iter().flat_map(str::bytes).chain(between).chain(job.id.bytes()))
}

/// FNV-1a hash (Fowler, Noll and Vo). Unlike the standard library's, it will always be the same.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Retention for ContextServe {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        note: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        let (Some(name), Some(note), Some(job)) =
            (called_name(finished, note), note, finished.job_key())
        else {
            self.continuum.begin_pause(finished, None, context.now);
            return Retain::Free;
        };
        let recorded = Note { tool: Some(recorded_tool(name, note).to_owned()), command: None };
        let tool = self.continuum.begin_pause(finished, Some(&recorded), context.now);
        let pauses = self.continuum.pauses_of(tool);
        let call = Features::of(note.command.as_deref().unwrap_or(name));
        let recent = pauses.map_or(&[][..], Gaps::sorted);
        let seconds = match self.estimate(&call, recent, uniform(job, finished)) {
            Estimate::Fast(seconds) => seconds,
            Estimate::Slow => 0.0,
            Estimate::Uncertain => self.continuum.seconds(finished, pauses, context),
        };
        match seconds > SHORTEST_LEASE {
            true => Retain::LeaseUntil(context.now + seconds),
            false => Retain::Free,
        }
    }

    fn lease_for(
        &self,
        needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        self.continuum.lease_for(needy, named, context)
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, context: &PolicyContext<'_>) {
        self.continuum.observe(event, context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_estimator_that_knows_is_right() {
        let retention = ContextServe::new(Ttl::Fixed);
        let estimate = |text, pauses: &[f64]| retention.estimate(&Features::of(text), pauses, 0.5);
        assert_eq!(estimate("ls", &[60.0; 20]), Estimate::Fast(3.0), "rules come first");
        assert_eq!(estimate("python x.py", &[60.0; 20]), Estimate::Slow);
        let Estimate::Fast(seconds) = estimate("python x.py", &[0.2; 20]) else { panic!() };
        assert!(seconds < 1.0, "then recorded pauses: {seconds}");
        assert_eq!(estimate("grep foo f", &[60.0; 7]), Estimate::Fast(3.0), "then the trees");
        assert_eq!(estimate("get_weather", &[0.2; 7]), Estimate::Uncertain, "then nothing");
    }

    #[test]
    fn jobs_of_tenants_have_different_random_numbers() {
        let seed = |tenant: Option<&str>, id: &str| {
            seed(&JobKey { tenant: tenant.map(str::to_owned), id: id.to_owned() })
        };
        let seeds = [
            seed(None, "a"),
            seed(Some(""), "a"),
            seed(Some("a"), ""),
            seed(Some("b"), "a"),
            seed(None, "b"),
        ];
        for (n, one) in seeds.iter().enumerate() {
            assert!(!seeds[n + 1..].contains(one), "{seeds:?}");
        }
        // Published values.
        assert_eq!(fnv1a("a".bytes()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a("foobar".bytes()), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_function_that_runs_commands_is_recorded_by_command() {
        let note = |command: Option<&str>| Note { tool: None, command: command.map(str::to_owned) };
        assert_eq!(recorded_tool("bash", &note(Some("cd src && python3 x.py"))), "python3");
        assert_eq!(recorded_tool("bash", &note(Some("# nothing"))), "bash");
        assert_eq!(recorded_tool("search", &note(None)), "search");
    }
}
