//! systemd's side of a server: when it is ready, and that it is still alive.
//!
//! With `Type=notify`, systemd holds a service for started when it says `READY=1`. With `WatchdogSec=`, it ends and
//! restarts one that does not say `WATCHDOG=1` often enough. That is said here by a task of the server's runtime, and
//! only when the engine's thread has looked into its inbox since the last time: so a runtime whose tasks hang, and an
//! engine that hangs in a step, both end the silence of a server that accepts connections and answers none.
//!
//! The protocol is a datagram of text to the socket that `NOTIFY_SOCKET` names: sd_notify(3), sd_watchdog_enabled(3).

use std::ffi::OsString;
use std::time::Duration;

use l5_scheduler::{EngineHandle, RequestId};
use tokio::time::{MissedTickBehavior, interval};

use crate::server::LOG;

/// Looks at the engine within systemd's time: one that fails to find progress is not yet fatal.
const LOOKS_IN_TIME: u32 = 4;

/// A request that no client's is: the server numbers them from 0.
const NO_REQUEST: RequestId = RequestId(u64::MAX);

/// Where to tell systemd something. Nothing is told where it did not start this process.
#[derive(Debug)]
pub struct Supervisor {
    #[cfg(unix)]
    socket: Option<(std::os::unix::net::UnixDatagram, std::os::unix::net::SocketAddr)>,
    /// How often `WATCHDOG=1` must come.
    within: Option<Duration>,
}

impl Supervisor {
    /// The supervisor that the environment names.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var_os(name))
    }

    fn from_vars(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let number = |name: &str| get(name)?.to_str()?.parse::<u64>().ok();
        // Another process may be meant, whose environment this one has inherited.
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

    /// Reports that requests are taken from now on.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// Reports that the server is about to end.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, what: &str) {
        #[cfg(unix)]
        if let Some((socket, to)) = &self.socket
            && let Err(e) = socket.send_to_addr(what.as_bytes(), to)
        {
            tracing::warn!(target: LOG, "{what} could not be sent to NOTIFY_SOCKET: {e}");
        }
        #[cfg(not(unix))]
        let _ = what;
    }

    /// Reports progress for as long as there is some. Ends at once where nobody wants to know.
    pub async fn watch(&self, engine: EngineHandle) {
        let Some(within) = self.within else { return };
        let mut ticks = interval((within / LOOKS_IN_TIME).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut progress = Progress::new(engine);
        loop {
            ticks.tick().await;
            match progress.is_made() {
                true => self.tell("WATCHDOG=1"),
                false => {
                    tracing::warn!(target: LOG, "the engine made no progress since the last look")
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

/// Whether an engine's thread turns.
struct Progress {
    engine: EngineHandle,
    looks: Option<u64>,
}

impl Progress {
    fn new(engine: EngineHandle) -> Self {
        Self { engine, looks: None }
    }

    /// Whether the engine looked into its inbox since the last call. It is woken, so an idle one looks too.
    fn is_made(&mut self) -> bool {
        let looks = self.engine.looks();
        let made = self.looks.is_none_or(|before| before != looks);
        self.looks = Some(looks);
        // An engine that has ended looks no more, which the next call finds.
        let _ = self.engine.abort(NO_REQUEST);
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
        AnswerJob, Caps, Engine, EngineCore, EngineRequest, ExecuteError, Executor, FinishReason,
        Scheduler, SchedulerConfig, StepOutput, StepView,
    };

    use super::*;

    /// Tells when a step has begun, and ends it when it is told to.
    struct Hangs {
        begun: Sender<()>,
        go_on: Receiver<()>,
        job: Option<AnswerJob>,
    }

    impl Executor for Hangs {
        type Job = AnswerJob;

        fn caps(&self) -> Caps {
            Caps { max_tokens: usize::MAX, max_seqs: usize::MAX, ..Caps::default() }
        }

        fn begin(&mut self, _: u32, _: RequestId, job: AnswerJob) {
            self.job = Some(job);
        }

        fn execute(&mut self, _: &StepView<'_>, out: &mut StepOutput) -> Result<(), ExecuteError> {
            self.begun.send(()).unwrap();
            self.go_on.recv().unwrap();
            out.push(0, &[5], None);
            Ok(())
        }

        fn end(&mut self, _: u32, _: RequestId, _: FinishReason) {
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
        // Idle: every look is answered, when the thread has had its turn.
        for _ in 0..3 {
            while !progress.is_made() {
                std::thread::yield_now();
            }
        }
        let stop = StopRules { max_tokens: 1, ..StopRules::default() };
        let request = EngineRequest::new(vec![1, 2, 3], SamplingParams::greedy(), stop);
        let answer = engine.handle().submit(request).unwrap();
        step.recv().unwrap();
        progress.is_made();
        for _ in 0..3 {
            assert!(!progress.is_made(), "it hangs in a step");
        }
        release.send(()).unwrap();
        while !progress.is_made() {
            std::thread::yield_now();
        }
        drop(answer);
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
