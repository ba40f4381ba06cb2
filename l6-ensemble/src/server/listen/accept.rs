//! Letting connections in: not more than may be, and not fewer because of an error.

use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use super::connection::Connection;
use super::waiting::Connections;
use crate::server::app::App;

/// How long to wait when the system has no room for another connection.
const NO_ROOM: Duration = Duration::from_millis(100);

/// Files that a process has open besides its connections: the model's, logs, the runtime's.
const OTHER_FILES: usize = 64;

/// Where connections come in.
pub(super) struct Door {
    pub listener: TcpListener,
    pub router: Router,
    pub app: Arc<App>,
    pub closing: watch::Sender<bool>,
}

impl Door {
    /// Let connections in. When as many are in as may be, the next one takes the place of the one that has waited longest
    /// for its client, or waits until a response is written.
    pub async fn stand_open(self) {
        let most = most_connections(self.app.options.limits.connections);
        let seats = Arc::new(Semaphore::new(most));
        let connections = Connections::default();
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(why) => {
                    if !is_the_clients(&why) {
                        tracing::warn!("server: cannot take a connection: {why}");
                        sleep(NO_ROOM).await;
                    }
                    continue;
                }
            };
            if seats.available_permits() == 0 {
                connections.close_longest_waiting();
            }
            // The semaphore is never closed.
            let Ok(seat) = seats.clone().acquire_owned().await else { return };
            // A token is a small packet that a client waits for.
            let _ = stream.set_nodelay(true);
            let connection = Connection {
                peer,
                router: self.router.clone(),
                limits: self.app.options.limits,
                closing: self.closing.subscribe(),
                counted: self.app.life.connections().enter(),
                registered: connections.enter(),
            };
            tokio::spawn(async move {
                connection.serve(stream).await;
                drop(seat);
            });
        }
    }
}

/// Whether an error is of the connection that was to be taken, and not of this process.
fn is_the_clients(error: &Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// As many connections as were asked for, or as this process may have files. A connection that is let in without a file
/// to spare takes one from whoever needs it next.
fn most_connections(wanted: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let Some(files) = open_files(&limits) else { return wanted.max(1) };
    let most = files.saturating_sub(OTHER_FILES).max(1);
    if most < wanted {
        tracing::warn!("server: {most} connections at once, not {wanted}: `ulimit -n` is {files}");
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
        assert!(is_the_clients(&ErrorKind::ConnectionAborted.into()));
        // EMFILE: too many open files.
        assert!(!is_the_clients(&Error::from_raw_os_error(24)));
    }
}
