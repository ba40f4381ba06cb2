//! What a decision of the door costs: a machine with eight lanes of eight seats, all taken, with waiting requests in
//! each, and recent arrivals.
//!
//! * `work`: what each of the neighbours is asked for;
//! * `decide`: the decision, from the work of the neighbours.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use l5_scheduler::engine::LoadMeter;
use l5_scheduler::{Load, PolicyKind, RequestId, SchedulerConfig, StepLoad, Time};
use l6_ensemble::admission::{AdmissionRequest, LaneView, Margins, decide};
use l6_ensemble::quote::{InFlight, LaneWork, Quote, RequestSize};

const SEATS: usize = 8;
const LANES: u64 = 8;

fn load() -> Load {
    let mut meter = LoadMeter::default();
    for rows in 1..20 {
        let work = StepLoad { decode_tokens: rows % 8 + 1, ..StepLoad::default() };
        meter.step(&work, Duration::from_micros(5000 + 300 * work.decode_tokens as u64));
        let work = StepLoad { prefill_tokens: 50, decode_tokens: rows % 8, ..StepLoad::default() };
        meter.step(&work, Duration::from_micros(20_000 + 300 * work.decode_tokens as u64));
    }
    meter.load()
}

fn request(id: u64, now: f64) -> AdmissionRequest {
    let output = 10 + (id * 37 % 70) as usize;
    let size = RequestSize {
        prompt_tokens: 20 + (id * 53 % 80) as usize,
        cached_tokens: 0,
        max_tokens: output,
        expected_output_tokens: Some(output as f64),
    };
    let deadline = Some(Time(now + 5.0 + (id * 29 % 20) as f64));
    AdmissionRequest { size, deadline, now: Time(now), ..AdmissionRequest::default() }
}

/// A lane with all seats taken and `waiting` more requests.
fn lane(waiting: usize) -> InFlight {
    let mut in_flight = InFlight::new(PolicyKind::StrictPriority);
    for id in 0..64 {
        let at = 0.4 * id as f64;
        in_flight.admit(RequestId(id), request(id, at).admitted(&Quote::default()), Time(at));
        let is_seated = id as usize >= 64 - waiting - SEATS && (id as usize) < 64 - waiting;
        if is_seated || (id as usize) < 64 - waiting {
            in_flight.output(RequestId(id), 1, Time(at + 0.1));
        }
        if (id as usize) < 64 - waiting - SEATS {
            in_flight.end(RequestId(id), true);
        }
    }
    in_flight
}

fn bench(c: &mut Criterion) {
    let config = SchedulerConfig { max_num_seqs: SEATS, ..SchedulerConfig::new(513, 16) };
    let (load, now) = (load(), Time(26.0));
    for waiting in [0, 4, 32] {
        let in_flight = lane(waiting);
        c.bench_function(&format!("work/{waiting}_waiting"), |b| {
            b.iter(|| black_box(&in_flight).work(&config, &load, now));
        });
        let neighbours: Vec<LaneWork> =
            (1..LANES).map(|_| in_flight.work(&config, &load, now)).collect();
        let view = LaneView {
            load,
            config: &config,
            in_flight: &in_flight,
            max_num_waiting: 256,
            priority_floor: None,
            neighbours: &neighbours,
            margins: Margins::default(),
        };
        let new = AdmissionRequest { jitter: 0.5, ..request(1000, 26.0) };
        c.bench_function(&format!("decide/{waiting}_waiting"), |b| {
            b.iter(|| decide(black_box(&new), &view));
        });
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
