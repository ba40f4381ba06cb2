//! Layer 6 of Strata: an ensemble of specialists.
//!
//! A server may serve several models, and run several engines for one of them. This layer decides which engine serves a
//! request, and knows neither HTTP nor a clock:
//!
//! * [`Replica`]: one engine with a model, a KV pool and a queue of its own; an
//!   [`EngineHandle`](l5_scheduler::EngineHandle) is one;
//! * [`Lane`]: the replicas of one model. A request goes to the replica with the least work.
//!
//! * [`EnsembleConfig`]: the file that lists the specialists, each of which has a lane;
//! * [`router`]: chooses the lane of a request from its text;
//! * [`slo`], [`breaker`], [`escalation`], [`control`]: what a lane keeps of its promises, and what follows if it does
//!   not;
//! * [`shadow`], [`calibration`], [`tune`]: duplicates on the second choice, what they show, and thresholds from it.

pub mod breaker;
pub mod calibration;
pub mod config;
pub mod control;
pub mod duration_text;
pub mod escalation;
pub mod router;
pub mod shadow;
pub mod slo;
pub mod tune;
//! * [`admission`]: which requests a replica accepts, by the [`quote`] of what they can expect; and [`replica_choice`].
//! * [`Lane`]: the replicas of one model. A request goes to the replica with the least work;
//! * [`admission`]: which requests a replica accepts, by the [`quote`] of what they can expect; and [`replica_choice`];
//! * [`sim`]: all lanes, their admission and their schedulers under a virtual clock.
//!
//! The router, which chooses the lane of a request, is above the lanes.

pub mod admission;
mod lane;
pub mod quote;
mod replica;
pub mod replica_choice;
pub mod sim;

pub use config::{ConfigError, ConfigErrors, DecodingPolicy, EnsembleConfig, SpecialistConfig};
pub use lane::{Lane, LaneId, NoReplica};
pub use replica::{Replica, ReplicaId};
