//! Fitting a cost model to measured steps.

use super::{CostModel, StepLoad};

/// Number of coefficients.
const N: usize = 5;

/// A fitted model, and its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The model.
    pub cost: CostModel,
    /// Root mean square of the relative errors, over all steps.
    pub error: f64,
    /// Number of steps that it was fitted to.
    pub steps: usize,
}

impl CostModel {
    /// Fits a model to measured steps, with no negative coefficient. Errors are relative, so that short steps count as
    /// much as long ones. The tenth of the steps that fits worst is left out, since on a shared machine other programs
    /// had the cores then.
    ///
    /// `None` for fewer than ten steps with a duration above 0.
    pub fn fit(steps: &[(StepLoad, f64)], kv_bytes_per_token: f64) -> Option<Fit> {
        let mut rows: Vec<Row> =
            steps.iter().filter(|(_, s)| *s > 0.0).map(|(load, s)| row(load, *s)).collect();
        if rows.len() < 10 {
            return None;
        }
        let first = least_squares(&rows)?;
        rows.sort_by(|a, b| residual(a, &first).abs().total_cmp(&residual(b, &first).abs()));
        let x = least_squares(&rows[..rows.len() * 9 / 10])?;
        let squares: f64 = rows.iter().map(|row| residual(row, &x).powi(2)).sum();
        let per_kv_byte = if kv_bytes_per_token > 0.0 { x[3] / kv_bytes_per_token } else { 0.0 };
        let [base, per_prefill_token, per_decode_token, _, per_verify_token] = x;
        let drafts = steps.iter().any(|(load, _)| load.verify_tokens > 0);
        let cost = CostModel {
            base,
            per_prefill_token,
            per_decode_token,
            per_verify_token: drafts.then_some(per_verify_token),
            per_kv_byte,
            kv_bytes_per_token,
            load_bytes_per_second: None,
        };
        Some(Fit { cost, error: (squares / rows.len() as f64).sqrt(), steps: rows.len() })
    }
}

/// Coefficients' factors of a step, divided by its time: with the right coefficients they add up to 1.
type Row = [f64; N];

fn row(load: &StepLoad, seconds: f64) -> Row {
    let StepLoad { prefill_tokens, decode_tokens, verify_tokens, kv_tokens } = *load;
    let parts = [1, prefill_tokens, decode_tokens, kv_tokens, verify_tokens];
    parts.map(|part| part as f64 / seconds)
}

fn residual(row: &Row, x: &[f64; N]) -> f64 {
    row.iter().zip(x).map(|(a, x)| a * x).sum::<f64>() - 1.0
}

/// Least squares with coefficients of 0 or more. The best of them leave some coefficients out and are the plain least
/// squares of the others. There are few coefficients, so all ways to leave some out are tried.
fn least_squares(rows: &[Row]) -> Option<[f64; N]> {
    let tries = (1u32..1 << N).filter_map(|used| {
        let x = solve(rows, |i| used & 1 << i != 0)?;
        let squares: f64 = rows.iter().map(|row| residual(row, &x).powi(2)).sum();
        x.iter().all(|x| *x >= 0.0).then_some((squares, x))
    });
    tries.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, x)| x)
}

/// Least squares of the coefficients that are used, by the normal equations; the others are 0.
fn solve(rows: &[Row], used: impl Fn(usize) -> bool) -> Option<[f64; N]> {
    // Columns are scaled to equal length, since tokens come in thousands and the constant is 1.
    let mut scale = [0.0; N];
    for (i, scale) in scale.iter_mut().enumerate() {
        *scale = rows.iter().map(|row| row[i].powi(2)).sum::<f64>().sqrt();
    }
    let used: Vec<usize> = (0..N).filter(|i| used(*i)).collect();
    if used.iter().any(|i| scale[*i] == 0.0) {
        return None;
    }
    let n = used.len();
    let mut a = vec![vec![0.0; n + 1]; n];
    for row in rows {
        for (p, i) in used.iter().enumerate() {
            for (q, j) in used.iter().enumerate() {
                a[p][q] += row[*i] / scale[*i] * row[*j] / scale[*j];
            }
            a[p][n] += row[*i] / scale[*i];
        }
    }
    // Elimination with the largest pivot.
    for p in 0..n {
        let pivot = (p..n).max_by(|x, y| a[*x][p].abs().total_cmp(&a[*y][p].abs()))?;
        a.swap(p, pivot);
        if a[p][p].abs() < 1e-12 {
            return None;
        }
        let lead = a[p].clone();
        for (_, row) in a.iter_mut().enumerate().filter(|(r, _)| *r != p) {
            let factor = row[p] / lead[p];
            row.iter_mut().zip(&lead).for_each(|(x, lead)| *x -= factor * lead);
        }
    }
    let mut x = [0.0; N];
    for (p, i) in used.iter().enumerate() {
        x[*i] = a[p][n] / a[p][p] / scale[*i];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads() -> impl Iterator<Item = StepLoad> {
        (0..200).map(|i| StepLoad {
            prefill_tokens: if i % 3 == 0 { i * 37 % 512 } else { 0 },
            decode_tokens: i * 11 % 33 + 1,
            kv_tokens: i * 7919 % 20_000 + 600,
            verify_tokens: 0,
        })
    }

    const TRUTH: CostModel = CostModel {
        base: 5e-3,
        per_prefill_token: 4e-4,
        per_decode_token: 6e-4,
        per_verify_token: None,
        per_kv_byte: 1e-10,
        kv_bytes_per_token: 23_040.0,
        load_bytes_per_second: None,
    };

    #[test]
    fn what_follows_the_formula_is_found_again_with_strangers_at_the_cores() {
        let steps: Vec<_> = loads()
            .enumerate()
            .map(|(i, load)| (load, TRUTH.seconds(&load) * if i % 20 == 7 { 3.0 } else { 1.0 }))
            .collect();
        let Fit { cost, .. } = CostModel::fit(&steps, TRUTH.kv_bytes_per_token).unwrap();
        let pairs = [
            (cost.base, TRUTH.base),
            (cost.per_prefill_token, TRUTH.per_prefill_token),
            (cost.per_decode_token, TRUTH.per_decode_token),
            (cost.per_kv_byte, TRUTH.per_kv_byte),
        ];
        for (got, want) in pairs {
            assert!((got / want - 1.0).abs() < 1e-6, "{cost:?}, and the truth is {TRUTH:?}");
        }
    }

    #[test]
    fn drafts_have_a_coefficient_of_their_own_where_there_are_any() {
        let truth = CostModel { per_verify_token: Some(2e-4), ..TRUTH };
        let loads = loads().enumerate();
        let loads = loads.map(|(i, load)| StepLoad { verify_tokens: i * 5 % 7 * 8, ..load });
        let steps: Vec<_> = loads.map(|load| (load, truth.seconds(&load))).collect();
        let Fit { cost, .. } = CostModel::fit(&steps, truth.kv_bytes_per_token).unwrap();
        let fitted = cost.per_verify_token.unwrap();
        assert!((fitted / 2e-4 - 1.0).abs() < 1e-6, "{cost:?}, and the truth is {truth:?}");
        assert!((cost.per_prefill_token / TRUTH.per_prefill_token - 1.0).abs() < 1e-6, "{cost:?}");
    }

    #[test]
    fn no_coefficient_is_below_zero() {
        // The more is read, the faster: no model without negative coefficients fits better than one where reading is
        // free.
        let steps: Vec<_> =
            loads().map(|load| (load, 0.1 - load.kv_tokens as f64 * 1e-6)).collect();
        let Fit { cost, error, .. } = CostModel::fit(&steps, 1.0).unwrap();
        assert!(cost.check().is_ok() && cost.per_kv_byte == 0.0, "{cost:?}");
        assert!(error > 0.0);
    }

    #[test]
    fn too_few_steps_make_no_model() {
        let steps: Vec<_> = loads().take(9).map(|load| (load, 1.0)).collect();
        assert_eq!(CostModel::fit(&steps, 1.0), None);
    }
}
