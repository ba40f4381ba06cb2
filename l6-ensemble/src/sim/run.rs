//! The loop of the simulation.

use std::collections::BTreeMap;

use l5_scheduler::{ConfigError, MalformedOutput, Time};

use super::device::Device;
use super::ensemble::{EnsembleSimError, EnsembleWorkload};
use super::lane::{Finished, LaneState};
use super::report::{EscalationReport, QuoteReport, SimReport};
use super::traffic::{MixRouter, Offered, Routed, SimRouter, Traffic};
use super::workload::{SimWorkload, WorkloadFileError};
use crate::EnsembleConfig;
use crate::admission::{
    AdmissionRequest, ContextError, Refusal, SecondChoice, Spill, admit_or_spill,
};
use crate::escalation::Escalation;
use crate::quote::{LaneWork, Quote, RequestSize, Served, compare};

/// Number of steps without rows in a row that a lane may have: a policy can preempt requests in one and plan others in
/// the next.
const MAX_EMPTY_STEPS: usize = 8;

/// Seconds between two comparisons of the loads with the levels of escalation, as in the server.
const ESCALATION_SECONDS: f64 = 1.0;

/// Why a simulation failed.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The workload is invalid.
    #[error(transparent)]
    Workload(#[from] WorkloadFileError),
    /// A lane's scheduler cannot be created.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A fake model or a scheduler broke its contract.
    #[error(transparent)]
    Execute(#[from] MalformedOutput),
    /// A lane has requests, and none can run.
    #[error(
        "at {seconds:.3} s requests wait in lane `{lane}` and none can run: this is a defect of the scheduler"
    )]
    Stalled {
        /// Time.
        seconds: f64,
        /// Name of the lane.
        lane: String,
    },
}

/// Runs the requests of a workload through router, admission and schedulers. [`SimWorkload`] has an example.
#[derive(Clone, Debug)]
pub struct EnsembleSim {
    workload: SimWorkload,
}

/// A refused request that is a candidate for a probe.
#[derive(Clone, Copy, Debug)]
struct Probe {
    index: u64,
    code: &'static str,
    quote: Quote,
}

/// A simulation while it runs.
struct Run<'a> {
    workload: &'a SimWorkload,
    router: &'a mut dyn SimRouter,
    lanes: Vec<LaneState>,
    devices: Vec<Device>,
    now: Time,
    /// A request that is admitted though its lane refuses it, and how it was served.
    forced: Option<u64>,
    served: Option<Served>,
    /// Sample of the refused requests, by random keys: those with the least keys.
    sample: BTreeMap<u64, Probe>,
    sample_size: usize,
    unrouted: u64,
    escalation: Option<Escalation>,
    /// Highest level so far, and the time at which loads are compared with the levels again.
    highest: usize,
    watch_at: Time,
}

impl EnsembleSim {
    /// Creates a simulation.
    ///
    /// # Errors
    /// [`WorkloadFileError`].
    pub fn new(workload: SimWorkload) -> Result<Self, WorkloadFileError> {
        workload.check()?;
        Ok(Self { workload })
    }

    /// Creates the simulation of an ensemble.
    ///
    /// # Errors
    /// [`EnsembleSimError`].
    pub fn of_ensemble(
        config: &EnsembleConfig,
        workload: &EnsembleWorkload,
    ) -> Result<Self, EnsembleSimError> {
        Ok(Self { workload: workload.plan(config)? })
    }

    /// Runs all requests to their end, routed by the weights or the texts of their streams.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn run(&self) -> Result<SimReport, SimError> {
        self.run_with(&mut MixRouter::new(&self.workload))
    }

    /// Runs all requests to their end.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn run_with(&self, router: &mut dyn SimRouter) -> Result<SimReport, SimError> {
        let mut run = Run::new(&self.workload, router)?;
        run.go()?;
        Ok(run.report())
    }

    /// Runs the simulation, and for up to `probes` refused requests, chosen at random, once more with that request
    /// admitted, until it has ended. All later decisions are made anew, by the same rules. The report compares what
    /// happened with the quotes of the refusals.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn probe(&self, probes: usize) -> Result<SimReport, SimError> {
        let mut router = MixRouter::new(&self.workload);
        let mut run = Run { sample_size: probes, ..Run::new(&self.workload, &mut router)? };
        run.go()?;
        let sample = std::mem::take(&mut run.sample);
        let mut report = run.report();
        for Probe { index, code, quote } in sample.into_values() {
            let mut router = MixRouter::new(&self.workload);
            let mut run = Run { forced: Some(index), ..Run::new(&self.workload, &mut router)? };
            run.go()?;
            if let Some(served) = run.served.filter(|_| quote.measured) {
                let quotes: &mut QuoteReport = report.refused_quotes.entry(code).or_default();
                quotes.add(compare(&quote, &served));
            }
        }
        Ok(report)
    }
}

impl<'a> Run<'a> {
    fn new(workload: &'a SimWorkload, router: &'a mut dyn SimRouter) -> Result<Self, SimError> {
        // Device 0 is shared.
        let mut devices = vec![Device::default()];
        let mut lanes = Vec::new();
        for lane in &workload.lanes {
            let device = if lane.own_device {
                devices.push(Device::default());
                devices.len() - 1
            } else {
                0
            };
            let mut state = LaneState::new(lane, device)?;
            if workload.escalation.is_some() {
                state.watch();
            }
            lanes.push(state);
        }
        let (now, sample) = (Time::ZERO, BTreeMap::new());
        Ok(Self {
            workload,
            router,
            lanes,
            devices,
            now,
            forced: None,
            served: None,
            sample,
            sample_size: 0,
            unrouted: 0,
            escalation: workload.escalation.clone().map(Escalation::new),
            highest: 0,
            watch_at: Time::ZERO,
        })
    }

    /// Runs until all requests have ended, or until the forced one has.
    fn go(&mut self) -> Result<(), SimError> {
        let mut traffic = Traffic::new(self.workload)?;
        let mut finished = Vec::new();
        loop {
            let end = self.devices.iter().enumerate();
            let end = end.filter_map(|(device, state)| Some((state.ends()?, device))).min();
            let arrival = traffic.next_arrival();
            match (arrival, end) {
                (Some(at), end) if end.is_none_or(|(end, _)| at <= end) => {
                    self.now = at;
                    if let Some(offered) = traffic.take()?
                        && let Some(lane) = self.offer(offered)
                    {
                        self.plan_step(lane, &mut finished)?;
                    }
                }
                (_, Some((end, device))) => {
                    self.now = end;
                    if let Some(lane) = self.devices[device].end() {
                        self.end_step(lane, &mut finished)?;
                    }
                }
                (_, None) => return Ok(()),
            }
            self.begin_steps();
            if self.served.is_some() {
                return Ok(());
            }
        }
    }

    /// Ends the step of a lane, and plans the next one.
    fn end_step(&mut self, lane: usize, finished: &mut Vec<Finished>) -> Result<(), SimError> {
        let more = self.lanes[lane].end(self.now, finished)?;
        for Finished { id, served } in finished.drain(..) {
            if self.forced == Some(id.0) {
                self.served = Some(served);
            }
        }
        if more { self.plan_step(lane, finished) } else { Ok(()) }
    }

    /// Plans a step of a lane, and queues it for the device.
    fn plan_step(&mut self, lane: usize, finished: &mut Vec<Finished>) -> Result<(), SimError> {
        for _ in 0..MAX_EMPTY_STEPS {
            match self.lanes[lane].plan(self.now) {
                None => return Ok(()),
                Some(true) => {
                    self.devices[self.lanes[lane].device].ask(lane);
                    return Ok(());
                }
                // A step without rows takes no time.
                Some(false) => {
                    if !self.lanes[lane].end(self.now, finished)? {
                        return Ok(());
                    }
                }
            }
        }
        let lane = self.lanes[lane].config.name.clone();
        Err(SimError::Stalled { seconds: self.now.seconds(), lane })
    }

    /// Begins the steps of lanes whose turn it is.
    fn begin_steps(&mut self) {
        for device in &mut self.devices {
            if let Some(lane) = device.next() {
                let seconds = self.lanes[lane].begin(self.now);
                device.begin(lane, self.now + seconds);
            }
        }
    }

    /// What the other lanes of a lane's device have to do.
    fn neighbours(&self, number: usize) -> Vec<LaneWork> {
        let lanes = self.lanes.iter().enumerate();
        let others = lanes
            .filter(|(other, state)| *other != number && state.device == self.lanes[number].device);
        others.map(|(_, state)| state.work(self.now)).collect()
    }

    /// Routes a request, and asks the doors of its lanes. Returns the lane that has nothing else to do and must plan a
    /// step.
    fn offer(&mut self, offered: Offered) -> Option<usize> {
        self.escalate();
        let Some(Routed { first, second, score, spill_below }) = self.router.route(&offered) else {
            self.unrouted += 1;
            return None;
        };
        let thresholds = self.escalation.as_ref().map(Escalation::thresholds).unwrap_or_default();
        let spill_below = f64::from(thresholds.spill_below(spill_below as f32));
        let (first, second) = (self.replica(first), second.map(|second| self.replica(second)));
        let max_tokens = offered.max_tokens;
        let size = RequestSize {
            prompt_tokens: offered.request.prompt.len(),
            cached_tokens: 0,
            max_tokens,
            expected_output_tokens: offered.output_is_known.then_some(max_tokens as f64),
        };
        let request = AdmissionRequest {
            size,
            priority: offered.request.priority,
            deadline: offered.request.deadline,
            now: self.now,
            jitter: offered.jitter,
        };
        let second = second.filter(|_| score < spill_below);
        let near = [Some(first), second].map(|lane| lane.map(|lane| self.neighbours(lane)));
        let [near_first, near_second] = near.map(Option::unwrap_or_default);
        let second_choice = second.map(|second| SecondChoice {
            request,
            lane: self.lanes[second].view(&near_second, &thresholds),
            score,
            spill_below,
        });
        let view = self.lanes[first].view(&near_first, &thresholds);
        let decided = admit_or_spill(&request, &view, second_choice.as_ref());
        let refused = match &decided {
            Ok(Spill::Spill { refused, .. } | Spill::Refuse(refused)) => refused.is_load(),
            _ => false,
        };
        self.lanes[first].count(refused);
        let is_forced = self.forced == Some(offered.index);
        self.lanes[first].report.offered += 1;
        match decided {
            Ok(Spill::Admit { quote }) => return self.admit(first, offered, &request, quote),
            Ok(Spill::Refuse(Refusal { quote, .. })) if is_forced => {
                return self.admit(first, offered, &request, quote);
            }
            Ok(Spill::Spill { quote, .. }) => {
                self.lanes[first].report.spilled_out += 1;
                // Only a second choice can be spilled to.
                let second = second?;
                self.lanes[second].report.spilled_in += 1;
                return self.admit(second, offered, &request, quote);
            }
            Ok(Spill::Refuse(refused)) => {
                let report = &mut self.lanes[first].report;
                *report.refused.entry(refused.code.name()).or_default() += 1;
                self.note_refused(offered.index, &refused);
            }
            Err(ContextError(_)) => self.lanes[first].report.too_long += 1,
        }
        None
    }

    /// The replica with the fewest requests of the specialist whose first replica is this lane.
    fn replica(&self, lane: usize) -> usize {
        let replicas = self.lanes[lane].config.replicas.max(1);
        let least = (lane..lane + replicas).min_by_key(|own| (self.lanes[*own].in_flight(), *own));
        least.unwrap_or(lane)
    }

    /// Compares the loads of all lanes with the levels of escalation, once a second.
    fn escalate(&mut self) {
        let Some(escalation) = self.escalation.as_mut().filter(|_| self.now >= self.watch_at)
        else {
            return;
        };
        let now = self.now;
        let signals: Vec<_> = self.lanes.iter_mut().map(|lane| lane.signal(now)).collect();
        escalation.observe(now, &signals);
        self.highest = self.highest.max(escalation.level());
        self.watch_at = now + ESCALATION_SECONDS;
    }

    fn admit(
        &mut self,
        lane: usize,
        offered: Offered,
        request: &AdmissionRequest,
        quote: Quote,
    ) -> Option<usize> {
        self.lanes[lane].admit(offered.request, request.admitted(&quote), quote).then_some(lane)
    }

    /// Keeps a sample of the refused requests.
    fn note_refused(&mut self, index: u64, refused: &Refusal) {
        if self.sample_size == 0 {
            return;
        }
        // A bijection that scatters the indices (a round of SplitMix64).
        let mut key = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
        key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.sample.insert(
            key ^ (key >> 27),
            Probe { index, code: refused.code.name(), quote: refused.quote },
        );
        if self.sample.len() > self.sample_size {
            self.sample.pop_last();
        }
    }

    fn report(self) -> SimReport {
        let lanes = self.lanes.into_iter().map(LaneState::report).collect();
        let highest = self.highest;
        let escalation = self.escalation.map(|own| EscalationReport {
            highest,
            level: own.level(),
            moves: own.moves(),
        });
        let (seconds, unrouted) = (self.now.seconds(), self.unrouted);
        SimReport { seconds, lanes, unrouted, escalation, ..SimReport::default() }
    }
}
