//! Logits in a CUDA device's memory: the tokens are those of a CPU.
//!
//! Where there is no GPU, a CPU stands in for one and runs the same kernels; `STRATA_TEST_DEVICE=cuda` takes the real one.

#[path = "../sampler/given.rs"]
#[allow(dead_code)]
mod given;

use l1_tensor::cpu::Isa;
use l1_tensor::{Device, DeviceRequest, Runtime, RuntimeOptions, Tensor, cuda};
use l4_sampler::draft::{Drafted, Drawn};
use l4_sampler::{
    Draft, History, Logits, LogprobsOf, LogprobsRequest, Proposal, Purpose, Row, RowError, Sampled,
    Sampler, SamplingParams,
};

use given::{Asked, Noise, SHAPES, Shape, Stages, asked, runtime, tensor};

fn device() -> Runtime {
    if std::env::var_os("STRATA_TEST_DEVICE").is_none_or(|device| device != "cuda") {
        cuda::emulate().unwrap_or_else(|e| panic!("no CPU can stand in for a device: {e}"));
    }
    let device = DeviceRequest::Exactly(Device::Cuda(0));
    Runtime::new(RuntimeOptions { device, threads: Some(2), ..Default::default() }).unwrap()
}

/// Both samplers' outcomes for these rows: on the device, on the CPU.
fn both(logits: &[Vec<f32>], asked: &[Asked]) -> [Vec<Sampled>; 2] {
    let vocab = logits[0].len();
    let rows: Vec<Row<'_>> = asked.iter().map(Asked::row).collect();
    let (rt, here) = (device(), tensor(logits));
    let there = here.to_device(rt.device()).unwrap();
    [(rt, there), (runtime(Isa::best(), 2), here)].map(|(rt, logits)| {
        let mut sampler = Sampler::new(&rt, vocab);
        let mut out = vec![Sampled::default(); rows.len()];
        // Twice: what the first time leaves behind must not show.
        for _ in 0..2 {
            sampler.sample(Logits::Shared(logits.view()), &rows, &mut out).unwrap();
        }
        out
    })
}

/// Whether a token is the CPU's, or its neighbour across a border that the dart all but hits.
fn agrees(logits: &[f32], asked: &Asked, got: u32) -> bool {
    let mut sampler = Sampler::new(&runtime(Isa::best(), 1), logits.len());
    let law = sampler.distribution(logits, &asked.row()).unwrap();
    let dart = asked.key.uniform(Purpose::Draw);
    [0.0, -1e-6, 1e-6].iter().any(|off| law.draw((dart + off).clamp(0.0, 1.0 - 1e-9)) == got)
}

/// What a device knows: temperature, top-k, top-p, min-p.
fn plain(vocab: usize, seed: u64) -> Asked {
    let on = |bit: u64| seed >> bit & 1 == 1;
    let stages =
        Stages { temperature: true, top_k: on(0), top_p: on(1), min_p: on(2), ..Stages::default() };
    let mut asked = asked(stages, vocab, seed);
    if seed.is_multiple_of(5) {
        asked.params.temperature = 0.0;
    }
    asked
}

#[test]
fn rows_that_are_chosen_on_a_device_have_the_tokens_of_a_cpu() {
    for vocab in [1, 61, 400] {
        // Of the others some are so flat, or so large, that a token hangs on the last bit of a share.
        let shapes = [Shape::Normal, Shape::Peaked, Shape::Words, Shape::Masked, Shape::Damaged];
        let n = 24;
        let logits: Vec<_> =
            (0..n).map(|i| shapes[i % shapes.len()].row(vocab, 100 + i as u64)).collect();
        let asked: Vec<_> = (0..n as u64).map(|i| plain(vocab, i)).collect();
        let [there, here] = both(&logits, &asked);
        for (i, (there, here)) in there.iter().zip(&here).enumerate() {
            let what = format!("row {i} of {vocab} logits, {:?}", asked[i].params);
            match (there.token, here.token) {
                (Ok(got), Ok(_)) => assert!(agrees(&logits[i], &asked[i], got), "{what}: {got}"),
                (got, want) => assert_eq!(got, want, "{what}"),
            }
        }
    }
}

#[test]
fn greedy_rows_have_the_tokens_of_a_cpu_whatever_the_logits() {
    let logits: Vec<_> = SHAPES.iter().map(|shape| shape.row(333, 7)).collect();
    let asked = vec![Asked::new(SamplingParams::greedy()); logits.len()];
    let [there, here] = both(&logits, &asked);
    for ((there, here), shape) in there.iter().zip(&here).zip(SHAPES) {
        assert_eq!(there.token, here.token, "{shape:?}");
    }
}

/// Penalties, bans, guides, the typical filter and log probabilities are the host's, beside rows that are the device's.
#[test]
fn rows_of_all_kinds_share_a_step_and_each_has_what_it_has_on_a_cpu() {
    let vocab = 200;
    let n = 20;
    let shapes = [Shape::Normal, Shape::Words, Shape::Damaged];
    let logits: Vec<_> =
        (0..n).map(|i| shapes[i % shapes.len()].row(vocab, 40 + i as u64)).collect();
    let asked: Vec<_> = (0..n)
        .map(|i| {
            let seed = i as u64;
            let all = Stages {
                before: true,
                temperature: true,
                top_k: i % 4 == 1,
                top_p: true,
                min_p: false,
                typical_p: i % 3 == 1,
            };
            let mut asked = if i % 2 == 0 { plain(vocab, seed) } else { asked(all, vocab, seed) };
            if i % 5 == 1 {
                let of = if i % 2 == 0 { LogprobsOf::Processed } else { LogprobsOf::Raw };
                asked.params.logprobs = Some(LogprobsRequest { top: 3, of });
            }
            asked
        })
        .collect();
    let [there, here] = both(&logits, &asked);
    for (i, (there, here)) in there.iter().zip(&here).enumerate() {
        let plain = i % 2 == 0 && asked[i].params.logprobs.is_none();
        match (there.token, here.token) {
            (Ok(got), Ok(_)) if plain => assert!(agrees(&logits[i], &asked[i], got), "row {i}"),
            (got, want) => assert_eq!(got, want, "row {i}"),
        }
        assert_eq!(there.logprobs, here.logprobs, "log probabilities of row {i}");
    }
}

#[test]
fn what_is_wrong_with_a_row_is_its_own_outcome_on_a_device_too() {
    let (nan, none) = (vec![f32::NAN; 50], vec![f32::NEG_INFINITY; 50]);
    let good = Shape::Normal.row(50, 3);
    let logits = vec![nan.clone(), good.clone(), none.clone(), good, nan, none];
    let greedy = Asked::new(SamplingParams::greedy());
    let drawn = Asked::new(SamplingParams::default());
    let asked = vec![greedy.clone(), greedy.clone(), greedy, drawn.clone(), drawn.clone(), drawn];
    let [there, here] = both(&logits, &asked);
    let tokens = |of: &[Sampled]| of.iter().map(|sampled| sampled.token).collect::<Vec<_>>();
    assert_eq!(tokens(&there), tokens(&here));
    assert_eq!(there[0].token, Err(RowError::AllNan));
    assert_eq!(there[2].token, Err(RowError::NothingLeft));
    assert!(there[1].token.is_ok() && there[3].token.is_ok());
}

#[test]
fn steps_of_changing_sizes_do_not_see_each_other() {
    let (rt, vocab) = (device(), 64);
    let mut sampler = Sampler::new(&rt, vocab);
    for n in [1usize, 9, 0, 3, 17, 2] {
        let logits: Vec<_> =
            (0..n).map(|i| Shape::Normal.row(vocab, (n * 100 + i) as u64)).collect();
        let want: Vec<u32> = logits.iter().map(|row| largest(row)).collect();
        let data = if n == 0 { Vec::new() } else { logits.concat() };
        let there = Tensor::from_slice(&data, &[n, vocab]).unwrap();
        let there = there.to_device(rt.device()).unwrap();
        let plain = Asked::new(SamplingParams::greedy());
        // Every other row is one that the host chooses from.
        let logprobs = Some(LogprobsRequest { top: 1, of: LogprobsOf::Raw });
        let rated = Asked::new(SamplingParams { logprobs, ..SamplingParams::greedy() });
        let rows: Vec<_> =
            (0..n).map(|i| if i % 2 == 0 { plain.row() } else { rated.row() }).collect();
        let mut out = vec![Sampled::default(); n];
        sampler.sample(Logits::Shared(there.view()), &rows, &mut out).unwrap();
        let got: Vec<_> = out.iter().map(|sampled| sampled.token.unwrap()).collect();
        assert_eq!(got, want, "{n} rows");
    }
}

fn largest(row: &[f32]) -> u32 {
    let mut best = 0;
    for (i, x) in row.iter().enumerate() {
        if *x > row[best] {
            best = i;
        }
    }
    best as u32
}

#[test]
fn drafts_are_judged_as_on_a_cpu() {
    let vocab = 40;
    let mut noise = Noise(5);
    let (params, history) = (SamplingParams::default(), History::default());
    let asked = Asked::new(params.clone());
    let row = Row { params: &params, history: &history, ..asked.row() };
    let model = tensor(&(0..8).map(|i| Shape::Normal.row(vocab, i)).collect::<Vec<_>>());
    let small = tensor(&(0..3).map(|i| Shape::Normal.row(vocab, i)).collect::<Vec<_>>());
    let tokens: Vec<u32> = (0..3).map(|_| noise.below(vocab) as u32).collect();
    let rt = device();
    let there = |t: &Tensor| t.to_device(rt.device()).unwrap();
    let (model_there, small_there) = (there(&model), there(&small));
    let verdicts = |rt: &Runtime, model: &Tensor, small: &Tensor| {
        let proposal = |draft| Proposal { tokens: &tokens, draft, row, masks: &[] };
        let proposals = [proposal(Draft::Logits(small.view())), proposal(Draft::Certain)];
        let mut out = Vec::new();
        Sampler::new(rt, vocab).verify(model.view(), &proposals, &mut out).unwrap();
        out
    };
    let want = verdicts(&runtime(Isa::best(), 1), &model, &small);
    assert_eq!(verdicts(&rt, &model_there, &small_there), want, "all of it on the device");
    assert_eq!(verdicts(&rt, &model_there, &small), want, "the draft on the host");
}

#[test]
fn drafts_that_were_drawn_are_verified_beside_rows_that_stay_there() {
    let vocab = 40;
    let (params, history) = (SamplingParams::default(), History::default());
    let asked = Asked::new(params.clone());
    let rows_of = |seeds: std::ops::Range<u64>| {
        seeds.map(|i| Shape::Normal.row(vocab, i)).collect::<Vec<_>>()
    };
    let (model, small) = (tensor(&rows_of(0..64)), tensor(&rows_of(64..128)));
    let row = Row { params: &params, history: &history, ..asked.row() };
    let rows: Vec<_> = (0..64).map(|i| Row { key: row.key.ahead(i), ..row }).collect();
    let rt = device();
    let outcome = |rt: &Runtime, model: &Tensor, small: &Tensor| {
        let mut sampler = Sampler::new(rt, vocab);
        let mut drawn = vec![Drawn::default(); 64];
        sampler.draw(small.view(), &rows, &mut drawn).unwrap();
        let of = |i: usize| Some(Drafted { token: drawn[i].token?, from: &drawn[i].from });
        let drafted: Vec<_> = (0..63).map(|i| if i % 2 == 0 { of(i) } else { None }).collect();
        let mut out = vec![Sampled::default(); 64];
        sampler.sample_drafted(Logits::Shared(model.view()), &rows, &drafted, &mut out).unwrap();
        out.iter().map(|sampled| sampled.token.unwrap()).collect::<Vec<_>>()
    };
    let there = |t: &Tensor| t.to_device(rt.device()).unwrap();
    let want = outcome(&runtime(Isa::best(), 1), &model, &small);
    assert_eq!(outcome(&rt, &there(&model), &there(&small)), want);
    let mut plain = vec![Sampled::default(); 64];
    let mut sampler = Sampler::new(&rt, vocab);
    sampler.sample(Logits::Shared(there(&model).view()), &rows, &mut plain).unwrap();
    let differ = plain.iter().zip(&want).filter(|(plain, want)| plain.token != Ok(**want)).count();
    assert!(differ > 0, "the drafts made no difference");
}
