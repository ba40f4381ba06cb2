//! Notifications to systemd: readiness, shutdown and the watchdog.
//!
//! With `Type=notify`, systemd regards a service as started when it sends `READY=1`. With `WatchdogSec=`, systemd
//! restarts a service that does not send `WATCHDOG=1` often enough. A task of the server's runtime sends it, and only
//! if the engine's thread has polled its inbox since the last time: so systemd restarts a server whose runtime hangs,
//! and one whose engine hangs in a step.
//!
//! The protocol is a datagram of text to the socket that `NOTIFY_SOCKET` names: sd_notify(3), sd_watchdog_enabled(3).

use std::ffi::OsString;
use std::time::Duration;

use l5_scheduler::{EngineHandle, RequestId};
use tokio::time::{MissedTickBehavior, interval};

use crate::LOG;

/// Number of checks per watchdog interval: a single check without progress is not yet fatal.
const CHECKS_PER_INTERVAL: u32 = 4;

/// Request id that is never assigned: the server numbers requests from 0.
const UNUSED_REQUEST_ID: RequestId = RequestId(u64::MAX);

/// Sends notifications to systemd. Does nothing if systemd did not start this process.
#[derive(Debug)]
pub struct Supervisor {
    #[cfg(unix)]
    socket: Option<(std::os::unix::net::UnixDatagram, std::os::unix::net::SocketAddr)>,
    /// Watchdog interval: maximum time between two `WATCHDOG=1`.
    within: Option<Duration>,
}

impl Supervisor {
    /// The supervisor that the environment names.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var_os(name))
    }

    fn from_vars(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let number = |name: &str| get(name)?.to_str()?.parse::<u64>().ok();
        // The variables may be those of a parent process, whose environment this one has inherited.
        let own = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let within = number("WATCHDOG_USEC").filter(|time| own && *time > 0);
        Self {
            #[cfg(unix)]
            socket: get("NOTIFY_SOCKET").filter(|path| !path.is_empty()).and_then(|path| {
                let opened = address(&path)
                    .and_then(|to| Ok((std::os::unix::net::UnixDatagram::unbound()?, to)));
                let report = |e: &std::io::Error| {
                    tracing::warn!(target: LOG, "NOTIFY_SOCKET cannot be used: {e}");
                };
                opened.inspect_err(report).ok()
            }),
            within: within.map(Duration::from_micros),
        }
    }

    /// Reports that requests are accepted from now on.
    pub fn ready(&self) {
        self.notify("READY=1");
    }

    /// Reports that the server is about to end.
    pub fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    fn notify(&self, what: &str) {
        #[cfg(unix)]
        if let Some((socket, to)) = &self.socket
            && let Err(e) = socket.send_to_addr(what.as_bytes(), to)
        {
            tracing::warn!(target: LOG, "{what} could not be sent to NOTIFY_SOCKET: {e}");
        }
        #[cfg(not(unix))]
        let _ = what;
    }

    /// Sends `WATCHDOG=1` for as long as every engine that has not ended makes progress, and one has not. Returns at once
    /// without a watchdog interval.
    pub async fn watch(&self, engines: Vec<EngineHandle>) {
        let Some(within) = self.within else { return };
        let mut ticks = interval((within / CHECKS_PER_INTERVAL).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut progress: Vec<_> = engines.into_iter().map(Progress::new).collect();
        loop {
            ticks.tick().await;
            // The server goes on while one of several engines lives.
            progress.retain(|own| own.engine.ended().is_none());
            let stuck = progress.iter_mut().map(Progress::is_made).filter(|made| !made).count();
            match stuck == 0 && !progress.is_empty() {
                true => self.notify("WATCHDOG=1"),
                false => {
                    tracing::warn!(target: LOG, "an engine has made no progress since the last check")
                }
            }
        }
    }
}

/// The address that `NOTIFY_SOCKET` names: a path, or on Linux a name that begins with `@`.
#[cfg(unix)]
fn address(name: &OsString) -> std::io::Result<std::os::unix::net::SocketAddr> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::SocketAddr;
    match name.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => {
            use std::os::linux::net::SocketAddrExt;
            SocketAddr::from_abstract_name(name)
        }
        _ => SocketAddr::from_pathname(name),
    }
}

/// Checks whether an engine's thread makes progress.
struct Progress {
    engine: EngineHandle,
    polls: Option<u64>,
}

impl Progress {
    fn new(engine: EngineHandle) -> Self {
        Self { engine, polls: None }
    }

    /// Returns whether the engine polled its inbox since the last call. An idle engine is woken, so that it polls too.
    fn is_made(&mut self) -> bool {
        let polls = self.engine.inbox_polls();
        let made = self.polls.is_none_or(|before| before != polls);
        self.polls = Some(polls);
        // An engine that has ended polls no more, which the next call detects.
        let _ = self.engine.abort(UNUSED_REQUEST_ID);
        made
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use l4_sampler::SamplingParams;
    use l4_sampler::stop::StopRules;
    use l5_scheduler::engine::ModelFacts;
    use l5_scheduler::{
        Caps, ChoiceJob, Engine, EngineCore, EngineRequest, ExecuteError, Executor, FinishReason,
        Scheduler, SchedulerConfig, StepHandle, StepOutput, StepView,
    };

    use super::*;

    /// Reports when a step has begun, and ends it on request.
    struct Hangs {
        begun: Sender<()>,
        go_on: Receiver<()>,
        job: Option<ChoiceJob>,
    }

    impl Executor for Hangs {
        type Job = ChoiceJob;
        type Error = ExecuteError;

        fn caps(&self) -> Caps {
            Caps { max_tokens: usize::MAX, max_seqs: usize::MAX, ..Caps::default() }
        }

        fn begin(&mut self, _: RequestId, job: ChoiceJob) {
            self.job = Some(job);
        }

        fn collect(
            &mut self,
            _: StepHandle,
            _: &StepView<'_>,
            out: &mut StepOutput,
        ) -> Result<(), ExecuteError> {
            self.begun.send(()).unwrap();
            self.go_on.recv().unwrap();
            out.push(0, &[5], None);
            Ok(())
        }

        fn end(&mut self, _: RequestId, _: FinishReason) {
            self.job = None;
        }
    }

    #[test]
    fn an_engine_that_hangs_in_a_step_makes_no_progress_and_an_idle_one_does() {
        let (begun, step) = channel();
        let (release, go_on) = channel();
        let config =
            SchedulerConfig { enable_prefix_caching: false, ..SchedulerConfig::new(100, 16) };
        let executor = Hangs { begun, go_on, job: None };
        let core = EngineCore::new(Scheduler::new(config).unwrap(), executor);
        let facts = ModelFacts { vocab: 100, tokenizer: None, stop_tokens: Vec::new() };
        let engine = Engine::start(core, facts, 16).unwrap();
        let mut progress = Progress::new(engine.handle().clone());
        // Idle: each check makes the engine poll, once its thread has been scheduled.
        for _ in 0..3 {
            while !progress.is_made() {
                std::thread::yield_now();
            }
        }
        let stop = StopRules { max_tokens: 1, ..StopRules::default() };
        let request = EngineRequest::new(vec![1, 2, 3], SamplingParams::greedy(), stop);
        let response = engine.handle().submit(request).unwrap();
        step.recv().unwrap();
        progress.is_made();
        for _ in 0..3 {
            assert!(!progress.is_made(), "it hangs in a step");
        }
        release.send(()).unwrap();
        while !progress.is_made() {
            std::thread::yield_now();
        }
        drop(response);
        engine.shutdown().unwrap();
        progress.is_made();
        assert!(!progress.is_made(), "an engine that has ended makes no progress");
    }

    #[test]
    fn the_watchdog_of_another_process_is_not_this_ones() {
        let within = |pid: &str, time: &str| {
            let get = |name: &str| match name {
                "WATCHDOG_PID" if !pid.is_empty() => Some(pid.into()),
                "WATCHDOG_USEC" => Some(time.into()),
                _ => None,
            };
            Supervisor::from_vars(get).within
        };
        let own = std::process::id().to_string();
        assert_eq!(within(&own, "2000"), Some(Duration::from_millis(2)));
        assert_eq!(within("", "2000"), Some(Duration::from_millis(2)));
        assert_eq!(within("1", "2000"), None);
        assert_eq!(within(&own, "soon"), None);
        assert_eq!(within(&own, "0"), None);
    }
}
