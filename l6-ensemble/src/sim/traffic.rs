//! The requests of all streams in the order of their arrival, and their routes.

use l4_sampler::philox::philox4x32;
use l5_scheduler::sim::{ArrivalProcess, Arrivals, Workload};
use l5_scheduler::{Request, RequestId, Time};

use super::workload::{SimWorkload, Stream, WorkloadFileError};

/// A request that is offered to the ensemble.
#[derive(Clone, Debug)]
pub struct Offered {
    /// Number of the request in the order of arrival, from 0; it is also its id.
    pub index: u64,
    /// Number of its stream.
    pub stream: usize,
    /// The request as the scheduler gets it. Its `max_tokens` is the output that it will have.
    pub request: Request,
    /// Maximum number of output tokens that it states.
    pub max_tokens: usize,
    /// Whether the door knows that it will have `max_tokens` output tokens.
    pub output_is_known: bool,
    /// Random numbers from 0 to 1 for its route: which lane, and the score of the first choice.
    pub chances: [f64; 2],
    /// Random number from 0 to 1 that spreads retries.
    pub jitter: f64,
}

/// Route of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routed {
    /// Lane of the first choice.
    pub first: usize,
    /// Lane of the second choice.
    pub second: Option<usize>,
    /// Score of the first choice, from 0 to 1.
    pub score: f64,
    /// Score below which the request may spill to the second choice, before escalation raises it.
    pub spill_below: f64,
}

/// Gives each request a lane. Called once for each request, in the order of arrival; the same requests must get the
/// same lanes.
pub trait SimRouter {
    /// Route of a request; `None` if no lane serves it.
    fn route(&mut self, offered: &Offered) -> Option<Routed>;
}

impl<F: FnMut(&Offered) -> Option<Routed>> SimRouter for F {
    fn route(&mut self, offered: &Offered) -> Option<Routed> {
        self(offered)
    }
}

/// The router of a workload: by the weights of a stream's lanes or, for an ensemble, by the texts of its requests,
/// whose routes were decided before the simulation.
#[derive(Clone, Debug)]
pub struct MixRouter {
    streams: Vec<Mix>,
}

/// Routes of a stream.
#[derive(Clone, Debug)]
struct Mix {
    /// Lanes of the first choice, with weights.
    lanes: Vec<(usize, f64)>,
    second: Option<usize>,
    spill_below: f64,
    /// Routes of its texts, each as likely as the others; empty for a stream with lanes.
    routes: Vec<Option<Routed>>,
}

impl MixRouter {
    /// Creates the router of a workload that was checked.
    pub fn new(workload: &SimWorkload) -> Self {
        let lane = |name: &String| workload.lane(name).unwrap_or_default();
        let streams = workload.streams.iter().enumerate().map(|(number, stream)| {
            let lanes = stream.lanes.iter().map(|(name, weight)| (lane(name), *weight));
            Mix {
                lanes: lanes.collect(),
                second: stream.second.as_ref().map(lane),
                spill_below: workload.spill_below,
                routes: workload.routes.get(number).cloned().unwrap_or_default(),
            }
        });
        Self { streams: streams.collect() }
    }
}

impl SimRouter for MixRouter {
    fn route(&mut self, offered: &Offered) -> Option<Routed> {
        let Mix { lanes, second, spill_below, routes } = &self.streams[offered.stream];
        let [which, score] = offered.chances;
        if !routes.is_empty() {
            return routes[((which * routes.len() as f64) as usize).min(routes.len() - 1)];
        }
        let mut left = which * lanes.iter().map(|(_, weight)| weight).sum::<f64>();
        let mut first = 0;
        for (lane, weight) in lanes.iter().filter(|(_, weight)| *weight > 0.0) {
            first = *lane;
            if left < *weight {
                break;
            }
            left -= weight;
        }
        let second = second.filter(|second| *second != first);
        Some(Routed { first, second, score, spill_below: *spill_below })
    }
}

/// The merged streams of a workload.
pub(super) struct Traffic {
    streams: Vec<(Stream, Workload<'static>)>,
    /// Next arrival of each stream.
    next: Vec<Option<Time>>,
    seed: u64,
    offered: u64,
    requests: u64,
}

impl Traffic {
    pub(super) fn new(workload: &SimWorkload) -> Result<Self, WorkloadFileError> {
        let mut streams = Vec::new();
        for (number, stream) in (0_u64..).zip(&workload.streams) {
            let invalid = |why| WorkloadFileError::Stream { stream: stream.name.clone(), why };
            // Streams differ in their seeds, so that no two draw the same prompts.
            let seed = workload.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number);
            let arrivals =
                ArrivalProcess { rate: Some(stream.rate), requests: Some(workload.requests), seed };
            let requests = Workload::from_spec(stream.spec(), arrivals).map_err(invalid)?;
            streams.push((stream.clone(), requests));
        }
        let mut traffic = Self {
            next: vec![None; streams.len()],
            streams,
            seed: workload.seed,
            offered: 0,
            requests: workload.requests,
        };
        for stream in 0..traffic.streams.len() {
            traffic.look(stream)?;
        }
        Ok(traffic)
    }

    fn look(&mut self, number: usize) -> Result<(), WorkloadFileError> {
        let (stream, requests) = &mut self.streams[number];
        let invalid = |why| WorkloadFileError::Stream { stream: stream.name.clone(), why };
        self.next[number] = requests.next_arrival().map_err(invalid)?;
        Ok(())
    }

    /// The stream of the next request, and its arrival.
    fn earliest(&self) -> Option<(usize, Time)> {
        let next = self.next.iter().enumerate();
        let next = next.filter_map(|(stream, at)| Some((stream, (*at)?)));
        next.min_by_key(|(stream, at)| (*at, *stream))
    }

    /// Time of the next arrival.
    pub(super) fn next_arrival(&self) -> Option<Time> {
        if self.offered == self.requests { None } else { self.earliest().map(|(_, at)| at) }
    }

    /// The next request.
    pub(super) fn take(&mut self) -> Result<Option<Offered>, WorkloadFileError> {
        let Some((number, at)) = self.earliest().filter(|_| self.offered < self.requests) else {
            return Ok(None);
        };
        let (stream, requests) = &mut self.streams[number];
        let invalid = |why| WorkloadFileError::Stream { stream: stream.name.clone(), why };
        let Some(mut request) = Arrivals::next(requests, at).map_err(invalid)? else {
            return Ok(None);
        };
        let index = self.offered;
        self.offered += 1;
        let [a, b, c, d] = [0, 1, 2, 3].map(|purpose| uniforms(self.seed, index, purpose));
        let due = stream.deadline.as_ref().filter(|_| a[0] < stream.deadline_fraction);
        request.deadline = due.map(|seconds| request.arrival + seconds.at(b));
        request.id = RequestId(index);
        let max_tokens = stream.max_tokens.unwrap_or(request.max_tokens);
        request.max_tokens = request.max_tokens.min(max_tokens);
        let offered = Offered {
            index,
            stream: number,
            request,
            max_tokens,
            output_is_known: stream.max_tokens.is_none(),
            chances: c,
            jitter: d[0],
        };
        self.look(number)?;
        Ok(Some(offered))
    }
}

/// Two uniform numbers in [0, 1) for a purpose of a request.
fn uniforms(seed: u64, index: u64, purpose: u32) -> [f64; 2] {
    let key = [seed as u32 ^ 0x51b_a5e, (seed >> 32) as u32];
    let [a, b, c, d] = philox4x32(key, [index as u32, (index >> 32) as u32, purpose, 0]);
    [(a, b), (c, d)].map(|(low, high)| {
        let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
        bits as f64 / (1_u64 << 53) as f64
    })
}
