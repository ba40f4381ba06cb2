//! Layer 6 of Strata: an ensemble of specialists.
//!
//! A server may serve several models, and run several engines for one of them. This layer decides which engine serves a
//! request, and whether it is admitted. It knows neither HTTP nor a clock:
//!
//! * [`Replica`]: one engine with a model, a KV pool and a queue of its own; an
//!   [`EngineHandle`](l5_scheduler::EngineHandle) is one;
//! * [`Lane`]: the replicas of one model. A request goes to the replica with the least work;
//! * [`EnsembleConfig`]: the file that lists the specialists, each of which has a lane;
//! * [`router`]: chooses the lane of a request from its text;
//! * [`failover`]: what becomes of a request whose replica failed before the first output;
//! * [`quote`], [`admission`], [`replica_choice`], [`affinity`]: what a request can expect of a replica, and whether it is
//!   admitted;
//! * [`slo`], [`breaker`], [`escalation`], [`control`]: what a lane keeps of its promises, and what follows if it does
//!   not;
//! * [`shadow`], [`calibration`], [`tune`]: duplicates on the second choice, what they show, and thresholds from it;
//! * [`sim`]: all lanes, their admission and their schedulers under a virtual clock.

pub mod admission;
pub mod affinity;
pub mod breaker;
pub mod calibration;
pub mod config;
pub mod control;
pub mod duration_text;
pub mod escalation;
pub mod failover;
mod lane;
pub mod quote;
mod replica;
pub mod replica_choice;
pub mod router;
pub mod shadow;
pub mod sim;
pub mod slo;
pub mod tune;

pub use config::{
    ConfigError, ConfigErrors, DecodingPolicy, EngineChange, EnsembleConfig, NeedsRestart,
    RemoteApi, RemoteConfig, SpecialistConfig,
};
pub use lane::{Lane, LaneId, NoReplica, ReplicaChoice};
pub use replica::{Replica, ReplicaId};
