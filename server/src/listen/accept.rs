//! Accepts connections, up to the limit. It continues after errors.

use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use super::connection::Connection;
use super::connections::Connections;
use crate::lifecycle::Lifecycle;
use crate::options::Limits;

/// Pause after an error of this process, such as too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Number of open files that are reserved for other uses than connections: the model, logs, the runtime.
const RESERVED_FILES: usize = 64;

/// Acceptor of connections.
pub(super) struct Acceptor {
    pub listener: TcpListener,
    pub router: Router,
    pub limits: Limits,
    pub lifecycle: Arc<Lifecycle>,
    pub closing: watch::Sender<bool>,
}

impl Acceptor {
    /// Accepts connections. At the limit, the connection that has waited longest for its client is closed for the next
    /// one; if none waits for its client, the next one waits until a response is written.
    pub async fn accept_all(self) {
        let most = max_connections(self.limits.connections);
        let seats = Arc::new(Semaphore::new(most));
        let connections = Connections::default();
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(why) => {
                    if !is_of_client(&why) {
                        tracing::warn!("server: cannot accept a connection: {why}");
                        sleep(ACCEPT_RETRY_DELAY).await;
                    }
                    continue;
                }
            };
            if seats.available_permits() == 0 {
                connections.close_longest_waiting();
            }
            // The semaphore is never closed.
            let Ok(seat) = seats.clone().acquire_owned().await else { return };
            // Each token is a small packet, which must be sent without delay.
            let _ = stream.set_nodelay(true);
            let connection = Connection {
                peer,
                router: self.router.clone(),
                limits: self.limits,
                closing: self.closing.subscribe(),
                counted: self.lifecycle.connections().enter(),
                registered: connections.enter(),
            };
            tokio::spawn(async move {
                connection.serve(stream).await;
                drop(seat);
            });
        }
    }
}

/// Returns whether an error is one of the connection that was to be accepted, and not one of this process.
fn is_of_client(error: &Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The limit on connections, or the limit on open files of this process if that is lower: a connection that took the
/// last file would make the next use of a file fail.
fn max_connections(wanted: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let Some(files) = open_files(&limits) else { return wanted.max(1) };
    let most = files.saturating_sub(RESERVED_FILES).max(1);
    if most < wanted {
        tracing::warn!(
            "server: at most {most} connections, not {wanted}, because `ulimit -n` is {files}"
        );
    }
    wanted.clamp(1, most)
}

/// The limit on open files in Linux's /proc/self/limits, if there is one.
fn open_files(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_files_is_the_soft_one() {
        let line =
            "Max open files            1024                 524288               files     \n";
        assert_eq!(open_files(line), Some(1024));
        assert_eq!(open_files("Max open files  unlimited unlimited files"), None);
        assert_eq!(open_files(""), None);
    }

    #[test]
    fn a_vanished_client_is_no_reason_to_wait() {
        assert!(is_of_client(&ErrorKind::ConnectionAborted.into()));
        // EMFILE: too many open files.
        assert!(!is_of_client(&Error::from_raw_os_error(24)));
    }
}
