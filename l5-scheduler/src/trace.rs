//! Recording of a run, step by step: one JSON object a line, written while the engine runs and read afterwards.
//!
//! ```json
//! {"strata_trace":1,"model":"tiny-llama","policy":"fcfs","config":{"block_size":16,..}}
//! {"event":"arrived","id":0,"at_us":0.0,"prompt":8,"max_tokens":4,"priority":0}
//! {"event":"step","step":0,"at_us":12.4,"rows":[[0,"prefill",8,0,0,1]],"running":1,"waiting":0,"preempted":[],
//!  "finished":[],"kv":{"total":63,"free":62,"findable":0,"leased":0},
//!  "phases_us":{"plan":2.1,"pack":0.8,"forward":310.0,"sample":4.0,"apply":1.1}}
//! {"event":"first_token","id":0,"step":0,"at_us":330.4}
//! {"event":"ended","id":0,"step":3,"at_us":1290.0,"reason":"length","tokens":4,"preemptions":0}
//! ```
//!
//! (A step is one line; it is broken here to fit.) The first line is the header. A row is
//! `[request, phase, tokens of this step, tokens computed before, tokens hit in the cache, new tokens]`. Times and
//! durations are microseconds of the engine's clock; `running`, `waiting` and `kv` are as they were while the step ran.
//! [`Event`] has every field. A step with leases or transfers of keys and values has them in `kv_events`, and a request of
//! a job has it in `job`:
//!
//! ```json
//! {"event":"arrived","id":7,..,"job":"j1"}
//! {"event":"step","step":9,..,"kv_events":[{"leased":{"lease":0,"id":7,"at_us":1290.0,"blocks":4,"job":"j1","tool":"ls"}},
//!  {"lease_ended":{"lease":0,"at_us":2290.0,"why":"expired"}},{"load":{"id":8,"from":0,"to":256}}],..}
//! ```
//!
//! Readers of older recordings and of newer ones ignore fields that they do not know, so the version is the same.
//!
//! The recording of an ensemble has version 2. Its header names the lanes, each line of an engine ends with its `lane` and
//! `replica`, and a [`RouteEvent`] is the way of a request through the router and the doors:
//!
//! ```json
//! {"strata_trace":2,"ensemble":"pair","lanes":["one","two"]}
//! {"event":"engine","model":"tiny-llama","policy":"strict-priority","config":{..},"lane":"one","replica":0}
//! {"event":"route","route":0,"lane":"one","replica":0,"requests":[0],"arrived_us":10.0,"decided_us":60.2,..}
//! {"event":"arrived","id":0,"at_us":108.5,"prompt":8,"max_tokens":4,"priority":0,"lane":"one","replica":0}
//! ```
//!
//! * [`Recorder`] writes such a file, as an engine's [`StepObserver`](crate::StepObserver);
//! * [`read`] reads it event by event, [`Run`] makes a timeline of each request: when it was queued, computed or
//!   preempted;
//! * [`EnsembleRecorder`] writes the engines and the router of one server to one file, [`EnsembleRun`] has a [`Run`] of
//!   each engine and the way of each request to it;
//! * [`Summary`] is a run in a few numbers, [`write_chrome`] converts a run for Perfetto.

mod chrome;
mod ensemble;
mod ensemble_chrome;
mod ensemble_recorder;
mod ensemble_run;
mod event;
mod holds;
mod kv;
mod queue;
mod read;
mod recorder;
mod run;
mod summary;

pub use chrome::write_chrome;
pub use ensemble::{EnsembleHeader, QuoteEvent, RefusedEvent, RouteEvent, ShadowEvent};
pub use ensemble_chrome::write_ensemble_chrome;
pub use ensemble_recorder::EnsembleRecorder;
pub use ensemble_run::{EngineRun, EnsembleRun, RequestAt, Route};
pub use event::{
    Event, Header, Kv, PhasesUs, Row, RowDrafts, RowPhase, StepEvent, TracedConfig, TracedShape,
};
pub use holds::{Hold, Transfer, TransferKind, rows};
pub use kv::KvEvent;
pub use read::{EnsembleReader, Reader, Recorded, TraceError, open, read};
pub use recorder::Recorder;
pub use run::{Lane, LaneEnd, Run, Span, SpanKind, StepSpan};
pub use summary::{Percentiles, Summary};
