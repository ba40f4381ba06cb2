//! What a sweep says: for each pool and rate the job seconds of each policy, and their ratios.

use serde::Serialize;

use super::grid::{Grid, Outcome, Variant};

/// Seconds of jobs that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Metric {
    Mean,
    P90,
    P99,
}

impl Metric {
    pub(super) const ALL: [Self; 3] = [Self::Mean, Self::P90, Self::P99];

    fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Self::Mean => outcome.mean,
            Self::P90 => outcome.p90,
            Self::P99 => outcome.p99,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::P90 => "P90",
            Self::P99 => "P99",
        }
    }
}

/// A pool and a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Cell {
    pub num_gpu_blocks: usize,
    pub rate: Option<f64>,
}

/// A metric of a policy in a cell, as a mean over the seeds; and the same divided by that of the baseline for each
/// seed, of which the smallest and the largest are kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Value {
    pub seconds: f64,
    /// Smallest and largest over the seeds.
    pub range: [f64; 2],
    pub ratio_range: [f64; 2],
}

/// Cells of a grid, in its order: first the rates of the first pool.
pub(super) struct Cells {
    pub cells: Vec<Cell>,
    pub variants: Vec<Variant>,
    /// For each cell, policy and metric.
    values: Vec<Vec<[Value; 3]>>,
    /// Position of the baseline among the policies.
    baseline: usize,
}

/// Ratios of a policy over all cells: their mean, 90th and 99th percentile (nearest rank), and the largest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Ratios {
    pub mean: f64,
    pub p90: f64,
    pub p99: f64,
    pub worst: f64,
    pub worst_cell: Cell,
}

/// A policy over the whole grid.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub policy: Variant,
    pub metric: Metric,
    /// To the baseline.
    pub to_baseline: Ratios,
    /// To the best of the others in each cell; `None` without others.
    pub to_best_other: Option<Ratios>,
}

impl Cells {
    /// Collects the outcomes of a grid, which are in its order.
    pub(super) fn new(grid: &Grid, outcomes: &[Outcome]) -> Self {
        let variants = grid.variants.clone();
        let baseline = variants.iter().position(|one| *one == Variant::BASELINE).unwrap_or(0);
        let rates = grid.jobs.iter().map(|jobs| jobs.rate);
        let mut cells: Vec<Cell> = Vec::new();
        for num_gpu_blocks in grid.pools.iter().copied() {
            for rate in rates.clone() {
                let cell = Cell { num_gpu_blocks, rate };
                if !cells.contains(&cell) {
                    cells.push(cell);
                }
            }
        }
        let value = |cell: &Cell, variant: &Variant, metric: Metric| {
            let of = |variant: &Variant| {
                let here = outcomes.iter().filter(|one| {
                    (one.num_gpu_blocks, one.rate) == (cell.num_gpu_blocks, cell.rate)
                        && one.policy == *variant
                });
                here.map(|one| metric.of(one)).collect::<Vec<f64>>()
            };
            let (own, base) = (of(variant), of(&variants[baseline]));
            let ratios: Vec<f64> = own.iter().zip(&base).map(|(own, base)| own / base).collect();
            Value { seconds: mean(&own), range: range(&own), ratio_range: range(&ratios) }
        };
        let values = cells.iter().map(|cell| {
            let of = |variant| Metric::ALL.map(|metric| value(cell, variant, metric));
            variants.iter().map(of).collect()
        });
        Self { values: values.collect(), cells, variants: variants.clone(), baseline }
    }

    /// A metric of a policy in a cell.
    pub(super) fn value(&self, cell: usize, variant: usize, metric: Metric) -> Value {
        self.values[cell][variant][metric as usize]
    }

    /// Seconds of a policy divided by those of the baseline.
    pub(super) fn to_baseline(&self, cell: usize, variant: usize, metric: Metric) -> f64 {
        self.value(cell, variant, metric).seconds / self.value(cell, self.baseline, metric).seconds
    }

    fn to_best_other(&self, cell: usize, variant: usize, metric: Metric) -> f64 {
        let others = (0..self.variants.len()).filter(|other| *other != variant);
        let seconds = others.map(|other| self.value(cell, other, metric).seconds);
        self.value(cell, variant, metric).seconds / seconds.fold(f64::INFINITY, f64::min)
    }

    /// A row for each policy and metric.
    pub(super) fn rows(&self) -> Vec<Row> {
        let row = |variant: usize, metric: Metric| {
            let over = |ratio: &dyn Fn(usize) -> f64| {
                Ratios::of(&self.cells, (0..self.cells.len()).map(ratio).collect())
            };
            Row {
                policy: self.variants[variant],
                metric,
                to_baseline: over(&|cell| self.to_baseline(cell, variant, metric)),
                to_best_other: (self.variants.len() > 1)
                    .then(|| over(&|cell| self.to_best_other(cell, variant, metric))),
            }
        };
        let variants = 0..self.variants.len();
        variants.flat_map(|variant| Metric::ALL.map(|metric| row(variant, metric))).collect()
    }
}

impl Ratios {
    /// Ratios of these cells, of which there is at least one.
    fn of(cells: &[Cell], ratios: Vec<f64>) -> Self {
        let mut sorted = ratios.clone();
        sorted.sort_by(f64::total_cmp);
        let percentile = |percent: usize| {
            let rank = (percent * sorted.len()).div_ceil(100).max(1);
            sorted[rank - 1]
        };
        let worst = sorted[sorted.len() - 1];
        let at = ratios.iter().position(|ratio| ratio.total_cmp(&worst).is_eq());
        Self {
            mean: mean(&ratios),
            p90: percentile(90),
            p99: percentile(99),
            worst,
            worst_cell: cells[at.unwrap_or(0)],
        }
    }
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len() as f64
}

fn range(all: &[f64]) -> [f64; 2] {
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    [least, all.iter().copied().fold(f64::NEG_INFINITY, f64::max)]
}

#[cfg(test)]
mod tests {
    use super::super::grid::{Jobs, Machine};
    use super::*;
    use l5_scheduler::CostModel;

    fn grid(variants: &[&str]) -> Grid {
        let jobs = |rate: f64, seed| Jobs {
            rate: Some(rate),
            seed,
            text: String::new(),
            draws_arrivals: false,
            most: None,
        };
        Grid {
            pools: vec![100, 200],
            jobs: vec![jobs(1.0, 0), jobs(1.0, 1), jobs(2.0, 0), jobs(2.0, 1)],
            variants: variants.iter().map(|name| name.parse().unwrap()).collect(),
            machine: Machine {
                cost: CostModel::SMOLLM2_TWO_CORES,
                host_memory: 0,
                block_size: 16,
                max_num_seqs: 8,
                max_num_batched_tokens: 64,
            },
        }
    }

    /// Outcomes in the order of the grid, with these mean seconds.
    fn outcomes(grid: &Grid, means: &[f64]) -> Vec<Outcome> {
        let mut means = means.iter().copied();
        let mut all = Vec::new();
        for num_gpu_blocks in &grid.pools {
            for jobs in &grid.jobs {
                for policy in &grid.variants {
                    let mean = means.next().unwrap();
                    all.push(Outcome {
                        num_gpu_blocks: *num_gpu_blocks,
                        rate: jobs.rate,
                        seed: jobs.seed,
                        policy: *policy,
                        jobs: 1,
                        finished: 1,
                        mean,
                        p90: 2.0 * mean,
                        p99: 3.0 * mean,
                        chat_mean: None,
                        computed_tokens: 0,
                        hit_tokens: 0,
                        loaded_tokens: 0,
                        preemptions: 0,
                        leases_made: 0,
                        leases_stolen: 0,
                    });
                }
            }
        }
        assert_eq!(means.next(), None);
        all
    }

    #[test]
    fn ratios_are_of_means_over_the_seeds_of_a_cell() {
        let grid = grid(&["fcfs", "continuum", "adaptive"]);
        // For each pool, two rates with two seeds each.
        let means = [
            [10.0, 10.0, 10.0],
            [10.0, 10.0, 10.0],
            [10.0, 5.0, 4.0],
            [30.0, 15.0, 12.0],
            [8.0, 8.0, 6.0],
            [8.0, 8.0, 10.0],
            [20.0, 10.0, 15.0],
            [20.0, 10.0, 15.0],
        ];
        let cells = Cells::new(&grid, &outcomes(&grid, means.as_flattened()));
        assert_eq!(cells.cells.len(), 4);
        let value = cells.value(1, 2, Metric::P90);
        assert_eq!(
            (value.seconds, value.range, value.ratio_range),
            (16.0, [8.0, 24.0], [0.4, 0.4])
        );
        assert_eq!(cells.value(2, 2, Metric::Mean).ratio_range, [0.75, 1.25]);
        let rows = cells.rows();
        assert_eq!(rows.len(), 9);
        let adaptive = rows[6];
        assert_eq!(adaptive.policy.to_string(), "adaptive");
        assert_eq!(adaptive.to_baseline.mean, (1.0 + 0.4 + 1.0 + 0.75) / 4.0);
        let best = adaptive.to_best_other.unwrap();
        assert_eq!(best.mean, (1.0 + 0.8 + 1.0 + 1.5) / 4.0);
        assert_eq!((best.p90, best.p99, best.worst), (1.5, 1.5, 1.5));
        assert_eq!(best.worst_cell, Cell { num_gpu_blocks: 200, rate: Some(2.0) });
        let fcfs = rows[0];
        assert_eq!((fcfs.to_baseline.mean, fcfs.to_best_other.unwrap().worst), (1.0, 2.5));
    }

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let cells: Vec<Cell> =
            (0..20).map(|number| Cell { num_gpu_blocks: number, rate: None }).collect();
        let ratios = Ratios::of(&cells, (0..20).map(f64::from).collect());
        assert_eq!((ratios.p90, ratios.p99, ratios.worst), (17.0, 19.0, 19.0));
        assert_eq!(ratios.worst_cell.num_gpu_blocks, 19);
    }
}
