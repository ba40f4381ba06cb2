//! The relay of a remote replica: a task for each request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use l5_scheduler::engine::{Relay, RelayOutput};
use l5_scheduler::{EngineRequest, RequestId};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::body;
use super::error::RemoteError;
use super::peer::Peer;
use super::runtime::RemoteRuntime;

/// Time before a request is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(200);

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
        let body = Bytes::from(body::write(&self.peer.model, request, choice));
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

/// Relays one request: once, and again if that failed before the first byte in a way that may pass.
async fn relay(peer: Arc<Peer>, body: Bytes, max_tokens: usize, mut output: RelayOutput) {
    let mut again = true;
    loop {
        let mut begun = false;
        match peer.relay(body.clone(), max_tokens, &mut output, &mut begun).await {
            Ok((finish, rest)) => {
                match finish {
                    Some(finish) => output.end(finish),
                    None => drop(output),
                }
                return rest.read().await;
            }
            Err(why) if again && !begun && why.may_pass() => {
                again = false;
                sleep(RETRY_DELAY).await;
            }
            Err(why) => {
                if matches!(why, RemoteError::Connection(_)) {
                    peer.set_down(&why.to_string());
                }
                return output.fail(why);
            }
        }
    }
}
