//! What scheduling costs: scheduler and block manager, with a model that answers at once.
//!
//! * `decode`: a whole step (plan, resolve, apply) in which so many requests get one token each, at a context of 1,000;
//! * `decode_ahead`: the same, each step planned before the one before it is applied;
//! * `decode_1024`: as `decode`, with a million requests waiting, and with a pool of ten times as many blocks;
//! * `admission`: a prompt of 3,000 tokens that is cached begins (`plan`), and the same with its arrival, where its blocks
//!   are hashed (`arrive_and_plan`).
//!
//! vLLM 0.32's scheduler takes 24, 1,946 and 7,760 us for such a step with 1, 256 and 1,024 requests, and 453 us for such an
//! admission.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use l5_scheduler::{Request, RequestId, Resolved, Scheduler, SchedulerConfig, StepOutput, Time};

/// A request whose prompt nobody else has.
fn request(id: u64, len: usize, max_tokens: usize) -> Request {
    let token = |i: usize| (id as u32).wrapping_mul(2_654_435_761).wrapping_add(i as u32);
    Request {
        id: RequestId(id),
        prompt: (0..len).map(token).collect(),
        max_tokens,
        ..Request::default()
    }
}

/// A scheduler and a model that always says the same.
struct World {
    scheduler: Scheduler,
    output: StepOutput,
    resolved: Resolved,
}

impl World {
    fn new(config: SchedulerConfig) -> Self {
        let scheduler = Scheduler::new(config).expect("a configuration that works");
        Self { scheduler, output: StepOutput::default(), resolved: Resolved::default() }
    }

    fn add(&mut self, request: Request) {
        self.scheduler.add_request(request).expect("a request that is taken");
    }

    fn step(&mut self) {
        self.scheduler.plan(Time::ZERO);
        self.run();
    }

    fn step_ahead(&mut self) {
        if !self.scheduler.is_open() {
            self.scheduler.plan(Time::ZERO);
        }
        self.scheduler.plan_ahead(Time::ZERO).expect("nothing is in the way");
        self.run();
    }

    fn run(&mut self) {
        let Self { scheduler, output, resolved } = self;
        output.clear();
        for (number, row) in scheduler.due().step().rows.iter().enumerate() {
            if row.samples {
                output.push(number, &[5], None);
            }
        }
        scheduler.resolve(output, resolved).expect("the output of this step");
        scheduler.apply(resolved, Time::ZERO);
        black_box(scheduler.take_ended().count());
    }

    /// `running` requests that decode at a context of 1,000, and others that wait for a seat.
    fn decoding(running: usize, waiting: usize, blocks_each: usize) -> Self {
        let mut world = Self::new(SchedulerConfig {
            max_num_seqs: running,
            max_num_batched_tokens: running * 1000,
            max_model_len: 8192,
            ..SchedulerConfig::new(running * blocks_each + 1, 16)
        });
        (0..running as u64).for_each(|id| world.add(request(id, 1000, 7000)));
        world.step();
        (0..waiting as u64).for_each(|id| world.add(request(1_000_000 + id, 8, 4)));
        assert_eq!(
            (world.scheduler.num_running(), world.scheduler.num_waiting()),
            (running, waiting)
        );
        world
    }
}

/// Steps of which each is like the one before; when the answers get long, everybody begins anew, out of the measured time.
fn decode(
    c: &mut Criterion,
    name: &str,
    (running, waiting, blocks_each): (usize, usize, usize),
    step: fn(&mut World),
) {
    let mut world = World::decoding(running, waiting, blocks_each);
    let mut steps = 0;
    c.bench_function(name, |b| {
        b.iter_custom(|iterations| {
            let mut time = Duration::ZERO;
            for _ in 0..iterations {
                if steps == 6000 {
                    world = World::decoding(running, waiting, blocks_each);
                    steps = 0;
                }
                let began = Instant::now();
                step(&mut world);
                time += began.elapsed();
                steps += 1;
            }
            time
        });
    });
}

fn decoding(c: &mut Criterion) {
    for running in [1, 256, 1024] {
        decode(c, &format!("decode/{running}"), (running, 0, 512), World::step);
    }
    for running in [1, 256, 1024] {
        let name = format!("decode_ahead/{running}");
        decode(c, &name, (running, 0, 512), World::step_ahead);
    }
    decode(c, "decode_1024/a_million_wait", (1024, 1_000_000, 512), World::step);
    decode(c, "decode_1024/ten_times_the_pool", (1024, 0, 5120), World::step);
}

fn admission(c: &mut Criterion) {
    for with_arrival in [false, true] {
        let name = if with_arrival { "arrive_and_plan" } else { "plan" };
        let config = SchedulerConfig {
            max_num_batched_tokens: 8192,
            max_model_len: 8192,
            ..SchedulerConfig::new(4096, 16)
        };
        let mut world = World::new(config);
        let prompt = request(0, 3000, 1).prompt;
        world.add(request(0, 3000, 1));
        world.step();
        let mut id = 0;
        c.bench_function(&format!("admission/{name}"), |b| {
            b.iter_custom(|iterations| {
                let mut time = Duration::ZERO;
                for _ in 0..iterations {
                    id += 1;
                    let request = Request { prompt: prompt.clone(), ..request(id, 0, 1) };
                    let mut began = Instant::now();
                    world.add(request);
                    if !with_arrival {
                        began = Instant::now();
                    }
                    world.scheduler.plan(Time::ZERO);
                    time += began.elapsed();
                    assert_eq!(world.scheduler.view().step().rows[0].cached, 2992);
                    world.run();
                }
                time
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = decoding, admission
}
criterion_main!(benches);
