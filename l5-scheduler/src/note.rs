//! What an executor knows of a request that tokens do not say.

/// Remark of an executor on a row, for the retention. It may come with any step of a request
/// ([`StepOutput::note`](crate::StepOutput::note)) and is kept until the request ends, also when that is preempted; of
/// several notes the last one counts. When the request has finished, the note reaches
/// [`Retention::retain`](crate::Retention::retain) and the [`Lease`](crate::Lease).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Name of the tool that the output calls, or of the command that it would run. How long a tool takes decides when
    /// the next step of the job comes.
    ///
    /// The runner of the model notes it with the row that finishes a step of a job, see
    /// [`CalledTool`](l4_sampler::output::CalledTool).
    pub tool: Option<String>,
    /// Shell commands, or other code, that the tool runs; `None` if that is not known, or the tool is no such tool. Of a
    /// long one the beginning is enough ([`MAX_COMMAND_BYTES`](l4_sampler::output::MAX_COMMAND_BYTES)).
    pub command: Option<String>,
}
