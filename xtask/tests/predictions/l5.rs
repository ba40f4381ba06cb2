//! The fifth layer answers its own questions.

use std::path::Path;

use l1_tensor::RuntimeOptions;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::engine::{EngineModel, EngineOptions, EngineRequest};
use l5_scheduler::generate::{GenerateRequest, Generator};
use l5_scheduler::{
    Admitted, Job, Note, PolicyContext, PolicyKind, Request, RequestId, RequestView, Resolved,
    Retain, Retention, Scheduler, SchedulerConfig, StepOutput, Time, Victim,
};
use serde_json::Value;

use super::{agree, agree_closely, number, numbers};

/// A pool of so many blocks beside the null block, and steps without a limit in practice.
pub(super) fn config(capacity: usize, block_size: usize) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 16,
        max_num_batched_tokens: 4096,
        ..SchedulerConfig::new(capacity + 1, block_size)
    }
}

pub(super) fn scheduler(config: SchedulerConfig) -> Scheduler {
    Scheduler::new(config).unwrap()
}

/// A request for an answer without end, whose `len` tokens no other request has.
pub(super) fn request(id: usize, len: usize) -> Request {
    let prompt = (0..len).map(|i| (10_000 * (id + 1) + i) as u32).collect();
    Request { id: RequestId(id as u64), prompt, max_tokens: 1000, ..Request::default() }
}

pub(super) fn add(scheduler: &mut Scheduler, request: Request) {
    scheduler.add_request(request).unwrap();
}

/// Run the planned step: every row that samples gets this token.
pub(super) fn run(scheduler: &mut Scheduler, token: u32) {
    let mut out = StepOutput::default();
    for (i, _) in scheduler.view().step().rows.iter().enumerate().filter(|(_, row)| row.samples) {
        out.push(i, &[token], None);
    }
    let mut resolved = Resolved::default();
    scheduler.resolve(&out, &mut resolved).unwrap();
    scheduler.apply(&resolved, Time::ZERO);
}

pub(super) fn step(scheduler: &mut Scheduler, token: u32) {
    scheduler.plan(Time::ZERO);
    run(scheduler, token);
}

/// Whether any request runs or waits.
fn busy(scheduler: &Scheduler) -> bool {
    scheduler.num_running() + scheduler.num_waiting() > 0
}

/// Tokens of the step that is planned, for one request.
fn planned(scheduler: &Scheduler, id: usize) -> usize {
    let rows = &scheduler.view().step().rows;
    rows.iter().find(|row| row.id == RequestId(id as u64)).map_or(0, |row| row.len)
}

/// Tokens that a request has written.
pub(super) fn written(scheduler: &Scheduler, id: usize) -> usize {
    let request = scheduler.request(RequestId(id as u64)).unwrap();
    request.num_tokens() - request.prompt_len()
}

fn policy(facts: &Value) -> PolicyKind {
    facts["policy"].as_str().unwrap().parse().unwrap()
}

/// `[name, came at, priority, ..]`.
fn urgent(row: &Value, len: usize) -> Request {
    let row = numbers(row);
    let (arrival, priority) = (Time(row[1] as f64), row[2] as i64);
    Request { arrival, priority, ..request(row[0], len) }
}

pub(super) fn list(facts: &Value) -> &[Value] {
    facts.as_array().unwrap()
}

#[test]
fn requests_are_taken_or_refused_as_said() {
    let word = |answer: &Value| answer.as_str().unwrap().to_string();
    agree(("l5", "arrival-verdict"), 200, word, |facts| {
        let size = number(&facts["block_size"]);
        let mut scheduler = scheduler(SchedulerConfig {
            max_model_len: number(&facts["max_model_len"]),
            ..config(number(&facts["num_blocks"]) - 1, size)
        });
        let max_tokens = number(&facts["max_tokens"]);
        let request = Request { max_tokens, ..request(0, number(&facts["prompt"])) };
        match scheduler.add_request(request) {
            Ok(_) => "taken".into(),
            Err(rejection) => rejection.code().into(),
        }
    });
}

#[test]
fn the_queue_is_in_the_order_said() {
    agree(("l5", "queue-order"), 200, numbers, |facts| {
        let mut scheduler = scheduler(SchedulerConfig { policy: policy(facts), ..config(100, 4) });
        let (first, others) = list(&facts["requests"]).split_at(number(&facts["ran"]));
        first.iter().for_each(|row| add(&mut scheduler, urgent(row, 5)));
        step(&mut scheduler, 7);
        others.iter().for_each(|row| add(&mut scheduler, urgent(row, 5)));
        let preempted = scheduler.reset_prefix_cache(true).unwrap();
        assert_eq!(preempted.len(), first.len());
        scheduler.waiting().map(|request| request.id().0 as usize).collect()
    });
}

#[test]
fn the_one_said_is_preempted_first() {
    agree(("l5", "gives-way"), 200, number, |facts| {
        let policy = policy(facts);
        let mut scheduler = scheduler(SchedulerConfig { policy, ..config(100, 4) });
        let requests = list(&facts["requests"]);
        for row in requests {
            add(&mut scheduler, urgent(row, 5));
            step(&mut scheduler, 7);
        }
        let running: Vec<_> = scheduler.running().collect();
        let needy = &running[number(&facts["needy"])];
        let context = PolicyContext {
            now: Time::ZERO,
            config: scheduler.config(),
            leases: scheduler.leases(),
            num_free: scheduler.blocks().num_free(),
            num_running: scheduler.num_running(),
            cost: None,
            prefill_seconds_per_token: None,
            second_memory: None,
            promoted: None,
        };
        match policy.policy().victim(needy, &mut running.iter().copied(), None, &context) {
            Some(Victim::Running(i)) => running[i].id().0 as usize,
            other => panic!("{other:?}"),
        }
    });
}

/// Keeps what every step of a job leaves but the last one.
pub(super) struct KeepsSteps;

impl Retention for KeepsSteps {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        _: &PolicyContext<'_>,
    ) -> Retain {
        if finished.job().is_some_and(|job| !job.last_step) { Retain::Keep } else { Retain::Free }
    }
}

#[test]
fn leases_hold_the_blocks_said() {
    agree(("l5", "leased-blocks"), 200, number, |facts| {
        let mut scheduler = scheduler(config(100, 4)).with_retention(Box::new(KeepsSteps));
        let mut one_step = |id: usize, job: usize, last_step: bool, prompt: Vec<u32>| {
            let job = Some(Job { id: job.to_string(), last_step });
            add(&mut scheduler, Request { job, prompt, max_tokens: 1, ..request(id, 1) });
            step(&mut scheduler, 7);
            scheduler.retained_blocks()
        };
        let leases = list(&facts["leases"]);
        for (id, lease) in leases.iter().enumerate() {
            let [common, own] = [0, 1].map(|i| 4 * number(&lease[i]));
            let own = request(id + 1, own).prompt;
            one_step(id, id, false, (0..common as u32).chain(own).collect());
        }
        one_step(leases.len(), number(&facts["gone"]), true, vec![1])
    });
}

#[test]
fn a_step_is_dealt_out_as_said() {
    agree(("l5", "budget-shares"), 200, numbers, |facts| {
        let [budget, threshold, writing, running] =
            ["budget", "threshold", "writing", "running"].map(|name| number(&facts[name]));
        let (chunked, wanted) = (facts["chunked"] == true, numbers(&facts["wanted"]));
        let mut scheduler = scheduler(SchedulerConfig {
            max_num_seqs: 8,
            max_num_batched_tokens: budget,
            long_prefill_token_threshold: threshold,
            enable_chunked_prefill: chunked,
            max_model_len: if chunked { 10_000 } else { budget },
            ..config(1000, 16)
        });
        (0..writing).for_each(|id| add(&mut scheduler, request(id, 1)));
        step(&mut scheduler, 7);
        if running > writing {
            // One chunk of it is computed when the step comes that is asked about.
            let most = if threshold == 0 { budget } else { threshold };
            let first = most.min(budget - writing);
            add(&mut scheduler, request(writing, first + wanted[writing]));
            step(&mut scheduler, 7);
        }
        for (id, tokens) in wanted.iter().enumerate().skip(running) {
            add(&mut scheduler, request(id, *tokens));
        }
        scheduler.plan(Time::ZERO);
        (0..wanted.len()).map(|id| planned(&scheduler, id)).collect()
    });
}

#[test]
fn a_long_prompt_takes_the_steps_said() {
    agree(("l5", "chunk-steps"), 200, number, |facts| {
        let [budget, others, threshold, cached, prompt] =
            ["budget", "others", "threshold", "cached", "prompt"].map(|name| number(&facts[name]));
        let mut scheduler = scheduler(SchedulerConfig {
            max_num_batched_tokens: budget,
            long_prefill_token_threshold: threshold,
            ..config(1000, 16)
        });
        if cached > 0 {
            // Another request's prompt, with which the request's own begins.
            let begun = Request { id: RequestId(100), ..request(0, cached + 1) };
            add(&mut scheduler, Request { max_tokens: 1, ..begun });
            while busy(&scheduler) {
                step(&mut scheduler, 7);
            }
        }
        (1..=others).for_each(|id| add(&mut scheduler, request(id, 1)));
        step(&mut scheduler, 7);
        let mut asked = request(0, prompt);
        asked.prompt[cached..].iter_mut().for_each(|token| *token += 5000);
        add(&mut scheduler, asked);
        (1..)
            .find(|_| {
                step(&mut scheduler, 7);
                written(&scheduler, 0) > 0
            })
            .unwrap()
    });
}

#[test]
fn as_many_begin_as_said() {
    agree(("l5", "admitted-now"), 200, number, |facts| {
        let [size, free, running, held, seats, budget, keep] =
            ["block_size", "free", "running", "held", "seats", "budget", "keep"]
                .map(|name| number(&facts[name]));
        let capacity = held + free;
        let mut scheduler = scheduler(SchedulerConfig {
            max_num_seqs: seats,
            max_num_batched_tokens: budget,
            max_model_len: 10_000,
            watermark: if keep > 0 { (keep as f64 + 0.5) / (capacity + 1) as f64 } else { 0.0 },
            ..config(capacity, size)
        });
        for id in 0..running {
            let blocks = if id == 0 { held + 1 - running } else { 1 };
            add(&mut scheduler, request(id, blocks * size - 2));
        }
        step(&mut scheduler, 7);
        assert_eq!((scheduler.num_running(), scheduler.blocks().num_free()), (running, free));
        for (i, prompt) in numbers(&facts["prompts"]).into_iter().enumerate() {
            add(&mut scheduler, Request { max_tokens: 1, ..request(running + i, prompt) });
        }
        let plan = scheduler.plan(Time::ZERO);
        plan.rows.iter().filter(|row| row.admitted == Admitted::Now).count()
    });
}

#[test]
fn an_answer_has_the_tokens_said() {
    agree(("l5", "answer-length"), 200, number, |facts| {
        let token = |name: &str| vec![number(&facts[name]) as u32];
        let mut scheduler = scheduler(SchedulerConfig {
            max_model_len: number(&facts["max_model_len"]),
            ..config(100, 4)
        });
        add(
            &mut scheduler,
            Request {
                eos: if facts["ignores"] == true { Vec::new() } else { token("eos") },
                stop_token_ids: token("stop"),
                max_tokens: number(&facts["max_tokens"]),
                ..request(0, number(&facts["prompt"]))
            },
        );
        let mut tokens = numbers(&facts["tokens"]).into_iter();
        let mut length = 0;
        while busy(&scheduler) {
            step(&mut scheduler, tokens.next().unwrap() as u32);
            length += 1;
        }
        length
    });
}

#[test]
fn steps_leave_the_tokens_said() {
    agree(("l5", "computed-after"), 200, numbers, |facts| {
        let mut scheduler = scheduler(SchedulerConfig {
            max_num_seqs: 8,
            max_num_batched_tokens: number(&facts["budget"]),
            ..config(100, 16)
        });
        add(&mut scheduler, request(0, number(&facts["prompt"])));
        (0..number(&facts["steps"])).for_each(|_| step(&mut scheduler, 7));
        let request = scheduler.request(RequestId(0)).unwrap();
        vec![request.num_tokens(), request.num_computed()]
    });
}

/// Requests that run with these tokens, of which the last one is not computed, in a pool that has
/// so many free blocks beside theirs.
fn running(facts: &Value, ends: Option<usize>) -> Scheduler {
    let (size, free) = (number(&facts["block_size"]), number(&facts["free"]));
    let prompts: Vec<usize> = numbers(&facts["tokens"]).iter().map(|tokens| tokens - 1).collect();
    let held: usize = prompts.iter().map(|prompt| prompt.div_ceil(size)).sum();
    let mut scheduler = scheduler(config(held + free, size));
    for (id, prompt) in prompts.iter().enumerate() {
        let max_tokens = if ends == Some(id) { 2 } else { 1000 };
        add(&mut scheduler, Request { max_tokens, ..request(id, *prompt) });
    }
    step(&mut scheduler, 7);
    assert_eq!(scheduler.num_running(), prompts.len());
    assert_eq!(scheduler.blocks().num_free(), free);
    scheduler
}

#[test]
fn a_step_leaves_the_blocks_said() {
    agree(("l5", "free-after-step"), 200, number, |facts| {
        let mut scheduler = running(facts, facts["ends"].as_u64().map(|id| id as usize));
        match number(&facts["prompt"]) {
            0 => {}
            prompt => add(&mut scheduler, request(8, prompt)),
        }
        step(&mut scheduler, 7);
        scheduler.blocks().num_free()
    });
}

#[test]
fn an_answer_fills_the_pool_with_the_tokens_said() {
    agree(("l5", "kv-exhausted"), 200, number, |facts| {
        let mut scheduler = scheduler(SchedulerConfig {
            max_model_len: 4096,
            ..config(number(&facts["num_blocks"]) - 1, number(&facts["block_size"]))
        });
        let max_tokens = number(&facts["max_tokens"]);
        add(&mut scheduler, Request { max_tokens, ..request(0, number(&facts["prompt"])) });
        let mut length = 0;
        loop {
            let ended = !scheduler.plan(Time::ZERO).ended.is_empty();
            run(&mut scheduler, 7);
            length += usize::from(!ended);
            if !busy(&scheduler) {
                return length;
            }
        }
    });
}

#[test]
fn a_preempted_request_computes_as_much_again_as_said() {
    agree(("l5", "recomputed-tokens"), 200, number, |facts| {
        let [size, prompt, wrote, capacity, taken] =
            ["block_size", "prompt", "written", "capacity", "taken"]
                .map(|name| number(&facts[name]));
        // There is one seat, which goes to the more urgent request.
        let mut scheduler = scheduler(SchedulerConfig {
            policy: PolicyKind::StrictPriority,
            max_num_seqs: 1,
            ..config(capacity, size)
        });
        add(&mut scheduler, Request { priority: 1, ..request(0, prompt) });
        (0..wrote).for_each(|_| step(&mut scheduler, 7));
        add(&mut scheduler, Request { max_tokens: 1, ..request(1, taken * size - 1) });
        assert_eq!(scheduler.plan(Time::ZERO).preempted, [RequestId(0)]);
        run(&mut scheduler, 7);
        scheduler.plan(Time::ZERO);
        planned(&scheduler, 0)
    });
}

#[test]
fn an_abandoned_step_leaves_what_was_said() {
    agree(("l5", "abandoned-step"), 200, numbers, |facts| {
        let mut scheduler = running(facts, None);
        for id in 0..number(&facts["prompts"]) {
            add(&mut scheduler, request(6 + id, number(&facts["prompt"])));
        }
        scheduler.plan(Time::ZERO);
        scheduler.abandon();
        vec![scheduler.blocks().num_free(), scheduler.num_waiting()]
    });
}

/// Tokens of a request, and how many of them are computed, after a step in which the first `right` of its drafts are.
fn after_drafts(prompt: usize, output: usize, drafts: usize, right: usize) -> [usize; 2] {
    let speculative = SchedulerConfig { num_speculative_tokens: drafts, ..config(100, 16) };
    let mut scheduler = scheduler(speculative);
    add(&mut scheduler, request(0, prompt));
    // The output is 7 again and again.
    (1..output).for_each(|_| step(&mut scheduler, 7));
    scheduler.plan(Time::ZERO);
    let (mut out, mut resolved) = (StepOutput::default(), Resolved::default());
    out.push(0, &[7], None);
    let guesses: Vec<u32> = (0..drafts).map(|i| if i < right { 7 } else { 8 }).collect();
    out.propose(0, &guesses);
    scheduler.resolve(&out, &mut resolved).unwrap();
    scheduler.apply(&resolved, Time::ZERO);
    out.clear();
    assert_eq!(scheduler.plan(Time::ZERO).rows[0].drafts, drafts);
    out.push(0, &vec![7; right + 1], None);
    scheduler.resolve(&out, &mut resolved).unwrap();
    scheduler.apply(&resolved, Time::ZERO);
    let request = scheduler.request(RequestId(0)).unwrap();
    [request.num_tokens(), request.num_computed()]
}

#[test]
fn a_step_with_drafts_computes_what_is_said() {
    agree(("l5", "drafts"), 100, numbers, |facts| {
        let [prompt, output, drafts, right] =
            ["prompt", "output", "drafts", "right"].map(|name| number(&facts[name]));
        after_drafts(prompt, output, drafts, right).to_vec()
    });
}

#[test]
fn drafts_speed_an_engine_up_as_is_said() {
    agree_closely(("l5", "draft-speed-up"), |facts| {
        let [percent, k, without, with] =
            ["percent", "k", "without", "with"].map(|name| number(&facts[name]));
        let a = percent as f64 / 100.0;
        // Every way in which a step can end, as the scheduler counts its tokens.
        let tokens = (0..=k).map(|right| {
            let chance = a.powi(right as i32) * if right < k { 1.0 - a } else { 1.0 };
            chance * (after_drafts(5, 2, k, right)[0] - 7) as f64
        });
        (tokens.sum::<f64>() * without as f64 / with as f64) as f32
    });
}

#[test]
fn a_step_ahead_has_the_rows_said() {
    agree(("l5", "rows-ahead"), 100, numbers, |facts| {
        let requests: Vec<_> = list(&facts["requests"]).iter().map(numbers).collect();
        let mut scheduler = scheduler(config(100, 16));
        for (id, request) in requests.iter().enumerate() {
            let [generated, max_tokens] = [request[0], request[1]];
            // So many tokens behind the prompt, computed as part of one, are as good as output.
            let max_tokens = max_tokens - generated + 1;
            let request = Request { max_tokens, stop_token_ids: vec![9], ..self::request(id, 3) };
            add(&mut scheduler, request);
        }
        step(&mut scheduler, 7);
        scheduler.plan(Time::ZERO);
        let rows = scheduler.plan_ahead(Time::ZERO).map_or(0, |step| step.rows.len());
        let (mut out, mut resolved) = (StepOutput::default(), Resolved::default());
        for (row, request) in requests.iter().enumerate() {
            out.push(row, &[if request[2] == 1 { 9 } else { 7 }], None);
        }
        scheduler.resolve(&out, &mut resolved).unwrap();
        scheduler.apply(&resolved, Time::ZERO);
        let ahead = if rows == 0 { &[][..] } else { &scheduler.due().step().rows };
        vec![rows, ahead.iter().filter(|row| !row.samples).count()]
    });
}

#[test]
fn requests_have_the_seats_said() {
    agree(("l5", "seat"), 200, number, |facts| {
        let then = numbers(&facts["then"]);
        let seats = number(&facts["seats"]);
        let mut scheduler = scheduler(SchedulerConfig { max_num_seqs: seats, ..config(100, 4) });
        numbers(&facts["first"]).into_iter().for_each(|id| add(&mut scheduler, request(id, 3)));
        step(&mut scheduler, 7);
        for id in numbers(&facts["end"]) {
            assert!(scheduler.abort(RequestId(id as u64)));
        }
        then.iter().for_each(|id| add(&mut scheduler, request(*id, 3)));
        step(&mut scheduler, 7);
        let asked = scheduler.request(RequestId(then[number(&facts["nth"])] as u64)).unwrap();
        asked.seat().unwrap().index as usize
    });
}

#[test]
fn those_said_give_way_to_who_cannot_wait() {
    agree(("l5", "strict-room"), 200, numbers, |facts| {
        let [free, seats] = ["free", "seats"].map(|name| number(&facts[name]));
        let running = list(&facts["running"]);
        let held: usize = running.iter().map(|row| number(&row[3])).sum();
        let mut scheduler = scheduler(SchedulerConfig {
            policy: PolicyKind::StrictPriority,
            max_num_seqs: seats,
            ..config(held + free, 8)
        });
        for row in running {
            add(&mut scheduler, urgent(row, 8 * number(&row[3]) - 4));
        }
        step(&mut scheduler, 7);
        assert_eq!(scheduler.running().len(), running.len());
        assert_eq!(scheduler.blocks().num_free(), free);
        add(
            &mut scheduler,
            Request {
                priority: number(&facts["priority"]) as i64,
                arrival: Time(100.0),
                ..request(number(&facts["name"]), number(&facts["prompt"]))
            },
        );
        let plan = scheduler.plan(Time::ZERO);
        match plan.preempted.as_slice() {
            [] => vec![0],
            some => some.iter().map(|id| id.0 as usize).collect(),
        }
    });
}

#[test]
fn a_batch_feeds_the_tokens_said() {
    /// The tokens of one row: its state is brought about by a scheduler of its own.
    fn fed(part: &Value) -> Vec<usize> {
        let u32s = |v: &Value| numbers(v).into_iter().map(|t| t as u32).collect::<Vec<_>>();
        let (prompt, answer) = (u32s(&part["prompt"]), u32s(&part["answer"]));
        let (computed, len) = (number(&part["computed"]), number(&part["len"]));
        let budget = match computed {
            0 => len,
            computed if answer.is_empty() => computed,
            _ => 64,
        };
        let mut scheduler = scheduler(SchedulerConfig {
            max_num_seqs: 1,
            max_num_batched_tokens: budget,
            ..config(100, 4)
        });
        add(&mut scheduler, Request { prompt, ..request(0, 1) });
        while written(&scheduler, 0) < answer.len() {
            let token = answer[written(&scheduler, 0)];
            step(&mut scheduler, token);
        }
        if computed == 0 {
            scheduler.reset_prefix_cache(true).unwrap();
        }
        while scheduler.request(RequestId(0)).unwrap().num_computed() < computed {
            step(&mut scheduler, 7);
        }
        scheduler.plan(Time::ZERO);
        let view = scheduler.view();
        let row = view.rows().next().unwrap();
        assert_eq!((row.row.computed, row.row.len), (computed, len));
        row.tokens.iter().map(|token| *token as usize).collect()
    }
    agree(("l5", "fed-tokens"), 200, numbers, |facts| {
        list(&facts["parts"]).iter().flat_map(fed).collect()
    });
}

#[test]
fn tokens_are_chosen_of_the_rows_said() {
    agree(("l5", "sampled-rows"), 200, numbers, |facts| {
        let (prompts, steps) = (numbers(&facts["prompts"]), numbers(&facts["steps"]));
        let mut scheduler = scheduler(SchedulerConfig {
            long_prefill_token_threshold: number(&facts["chunk"]),
            ..config(100, 4)
        });
        for left in (0..=steps[0]).rev() {
            for id in (0..steps.len()).filter(|id| steps[*id] == left) {
                add(&mut scheduler, request(id, prompts[id]));
            }
            scheduler.plan(Time::ZERO);
            if left > 0 {
                run(&mut scheduler, 7);
            }
        }
        let view = scheduler.view();
        let rows = &view.step().rows;
        assert_eq!(rows.iter().map(|row| row.len).collect::<Vec<_>>(), numbers(&facts["lens"]));
        let mut end = 0;
        let ends = rows.iter().map(|row| {
            end += row.len;
            (end - 1, row.samples)
        });
        ends.filter(|(_, samples)| *samples).map(|(row, _)| row).collect()
    });
}

#[test]
fn choices_share_as_much_of_a_prompt_as_said() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let model = EngineModel::open(&dir, RuntimeOptions::default()).unwrap();
    agree(("l5", "shared-prompt"), 50, number, |facts| {
        let [block_size, len, n, best_of] =
            ["block_size", "prompt", "n", "best_of"].map(|name| number(&facts[name]));
        let options = EngineOptions {
            block_size,
            max_num_seqs: n.max(best_of),
            max_model_len: Some(len + 8),
            ..EngineOptions::default()
        };
        let mut generator = Generator::open(model.clone(), &options).unwrap();
        let prompt: Vec<u32> = (0..len as u32).map(|i| i % 300).collect();
        let stop = StopRules { max_tokens: 3, ignore_eos: true, ..StopRules::default() };
        let request = EngineRequest::new(prompt, SamplingParams::default(), stop);
        let request = GenerateRequest { request, n, best_of };
        let done = generator.run(&request, |_, _| true).unwrap();
        assert_eq!(done.choices.len(), n);
        done.work.prompt_computed
    });
}
