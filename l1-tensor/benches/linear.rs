//! How close `linear` comes to what the machine can do, on the shapes of SmolLM2-135M.
//!
//! Criterion times each shape. Around that, the limits are measured in the same run (see
//! [`l1_tensor::cpu::machine`]) and a table says what share of them was reached: of the memory
//! bandwidth for few rows, of the multipliers' peak for many. On a machine that does other things
//! at the same time only the table means much: it takes the best of many short runs.
//!
//! `STRATA_CPU=avx2 cargo bench -p l1-tensor --bench linear` measures another instruction set.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use l1_tensor::cpu::machine::{flop_peak, read_bandwidth};
use l1_tensor::ops::{Epilogue, linear};
use l1_tensor::{
    DType, Device, PackedBf16, Precision, Result, RowOrder, Runtime, RuntimeOptions, Tensor, Weight,
};

/// Name, outputs, inputs, epilogue, how many there are in the model.
const SHAPES: [(&str, usize, usize, Epilogue, usize); 5] = [
    ("qkv", 960, 576, Epilogue::Store, 30),
    ("o", 576, 576, Epilogue::Add, 30),
    ("gate_up", 3072, 576, Epilogue::SiluMul, 30),
    ("down", 576, 1536, Epilogue::Add, 30),
    ("lm_head", 49152, 576, Epilogue::Store, 1),
];

/// A matrix with its input and output, ready to run.
struct Layer {
    weight: Weight,
    epilogue: Epilogue,
    x: Tensor,
    out: Tensor,
}

impl Layer {
    fn new(rt: &Runtime, shape: usize, rows: usize, dtype: DType) -> Result<Self> {
        let (_, n, k, epilogue, _) = SHAPES[shape];
        let fill = |i: usize, out: &mut [f32]| -> Result<()> {
            for (j, v) in out.iter_mut().enumerate() {
                *v = ((i * 31 + j * 17) % 97) as f32 * 0.01 - 0.48;
            }
            Ok(())
        };
        let folds = epilogue == Epilogue::SiluMul;
        let order = if folds { RowOrder::GateUp } else { RowOrder::Plain };
        let weight =
            Weight::Bf16(PackedBf16::pack::<l1_tensor::Error>(rt.pool(), n, k, order, &fill)?);
        // A down projection reads what the gate and up projection wrote, so that comes out in
        // the activations' type; the others add to or start the f32 residual.
        let (width, out_dtype) = if folds { (n / 2, dtype) } else { (n, DType::F32) };
        Ok(Self {
            weight,
            epilogue,
            x: Tensor::zeros(&[rows, k], dtype, Device::Cpu)?,
            out: Tensor::zeros(&[rows, width], out_dtype, Device::Cpu)?,
        })
    }

    fn run(&mut self, rt: &Runtime) {
        let (x, out) = (self.x.view(), self.out.view_mut());
        linear(rt, x, &self.weight, None, self.epilogue, out).expect("the shapes fit");
    }
}

/// All matrices of the model in order: larger than any cache, as in a real step.
fn step_seconds(rt: &Runtime, rows: usize, dtype: DType, budget: Duration) -> Result<f64> {
    let layers = (0..SHAPES[0].4).flat_map(|_| 0..4).chain([4]);
    let mut layers: Vec<Layer> =
        layers.map(|shape| Layer::new(rt, shape, rows, dtype)).collect::<Result<_>>()?;
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    while start.elapsed() < budget {
        let one = Instant::now();
        layers.iter_mut().for_each(|layer| layer.run(rt));
        best = best.min(one.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn table(rt: &Runtime) -> Result<()> {
    let weights: usize = SHAPES.iter().map(|(_, n, k, _, count)| n * k * count).sum();
    println!("\n{rt}: {:.1} million weights a step", weights as f64 / 1e6);
    println!("activations  rows     step   weights read     of read  arithmetic     of peak");
    for (precision, dtype) in [(Precision::Bf16, DType::BF16), (Precision::F32, DType::F32)] {
        let peak = flop_peak(rt, precision);
        for rows in [1, 8, 32, 128, 512] {
            let bandwidth = read_bandwidth(rt.pool());
            let seconds = step_seconds(rt, rows, dtype, Duration::from_secs(2))?;
            let read = 2.0 * weights as f64 / seconds;
            let flops = 2.0 * (weights * rows) as f64 / seconds;
            println!(
                "{:>11} {rows:>5} {:>5.1} ms {:>9.1} GB/s {:>10.0}% {:>6.0} GFLOP/s {:>6.0}%",
                precision.to_string(),
                seconds * 1e3,
                read / 1e9,
                100.0 * read / bandwidth,
                flops / 1e9,
                100.0 * flops / peak,
            );
        }
    }
    Ok(())
}

fn shapes(criterion: &mut Criterion, rt: &Runtime) -> Result<()> {
    let mut group = criterion.benchmark_group("linear");
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600));
    group.sample_size(20);
    for dtype in [DType::BF16, DType::F32] {
        for rows in [1, 8, 128] {
            for (shape, (name, n, k, _, _)) in SHAPES.iter().enumerate() {
                let mut layer = Layer::new(rt, shape, rows, dtype)?;
                // Few rows: bytes of weights. Many: multiplications and additions.
                group.throughput(match rows {
                    128 => Throughput::Elements((2 * rows * n * k) as u64),
                    _ => Throughput::Bytes((2 * n * k) as u64),
                });
                let id = BenchmarkId::new(format!("{dtype}/{name}"), rows);
                group.bench_function(id, |b| b.iter(|| black_box(&mut layer).run(rt)));
            }
        }
    }
    group.finish();
    Ok(())
}

fn main() -> Result<()> {
    let rt = Runtime::new(RuntimeOptions::cpu())?;
    let mut criterion = Criterion::default().configure_from_args();
    shapes(&mut criterion, &rt)?;
    criterion.final_summary();
    // `cargo test --benches` runs this program too, without this argument, to see that it works.
    if !std::env::args().any(|arg| arg == "--bench") {
        return Ok(());
    }
    table(&rt)
}
