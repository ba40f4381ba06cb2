//! A recorded run of an ensemble: the runs of its engines, and the way of each request to them.

use std::collections::HashMap;
use std::io::BufRead;

use super::ensemble::{EnsembleEvent, EnsembleHeader, RouteEvent, ShadowEvent};
use super::event::{Event, Header};
use super::read::{EngineName, EnsembleLine, EnsembleReader, TraceError};
use super::run::{Fold, Run, ns};

/// A recorded run of an ensemble. All times are of one clock.
#[derive(Clone, Debug)]
pub struct EnsembleRun {
    /// Header of the recording.
    pub header: EnsembleHeader,
    /// Engines, in the order of their lanes and replicas.
    pub engines: Vec<EngineRun>,
    /// Requests as they came to the server, in the order of their arrival.
    pub routes: Vec<Route>,
    /// Number of lines that were dropped while the run was recorded.
    pub dropped: u64,
    /// Number of steps of the recording that were left out.
    pub left_out: usize,
}

/// The run of one engine.
#[derive(Clone, Debug)]
pub struct EngineRun {
    /// Name of the lane.
    pub lane: String,
    /// Number of the replica in its lane.
    pub replica: u32,
    /// Whether the engine was recorded. One that relays to another server was not: only routes to it are known.
    pub recorded: bool,
    /// Its steps and requests.
    pub run: Run,
}

/// The way of a request to its engine.
#[derive(Clone, Debug)]
pub struct Route {
    /// What was recorded of it.
    pub event: RouteEvent,
    /// The engine's requests that came of it.
    pub requests: Vec<RequestAt>,
    /// Its shadow, if one was submitted.
    pub shadow: Option<(ShadowEvent, RequestAt)>,
}

/// A request in a run of an ensemble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestAt {
    /// Index in [`EnsembleRun::engines`].
    pub engine: usize,
    /// Index in [`Run::lanes`].
    pub request: usize,
}

impl EnsembleRun {
    /// Reads a recording to its end, and keeps its first `most` steps, of all engines together.
    ///
    /// # Errors
    /// [`TraceError`]
    pub fn read(mut reader: EnsembleReader<impl BufRead>, most: usize) -> Result<Self, TraceError> {
        let mut reading = Reading::default();
        let (mut steps, mut left_out, mut dropped) = (0, 0, 0);
        while let Some(line) = reader.next_line()? {
            if let EnsembleLine::Engine(_, Event::Step(_)) = &line {
                steps += 1;
                left_out += usize::from(steps > most);
            }
            match line {
                EnsembleLine::Other(EnsembleEvent::Dropped { lines }) => dropped += lines,
                _ if left_out > 0 => {}
                EnsembleLine::Started(name, header) => {
                    let at = reading.engine(name);
                    reading.engines[at].recorded = true;
                    reading.engines[at].fold.run.header = header;
                }
                EnsembleLine::Engine(name, event) => {
                    let at = reading.engine(name);
                    reading.engines[at].fold.event(event);
                }
                EnsembleLine::Other(EnsembleEvent::Route(route)) => reading.routes.push(route),
                EnsembleLine::Other(EnsembleEvent::Shadow(shadow)) => reading.shadows.push(shadow),
                // The reader makes it `Started`.
                EnsembleLine::Other(EnsembleEvent::Engine(_)) => {}
            }
        }
        let run = Self {
            header: reader.header().clone(),
            engines: Vec::new(),
            routes: Vec::new(),
            dropped,
            left_out,
        };
        Ok(reading.finish(run))
    }

    /// Time at which a request was with its engine, or was refused, or was given up by its client.
    pub fn left_router(&self, route: &Route) -> u64 {
        let RouteEvent { decided_us, admitted_us, refused, .. } = &route.event;
        let decided = ns(*decided_us);
        match admitted_us {
            Some(admitted) => {
                let requests = route.requests.iter();
                let arrived =
                    requests.map(|at| self.engines[at.engine].run.lanes[at.request].arrived);
                arrived.chain([ns(*admitted)]).min().unwrap_or(decided).max(decided)
            }
            None => refused.last().map_or(decided, |refused| ns(refused.at_us)),
        }
    }

    /// Times of the first arrival and of the last end.
    pub fn bounds(&self) -> (u64, u64) {
        let runs = self.engines.iter().map(|engine| &engine.run);
        // An engine that is shut down has a last step without rows, perhaps long after the last request.
        let steps = runs.clone().flat_map(|run| &run.steps);
        let steps = steps.filter(|step| step.tokens() > 0 || step.abandoned);
        let lanes = runs.flat_map(|run| &run.lanes);
        let starts = lanes.clone().map(|lane| lane.arrived);
        let starts = starts.chain(steps.clone().map(|step| step.start));
        let ends = lanes.map(|lane| lane.end.as_ref().map_or(lane.arrived, |end| end.at));
        let ends = ends.chain(steps.map(|step| step.end));
        let routes = self.routes.iter().map(|route| &route.event);
        let arrived = routes.map(|route| ns(route.arrived_us));
        let left = self.routes.iter().map(|route| self.left_router(route));
        let start = starts.chain(arrived).min().unwrap_or(0);
        let end = ends.chain(left).max().unwrap_or(0);
        (start, end.max(start))
    }
}

/// A recording that is being read.
#[derive(Default)]
struct Reading {
    engines: Vec<EngineFold>,
    by_name: HashMap<EngineName, usize>,
    routes: Vec<RouteEvent>,
    shadows: Vec<ShadowEvent>,
}

struct EngineFold {
    name: EngineName,
    recorded: bool,
    fold: Fold,
}

impl Reading {
    /// Index of an engine. One that was not recorded has a header without limits.
    fn engine(&mut self, name: EngineName) -> usize {
        let engines = &mut self.engines;
        *self.by_name.entry(name).or_insert_with_key(|name| {
            let fold = Fold::new(Header::unknown());
            engines.push(EngineFold { name: name.clone(), recorded: false, fold });
            engines.len() - 1
        })
    }

    /// A request of an engine. If the engine was not recorded, or the request's line was dropped, it arrived at `at_us`.
    fn request(&mut self, name: EngineName, id: u64, at_us: f64) -> RequestAt {
        let engine = self.engine(name);
        RequestAt { engine, request: self.engines[engine].fold.lane(id, ns(at_us)) }
    }

    fn finish(mut self, mut run: EnsembleRun) -> EnsembleRun {
        let mut routes: Vec<Route> = Vec::new();
        for event in std::mem::take(&mut self.routes) {
            let at = event.admitted_us.unwrap_or(event.decided_us);
            let engine = event.lane.clone().zip(event.replica);
            let requests = engine.into_iter().flat_map(|(lane, replica)| {
                let name = EngineName { lane, replica };
                event.requests.iter().map(move |id| (name.clone(), *id))
            });
            let requests = requests.map(|(name, id)| self.request(name, id, at)).collect();
            routes.push(Route { event, requests, shadow: None });
        }
        let by_number: HashMap<u64, usize> =
            routes.iter().enumerate().map(|(i, route)| (route.event.route, i)).collect();
        for shadow in std::mem::take(&mut self.shadows) {
            let name = EngineName { lane: shadow.lane.clone(), replica: shadow.replica };
            let at = self.request(name, shadow.request, shadow.at_us);
            if let Some(route) = by_number.get(&shadow.route) {
                routes[*route].shadow = Some((shadow, at));
            }
        }
        routes.sort_by_key(|route| ns(route.event.arrived_us));
        // Engines start in any order. The page has them as the ensemble's file does.
        let place = |name: &EngineName| {
            let lane = run.header.lanes.iter().position(|lane| *lane == name.lane);
            (lane.unwrap_or(usize::MAX), name.replica)
        };
        let mut order: Vec<usize> = (0..self.engines.len()).collect();
        order.sort_by_key(|at| place(&self.engines[*at].name));
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(new, old)| places[*old] = new);
        for route in &mut routes {
            let shadow = route.shadow.iter_mut().map(|(_, at)| at);
            route.requests.iter_mut().chain(shadow).for_each(|at| at.engine = places[at.engine]);
        }
        let mut engines: Vec<_> = places.into_iter().zip(self.engines).collect();
        engines.sort_by_key(|(place, _)| *place);
        let engines = engines.into_iter().map(|(_, EngineFold { name, recorded, fold })| {
            let EngineName { lane, replica } = name;
            EngineRun { lane, replica, recorded, run: fold.finish() }
        });
        run.engines = engines.collect();
        run.routes = routes;
        run
    }
}
