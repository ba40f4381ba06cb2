//! SIGTERM and SIGINT: the first one begins a graceful shutdown, the second one exits at once. SIGHUP: an ensemble loads
//! its configuration again.

use std::process::exit;

/// Exit statuses of a process that a signal ended: 128 plus the number of the signal, as shells report it.
const SIGINT_EXIT_STATUS: i32 = 130;
const SIGTERM_EXIT_STATUS: i32 = 143;

/// The signals that end a server.
pub(super) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Installs handlers: from here on the signals do not end the process by themselves.
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

    /// Waits for a signal and returns its name.
    pub async fn next(&mut self) -> &'static str {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
        #[cfg(not(unix))]
        {
            // Without a handler no signal can arrive: wait forever.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            "SIGINT"
        }
    }

    /// Exits at the next signal, in the background.
    pub fn exit_on_next(mut self) {
        tokio::spawn(async move {
            exit(match self.next().await {
                "SIGTERM" => SIGTERM_EXIT_STATUS,
                _ => SIGINT_EXIT_STATUS,
            });
        });
    }
}

/// Ignores SIGHUP until a server listens that loads its configuration again: models may take long to load, and the
/// signal would end the process, though its configuration is being read anyway.
pub fn ignore_hangups() {
    #[cfg(unix)]
    // SAFETY: SIG_IGN runs no code of this process, and SIGHUP is a signal that may be ignored.
    unsafe {
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
    }
}

/// SIGHUP.
pub(super) struct Hangups {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

impl Hangups {
    /// Installs a handler: from here on the signal does not end the process.
    pub fn install() -> std::io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            Ok(Self { signal: signal(SignalKind::hangup())? })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Waits for the signal; forever on a system that has none.
    pub async fn next(&mut self) {
        #[cfg(unix)]
        if self.signal.recv().await.is_some() {
            return;
        }
        std::future::pending().await
    }
}
