//! The relay of a remote replica: a task for each request.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use l5_scheduler::engine::{Relay, RelayOutput};
use l5_scheduler::{EngineRequest, RelayFailure, RequestId};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::error::RemoteError;
use super::peer::Peer;
use super::runtime::RemoteRuntime;

/// Number of tasks from which those that have ended are forgotten.
const MIN_TASKS: usize = 64;

/// Relays requests to a server.
pub(super) struct RemoteRelay {
    peer: Arc<Peer>,
    runtime: RemoteRuntime,
    tasks: HashMap<RequestId, AbortHandle>,
    /// Number of tasks at which those that have ended are forgotten.
    crowded: usize,
}

impl RemoteRelay {
    /// A relay without requests.
    pub fn new(peer: Arc<Peer>, runtime: RemoteRuntime) -> Self {
        Self { peer, runtime, tasks: HashMap::new(), crowded: MIN_TASKS }
    }
}

impl Relay for RemoteRelay {
    fn begin(&mut self, id: RequestId, request: &EngineRequest, choice: u32, output: RelayOutput) {
        if self.tasks.len() >= self.crowded {
            self.tasks.retain(|_, task| !task.is_finished());
            self.crowded = (2 * self.tasks.len()).max(MIN_TASKS);
        }
        let body = Bytes::from(self.peer.wire.body(&self.peer.model, request, choice));
        let task = relay(self.peer.clone(), body, request.stop.max_tokens, output);
        self.tasks.insert(id, self.runtime.handle().spawn(task).abort_handle());
    }

    fn abort(&mut self, id: RequestId) {
        // The task drops its connection, and the server aborts the request.
        if let Some(task) = self.tasks.remove(&id) {
            task.abort();
        }
    }
}

/// Relays one request. Whether it may be sent again, here or elsewhere, is for its lane to decide.
async fn relay(peer: Arc<Peer>, body: Bytes, max_tokens: usize, mut output: RelayOutput) {
    if let Some(pause) = peer.pause() {
        sleep(pause).await;
    }
    let mut begun = false;
    match peer.relay(body, max_tokens, &mut output, &mut begun).await {
        Ok((finish, rest)) => {
            peer.served();
            match finish {
                Some(finish) => output.end(finish),
                None => drop(output),
            }
            rest.read().await;
        }
        Err(why) => {
            let failure = if begun { RelayFailure::Final } else { why.before_output() };
            if failure == RelayFailure::Transient {
                peer.failed();
            }
            if matches!(why, RemoteError::Connection(_)) {
                // Before the end of the request is seen: it must not be given to a server that is down.
                peer.verify(&why).await;
            }
            // Before the end as well: those that wait move elsewhere.
            peer.count_failure(&why);
            output.fail(failure, why);
        }
    }
}
