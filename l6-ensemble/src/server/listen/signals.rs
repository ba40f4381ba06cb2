//! SIGTERM and SIGINT: the first asks the server to end, the second does not ask.

use std::process::exit;

/// What a shell reports for a program that a signal ended is 128 and its number.
const AFTER_SIGINT: i32 = 130;
const AFTER_SIGTERM: i32 = 143;

/// The signals that end a server.
pub(super) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// From here on they are this server's.
    pub fn install() -> std::io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            Ok(Self {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
            })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Wait for one, and say which.
    pub async fn next(&mut self) -> &'static str {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
        #[cfg(not(unix))]
        {
            // Without a way to be told, there is nothing to wait for but the end of the process.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            "SIGINT"
        }
    }

    /// Whoever sends another one has waited long enough.
    pub fn exit_at_the_next(mut self) {
        tokio::spawn(async move {
            exit(match self.next().await {
                "SIGTERM" => AFTER_SIGTERM,
                _ => AFTER_SIGINT,
            });
        });
    }
}
