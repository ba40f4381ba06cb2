//! A replica on another machine.

use std::sync::Arc;

use l4_sampler::guide::{CacheStats, CompiledGuide, GuideSpec};
use l5_scheduler::engine::{ModelFacts, relay_config};
use l5_scheduler::{
    Engine, EngineError, EngineHandle, EngineRequest, Load, RequestId, ResponseStream,
    SchedulerConfig, SubmitError,
};
use l6_ensemble::{RemoteConfig, Replica};

use super::error::StartRemoteError;
use super::health;
use super::peer::{Peer, UpGauge};
use super::relay::RemoteRelay;
use super::runtime::RemoteRuntime;

/// A replica of a lane that is a server on another machine. While that cannot be reached, it takes no requests and says
/// that it has [`ended`](Replica::ended), and its requests in flight fail; it comes back by itself.
pub struct RemoteReplica {
    engine: EngineHandle,
    peer: Arc<Peer>,
}

/// What a remote replica has in common with the engines of its lane.
pub struct RemoteLimits {
    /// The model, which must be that of the server.
    pub facts: ModelFacts,
    /// Maximum number of tokens of a request.
    pub max_model_len: usize,
    /// Maximum number of requests that wait here.
    pub max_num_waiting: usize,
    /// Whether it is the only replica of its lane. Then requests wait here also while the server is down.
    pub alone: bool,
}

impl RemoteReplica {
    /// Starts the relay to a server and checks whether it is up. `title` names the replica in the log. Returns the
    /// replica and the engine that relays its requests.
    ///
    /// # Errors
    /// [`StartRemoteError`]. A server that is down is no error.
    pub fn start(
        config: &RemoteConfig,
        limits: RemoteLimits,
        runtime: &RemoteRuntime,
        title: String,
        up: UpGauge,
    ) -> Result<(Self, Engine), StartRemoteError> {
        let RemoteLimits { facts, max_model_len, max_num_waiting, alone } = limits;
        let peer = Arc::new(Peer::new(config, facts.tokenizer.clone(), title, up)?);
        runtime.block_on(peer.check());
        let relay = RemoteRelay::new(peer.clone(), runtime.clone());
        let scheduler = relay_config(max_model_len, config.max_num_seqs);
        let engine = Engine::start_relay(relay, scheduler, facts, max_num_waiting)?;
        if !alone {
            let handle = engine.handle().clone();
            // An engine that has ended has no requests.
            peer.set_on_down(Box::new(move |why| _ = handle.fail_waiting(why)));
        }
        runtime.handle().spawn(health::watch(Arc::downgrade(&peer)));
        Ok((Self { engine: engine.handle().clone(), peer }, engine))
    }

    /// Whether the server can be reached.
    fn reachable(&self) -> Result<(), EngineError> {
        self.peer.down().map_or(Ok(()), |why| Err(EngineError::Unreachable(why)))
    }
}

impl Replica for RemoteReplica {
    fn submit(
        &self,
        requests: Vec<EngineRequest>,
        samples: u32,
    ) -> Result<Vec<ResponseStream>, SubmitError> {
        self.reachable()?;
        for request in &requests {
            self.peer.wire.check(request).map_err(SubmitError::NotRelayed)?;
        }
        self.engine.submit_samples(requests, samples)
    }

    fn room_for(&self, requests: usize) -> Result<(), SubmitError> {
        self.reachable()?;
        self.engine.room_for(requests)
    }

    fn shares_machine(&self) -> bool {
        false
    }

    fn load(&self) -> Load {
        self.engine.load()
    }

    fn config(&self) -> &SchedulerConfig {
        self.engine.config()
    }

    fn model(&self) -> &ModelFacts {
        self.engine.model()
    }

    fn compile_guide(&self, spec: &GuideSpec, scope: &str) -> Result<CompiledGuide, SubmitError> {
        self.engine.compile_guide(spec, scope)
    }

    fn compiled_guide(&self, spec: &GuideSpec, scope: &str) -> Option<CompiledGuide> {
        self.engine.compiled_guide(spec, scope)
    }

    fn guide_stats(&self) -> CacheStats {
        self.engine.guide_stats()
    }

    fn relays(&self) -> bool {
        true
    }

    fn abort(&self, request: RequestId) -> Result<(), EngineError> {
        self.engine.abort(request)
    }

    fn inbox_polls(&self) -> u64 {
        self.engine.inbox_polls()
    }

    fn ended(&self) -> Option<EngineError> {
        self.engine.ended().or_else(|| self.reachable().err())
    }

    fn wait_until_ended(&self) -> EngineError {
        self.engine.wait_until_ended()
    }

    fn drain(&self) -> Result<(), EngineError> {
        self.engine.drain()
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        self.engine.shutdown()
    }
}
