//! What an executor knows of a request that tokens do not say.

/// Remark of an executor on a row, for the retention: it comes with the tokens that finish a request
/// ([`StepOutput::note`](crate::StepOutput::note)), and reaches [`Retention::retain`](crate::Retention::retain) and the
/// [`Lease`](crate::Lease).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Name of the tool that the output calls, or of the command that it would run. How long a tool takes decides when
    /// the next step of the job comes.
    pub tool: Option<String>,
}
