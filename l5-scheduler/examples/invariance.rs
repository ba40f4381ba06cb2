//! Does an answer depend on its company? `cargo run -p l5-scheduler --example invariance`
//!
//! A small network answers eight prompts, each alone and then all of them together, through the same scheduler and the
//! same loop. Nothing is drawn by chance: the likeliest token is taken. This is done with two matmuls. One adds a row's
//! products in one order, always. The other splits a long sum into parts when there is but one row, so that many cores
//! would have work, as fast libraries do: right to as many digits, and in another order than for eight rows.
//!
//! Then the house's own engine is put to the same test. The exit status says whether everything came as promised.

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use l1_tensor::{DType, Runtime, RuntimeOptions};
use l2_model::ModelFiles;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::{
    BySeat, Caps, ChoiceJob, EngineCore, ExecuteError, Executor, FinishReason, ModelRunner,
    OutputEnd, OutputSink, Request, RequestId, Scheduler, SchedulerConfig, StepHandle, StepOutput,
    StepView, Time, TokenDelta,
};

type Anyhow<T> = Result<T, Box<dyn std::error::Error>>;

/// Requests of the experiment.
const REQUESTS: u64 = 8;
/// Tokens of an answer by the small network, and by the real one.
const TOKENS: usize = 400;
const REAL_TOKENS: usize = 32;

/// In which order the products of a row are added up.
#[derive(Clone, Copy)]
enum Order {
    /// One after the other, whoever else is there.
    One,
    /// As suits the number of rows.
    ByRows,
}

impl Order {
    /// Into how many sums a row's is split.
    fn parts(self, rows: usize) -> usize {
        match self {
            Self::ByRows if rows == 1 => 8,
            Self::One | Self::ByRows => 1,
        }
    }
}

/// Weights, `inputs` by `outputs`.
struct Matrix {
    inputs: usize,
    outputs: usize,
    weights: Vec<f32>,
}

impl Matrix {
    fn random(numbers: &mut Numbers, inputs: usize, outputs: usize) -> Self {
        let scale = 1.7 / (inputs as f32).sqrt();
        let weights = (0..inputs * outputs).map(|_| scale * numbers.next()).collect();
        Self { inputs, outputs, weights }
    }

    /// All rows of `x` times the weights.
    fn times(&self, x: &[f32], order: Order) -> Vec<f32> {
        let parts = order.parts(x.len() / self.inputs);
        let mut out = Vec::with_capacity(x.len() / self.inputs * self.outputs);
        for row in x.chunks(self.inputs) {
            let mut sum = vec![0.0; self.outputs];
            let (len, width) = (self.inputs / parts, self.inputs / parts * self.outputs);
            for (row, weights) in row.chunks(len).zip(self.weights.chunks(width)) {
                let mut part = vec![0.0; self.outputs];
                for (x, weights) in row.iter().zip(weights.chunks(self.outputs)) {
                    part.iter_mut().zip(weights).for_each(|(sum, w)| *sum += x * w);
                }
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
            out.extend(sum);
        }
        out
    }
}

/// As models keep what flows between their layers: the nearest number with eight significant bits (bf16).
fn rounded(mut x: Vec<f32>) -> Vec<f32> {
    for x in &mut x {
        let bits = x.to_bits();
        *x = f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000);
    }
    x
}

/// Every row of length 1, on average.
fn normed(x: &[f32], width: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks(width) {
        let square: f32 = row.iter().map(|x| x * x).sum();
        let scale = (square / width as f32 + 1e-6).sqrt().recip();
        out.extend(row.iter().map(|x| x * scale));
    }
    rounded(out)
}

/// A layer of a transformer with one head.
struct Layer {
    query: Matrix,
    key: Matrix,
    value: Matrix,
    out: Matrix,
    up: Matrix,
    down: Matrix,
}

/// Keys and values of one sequence in one layer.
#[derive(Clone, Default)]
struct Memory {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Rows of logits by request, in the order of its tokens.
type Record = Arc<Mutex<HashMap<u64, Vec<Vec<f32>>>>>;

fn record(record: &Record, id: RequestId, logits: &[f32]) {
    if let Ok(mut record) = record.lock() {
        record.entry(id.0).or_default().push(logits.to_vec());
    }
}

/// A small language model with random weights. It is an executor, as the real one is, so the scheduler runs it.
struct Network {
    order: Order,
    embedding: Matrix,
    positions: Matrix,
    layers: Vec<Layer>,
    head: Matrix,
    /// Of each request, by layer.
    memory: BySeat<Vec<Memory>>,
    record: Record,
}

impl Network {
    const WIDTH: usize = 64;
    const VOCAB: usize = 256;

    fn new(order: Order, record: Record) -> Self {
        let numbers = &mut Numbers(20);
        let width = Self::WIDTH;
        let layer = |numbers: &mut Numbers| {
            let mut square = || Matrix::random(numbers, width, width);
            let (query, key, value, out) = (square(), square(), square(), square());
            let up = Matrix::random(numbers, width, 4 * width);
            Layer { query, key, value, out, up, down: Matrix::random(numbers, 4 * width, width) }
        };
        Self {
            order,
            embedding: Matrix::random(numbers, Self::VOCAB, width),
            positions: Matrix::random(numbers, TOKENS + 64, width),
            layers: (0..2).map(|_| layer(numbers)).collect(),
            head: Matrix::random(numbers, width, Self::VOCAB),
            memory: BySeat::default(),
            record,
        }
    }

    /// One token at each position of `x` looks back at all before it, in their order.
    fn attend(memory: &Memory, queries: &[f32], computed: usize) -> Vec<f32> {
        let width = Self::WIDTH;
        let mut out = Vec::with_capacity(queries.len());
        for (i, query) in queries.chunks(width).enumerate() {
            let seen = (computed + i + 1) * width;
            let dot = |key: &[f32]| query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>();
            let scores = memory.keys[..seen].chunks(width).map(|key| dot(key) / 8.0);
            let weights: Vec<f32> = scores.map(f32::exp).collect();
            let total: f32 = weights.iter().sum();
            let mut mixed = vec![0.0; width];
            for (weight, value) in weights.iter().zip(memory.values.chunks(width)) {
                mixed.iter_mut().zip(value).for_each(|(sum, v)| *sum += weight / total * v);
            }
            out.extend(mixed);
        }
        rounded(out)
    }
}

impl Executor for Network {
    type Job = ();
    type Error = ExecuteError;

    fn caps(&self) -> Caps {
        Caps { max_tokens: usize::MAX, max_seqs: usize::MAX, ..Caps::default() }
    }

    fn begin(&mut self, id: RequestId, _job: ()) {
        self.memory.insert(id, vec![Memory::default(); self.layers.len()]);
    }

    fn collect(
        &mut self,
        _: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let (width, order) = (Self::WIDTH, self.order);
        let mut x = Vec::new();
        for view in step.rows() {
            let at = |matrix: &Matrix, i: usize| matrix.weights[i * width..][..width].to_vec();
            for (position, token) in (view.row.computed..).zip(view.tokens) {
                let (token, position) =
                    (at(&self.embedding, *token as usize), at(&self.positions, position));
                x.extend(
                    token.iter().zip(&position).map(|(token, position)| 8.0 * token + position),
                );
            }
        }
        let add = |x: &mut Vec<f32>, more: Vec<f32>| {
            x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
            *x = rounded(std::mem::take(x));
        };
        for (l, layer) in self.layers.iter().enumerate() {
            let normal = normed(&x, width);
            let [queries, keys, values] = [&layer.query, &layer.key, &layer.value]
                .map(|matrix| rounded(matrix.times(&normal, order)));
            let mut seen = Vec::new();
            for row in &step.step().rows {
                let layers = self.memory.seated(row.seat, row.id);
                let memory = &mut layers.expect("a request with a row has begun")[l];
                let new = seen.len()..seen.len() + row.len * width;
                memory.keys.extend(&keys[new.clone()]);
                memory.values.extend(&values[new.clone()]);
                seen.extend(Self::attend(memory, &queries[new], row.computed));
            }
            add(&mut x, layer.out.times(&seen, order));
            let mut wide = rounded(layer.up.times(&normed(&x, width), order));
            wide.iter_mut().for_each(|x| *x = x.max(0.0));
            add(&mut x, layer.down.times(&wide, order));
        }
        let mut end = 0;
        let mut last = Vec::new();
        for row in &step.step().rows {
            end += row.len * width;
            if row.samples {
                last.extend(&x[end - width..end]);
            }
        }
        let logits = self.head.times(&normed(&last, width), order);
        let due = step.step().rows.iter().enumerate().filter(|(_, row)| row.samples);
        for ((i, row), logits) in due.zip(logits.chunks(Self::VOCAB)) {
            record(&self.record, row.id, logits);
            out.push(i, &[best(logits)], None);
        }
        Ok(())
    }

    fn end(&mut self, id: RequestId, _reason: FinishReason) {
        self.memory.remove(id);
    }
}

/// The likeliest token, of equals the first.
fn best(logits: &[f32]) -> u32 {
    let first = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    (0..logits.len()).fold(0, first) as u32
}

/// How far the likeliest token is ahead of the next one.
fn margin(logits: &[f32]) -> f32 {
    let best = best(logits) as usize;
    let others = logits.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, logit)| *logit);
    logits[best] - others.fold(f32::NEG_INFINITY, f32::max)
}

/// Numbers between -1 and 1 that are the same everywhere (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// An answer: its tokens, and the row of logits that each is from.
struct Given {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

/// Prompts of different lengths.
fn prompt(id: u64) -> Vec<u32> {
    (0..5 + 3 * id).map(|i| ((7 + 31 * id + 11 * i) % 250) as u32).collect()
}

fn scheduler() -> Anyhow<Scheduler> {
    let config = SchedulerConfig { max_num_seqs: 16, ..SchedulerConfig::new(256, 16) };
    Ok(Scheduler::new(config)?)
}

/// Run requests to their ends, all together.
fn run<E: Executor>(
    executor: E,
    requests: Vec<(Request, E::Job)>,
    record: &Record,
) -> Anyhow<HashMap<u64, Given>> {
    let mut core = EngineCore::new(scheduler()?, executor);
    for (request, job) in requests {
        core.add_request(request, job)?;
    }
    let mut tokens: HashMap<u64, Vec<u32>> = HashMap::new();
    while core.has_unfinished() {
        for (id, new) in core.step_at(Time::ZERO)?.new_tokens() {
            tokens.entry(id.0).or_default().extend(new);
        }
    }
    let mut rows = std::mem::take(&mut *record.lock().map_err(|e| e.to_string())?);
    let given = |(id, tokens)| (id, Given { tokens, logits: rows.remove(&id).unwrap_or_default() });
    Ok(tokens.into_iter().map(given).collect())
}

/// Each alone, and all together, with an executor made for each of these.
fn alone_and_together<E: Executor>(
    make: impl Fn(Record) -> Anyhow<E>,
    request: impl Fn(u64) -> (Request, E::Job),
) -> Anyhow<(Vec<Given>, Vec<Given>)> {
    let record = Record::default();
    let mut alone = Vec::new();
    for id in 0..REQUESTS {
        let mut given = run(make(record.clone())?, vec![request(id)], &record)?;
        alone.extend(given.remove(&id));
    }
    let mut all = run(make(record.clone())?, (0..REQUESTS).map(request).collect(), &record)?;
    let together = (0..REQUESTS).filter_map(|id| all.remove(&id)).collect();
    Ok((alone, together))
}

/// What became of one request's two answers.
struct Parted {
    /// The first token whose logits are not the same bits.
    logits: Option<usize>,
    /// The first token that is another one.
    token: Option<usize>,
}

fn compare(alone: &Given, together: &Given) -> Parted {
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let same = |(a, b): (&Vec<f32>, &Vec<f32>)| bits(a) == bits(b);
    let rows = alone.logits.len() == together.logits.len() && !alone.logits.is_empty();
    let pairs = alone.tokens.iter().zip(&together.tokens);
    let token = pairs.enumerate().find(|(_, (a, b))| a != b).map(|(i, _)| i);
    let length = alone.tokens.len().min(together.tokens.len());
    let longer = (alone.tokens.len() != together.tokens.len()).then_some(length);
    let logits = alone.logits.iter().zip(&together.logits).position(|pair| !same(pair));
    Parted { logits: logits.or((!rows).then_some(0)), token: token.or(longer) }
}

fn network(order: Order) -> Anyhow<(Vec<Given>, Vec<Given>)> {
    alone_and_together(
        |record| Ok(Network::new(order, record)),
        |id| {
            let (id, prompt) = (RequestId(id), prompt(id));
            (Request { id, prompt, max_tokens: TOKENS, ..Request::default() }, ())
        },
    )
}

/// Nobody listens: tokens are taken from the steps.
struct Nobody;

impl OutputSink for Nobody {
    fn push(&mut self, _news: &TokenDelta<'_>) {}
    fn end(&mut self, _end: &OutputEnd) {}
}

/// The house's engine: the smallest model that there is, greedy as well.
fn engine() -> Anyhow<(Vec<Given>, Vec<Given>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let rt = Runtime::new(RuntimeOptions::default())?;
    let decoder = Arc::new(ModelFiles::open(&dir)?.decoder(&rt)?);
    let max_model_len = decoder.config().max_context.min(256);
    alone_and_together(
        |rows| {
            let config = SchedulerConfig { max_model_len, ..scheduler()?.config().clone() };
            let mut runner = ModelRunner::new(decoder.clone(), None, &rt, &config, DType::BF16)?;
            runner.set_tap(Some(Box::new(move |id, _, logits| record(&rows, id, logits))));
            Ok(runner)
        },
        |id| {
            let stop =
                StopRules { max_tokens: REAL_TOKENS, ignore_eos: true, ..StopRules::default() };
            let job = ChoiceJob::new(prompt(id), SamplingParams::greedy(), stop, Box::new(Nobody));
            (job.request(RequestId(id), Time::ZERO), job)
        },
    )
}

fn experiment() -> Anyhow<bool> {
    println!(
        "{REQUESTS} answers of {TOKENS} tokens by a small network, each alone and then all together\n"
    );
    println!("{:17}{:^22}    an order by the number of rows", "", "one order");
    println!(
        "{:>7}  {:>6}  {:>9}  {:>9}    {:>9}  {:>9}  {:>12}",
        "request", "prompt", "logits", "tokens", "logits", "tokens", "margin there"
    );
    let [one, by_rows] = [network(Order::One)?, network(Order::ByRows)?];
    let from = |at: Option<usize>| at.map_or("equal".into(), |at| format!("from {at}"));
    let (mut equal, mut parted) = (0, 0);
    for id in 0..REQUESTS as usize {
        let same = compare(&one.0[id], &one.1[id]);
        let other = compare(&by_rows.0[id], &by_rows.1[id]);
        let ahead = other
            .token
            .map_or("-".into(), |at| format!("{:.5}", margin(&by_rows.0[id].logits[at])));
        println!(
            "{id:>7}  {:>6}  {:>9}  {:>9}    {:>9}  {:>9}  {ahead:>12}",
            prompt(id as u64).len(),
            from(same.logits),
            from(same.token),
            from(other.logits),
            from(other.token),
        );
        equal += usize::from(same.logits.is_none() && same.token.is_none());
        parted += usize::from(other.token.is_some());
    }
    let (alone, together) = engine()?;
    let pairs = alone.iter().zip(&together);
    let strict = pairs
        .map(|(alone, together)| compare(alone, together))
        .filter(|parted| parted.logits.is_none() && parted.token.is_none())
        .count();
    let logits: usize = alone.iter().flat_map(|given| &given.logits).map(Vec::len).sum();
    println!(
        "\nequal bit by bit with one order: {equal} of {REQUESTS}; other tokens with the other matmul: {parted} of {REQUESTS}"
    );
    println!(
        "the engine and tiny-llama, {REAL_TOKENS} tokens: {strict} of {REQUESTS} equal in all of {logits} logits"
    );
    let all = REQUESTS as usize;
    Ok(equal == all && parted > 0 && strict == all)
}

fn main() -> ExitCode {
    match experiment() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("this is not what was promised");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
