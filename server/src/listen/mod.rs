//! The listening socket: from the first connection to the end of the process.
//!
//! ```text
//! accept -> connection -> router          one task per connection, up to the limit
//! signals --\
//! engine ----+-> run: serving -> draining (until responses end, or --shutdown-grace) -> closing -> exit
//! ```

mod accept;
mod connection;
mod connections;
mod disconnect;
mod signals;
#[cfg(test)]
mod tests;
pub mod watchdog;
mod write_timeout;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::{Extension, Router};
use l5_scheduler::{Engine, EngineError};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

pub use connection::Client;
pub use connections::Upload;
pub use signals::ignore_hangups;

use super::LOG;
use super::app::App;
use super::ensemble::ESCALATION_INTERVAL;
use super::lanes::LiveLanes;
use super::lifecycle::State;
use super::middleware::access_log::AccessLogger;
use super::reload::Reloader;
use super::routes::router;
use super::words::count;
use accept::Acceptor;
use signals::{Hangups, Signals};

/// Time for which a server still responds after its lane has failed, so that clients read errors and probes see it.
const FAILURE_LINGER: Duration = Duration::from_secs(2);

/// Maximum time to write the responses that a shutdown has ended.
const ABORTED_RESPONSES_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for connections to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of connections that the system queues until they are accepted, if its own limit allows so many. With
/// the usual 128, some connections are reset when a few hundred clients connect at the same moment.
const BACKLOG: u32 = 4096;

/// A server whose address is bound; [`Server::run`] serves.
pub struct Server {
    listener: TcpListener,
    signals: Signals,
    hangups: Option<Hangups>,
    log: AccessLogger,
    app: App,
}

/// Error that ended a server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The system rejected a socket or a thread.
    #[error("the server cannot listen: {0}")]
    Io(#[from] std::io::Error),
    /// The engine has ended, although no shutdown was requested.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine was shut down, but its last step did not end in time.
    #[error("the engine's last step did not end within {0:?}: the server exits without it")]
    Stuck(Duration),
}

impl Server {
    /// Binds the address and opens the access log.
    ///
    /// # Errors
    /// The address is in use or is not one of this machine; or the access log cannot be written.
    pub async fn bind(app: App) -> std::io::Result<Self> {
        let address = SocketAddr::new(app.options.host, app.options.port);
        let log = AccessLogger::open(&app.options.access_log)?;
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Connections of a server that has just ended do not keep the next server from the same address. On Windows
        // the option would let two servers share it.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        // Before the address is reported: a supervisor that knows it may send signals.
        let signals = Signals::install()?;
        // Without an ensemble there is nothing to load again, and the signal ends the process as it does any other.
        let hangups = app.reloader.as_ref().map(|_| Hangups::install()).transpose()?;
        Ok(Self { listener, signals, hangups, log, app })
    }

    /// Address on which the server listens.
    ///
    /// # Errors
    /// As [`TcpListener::local_addr`].
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Parts of the server.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Serves until SIGTERM or SIGINT, and then until the requests in flight have ended. A second signal ends the
    /// process at once.
    ///
    /// # Errors
    /// [`ServeError`]: the engine has ended by itself. All requests in flight have got an error.
    pub async fn run(self) -> Result<(), ServeError> {
        let Self { listener, mut signals, hangups, log, app } = self;
        let router: Router = router(&app).layer(Extension(log.clone()));
        let (closing, _) = watch::channel(false);
        let acceptor = Acceptor {
            listener,
            router,
            limits: app.limits,
            lifecycle: app.lifecycle.clone(),
            closing: closing.clone(),
        };
        let acceptor = tokio::spawn(acceptor.accept_all());
        let mut ended = watch_lanes(&app)?;
        let escalation = tokio::spawn(watch_loads(app.lanes.clone()));
        let reloads = tokio::spawn(reload_on(hangups, app.reloader.clone()));
        let outcome = tokio::select! {
            signal = signals.next() => {
                let requests = count(app.lifecycle.requests().now(), "request");
                let grace = app.options.shutdown_grace.as_secs_f64();
                tracing::info!(
                    target: LOG,
                    "{signal}: {requests} in flight; draining for up to {grace} s"
                );
                signals.exit_on_next();
                drain(&app, &mut ended).await;
                Ok(())
            }
            why = &mut ended => {
                let why = why.unwrap_or(EngineError::ShutDown);
                tracing::error!("server: {why}");
                app.lifecycle.set(State::Failed);
                sleep(FAILURE_LINGER).await;
                Err(why.into())
            }
        };
        acceptor.abort();
        escalation.abort();
        reloads.abort();
        closing.send_replace(true);
        // A client that does not read its response cannot delay the end of the process.
        let _ = timeout(CLOSE_TIMEOUT, app.lifecycle.connections().none()).await;
        log.close();
        tracing::info!(target: LOG, "shut down");
        outcome
    }
}

/// Compares the loads of an ensemble's lanes with its levels of escalation, for as long as the server runs.
async fn watch_loads(lanes: LiveLanes) {
    let mut ticks = interval(ESCALATION_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let lanes = lanes.now();
        let Some(ensemble) = lanes.router() else { return };
        ensemble.watch(&lanes);
    }
}

/// Loads the configuration of an ensemble again at each SIGHUP.
async fn reload_on(hangups: Option<Hangups>, reloader: Option<Reloader>) {
    let (Some(mut hangups), Some(reloader)) = (hangups, reloader) else { return };
    loop {
        hangups.next().await;
        // It has logged what came of it.
        let _ = reloader.reload("SIGHUP").await;
    }
}

/// Rejects new requests, and waits for those in flight. Returns when there are none, or when the grace period is over
/// and the rest have been aborted.
async fn drain(app: &App, ended: &mut oneshot::Receiver<EngineError>) {
    app.lifecycle.set(State::Draining);
    app.lanes.now().adapters().iter().for_each(|adapters| adapters.close());
    // No client waits for them.
    if let Some(ensemble) = app.lanes.now().router() {
        ensemble.shadows().stop().await;
    }
    tokio::select! {
        () = app.lifecycle.requests().none() => return,
        () = sleep(app.options.shutdown_grace) => {}
        _ = ended => {}
    }
    tracing::warn!(
        "server: {} did not end in time",
        count(app.lifecycle.requests().now(), "request")
    );
    // All responses end with their replica. A step that never ends must not delay the other replicas: each shutdown has
    // a thread, which is not joined.
    for (_, replica) in app.lanes.now().iter().flat_map(|served| served.lane.replicas()) {
        let replica = replica.clone();
        std::thread::spawn(move || replica.shutdown());
    }
    let _ = timeout(ABORTED_RESPONSES_TIMEOUT, app.lifecycle.requests().none()).await;
}

/// Shuts engines down, side by side. A step that never ends is not waited for beyond `timeout`: its thread ends with the
/// process.
///
/// # Errors
/// [`ServeError::Engine`], if the last engine failed before; [`ServeError::Stuck`].
pub fn shut_down_within(engines: Vec<Engine>, timeout: Duration) -> Result<(), ServeError> {
    let until = Instant::now() + timeout;
    let (report, ended) = std::sync::mpsc::channel();
    let (mut failed, all) = (Vec::new(), engines.len());
    for engine in engines {
        let report = report.clone();
        let thread = std::thread::Builder::new().name("strata-end".into());
        // Without a thread the engine is dropped, which waits.
        thread.spawn(move || report.send(engine.shutdown()))?;
    }
    for _ in 0..all {
        match ended.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(ended) => failed.extend(ended.err()),
            Err(_) => return Err(ServeError::Stuck(timeout)),
        }
    }
    // While one engine of several lives, the server serves; those that failed were reported when they did.
    match failed.pop() {
        Some(why) if failed.len() + 1 == all => Err(why.into()),
        _ => Ok(()),
    }
}

/// Starts a thread that waits until all lanes have failed, which is when the last of their replicas has ended. Without it
/// the failure of an idle server would go unnoticed.
fn watch_lanes(app: &App) -> std::io::Result<oneshot::Receiver<EngineError>> {
    let (report, ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name("strata-watch".into());
    let lanes = app.lanes.now();
    let all = lanes.iter().flat_map(|served| served.lane.replicas());
    let replicas: Vec<_> = all.map(|(_, replica)| replica.clone()).collect();
    thread.spawn(move || {
        let mut last = EngineError::ShutDown;
        for replica in &replicas {
            last = replica.wait_until_ended();
        }
        // The server may be gone before its engines.
        let _ = report.send(last);
    })?;
    Ok(ended)
}
