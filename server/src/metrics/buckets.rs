//! The bounds of histograms: vLLM's, so that its dashboards read the same here.

/// Time to first token, in seconds.
pub const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Inter-token latency, in seconds.
pub const ITL: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Latency of a request, or of a part of it, in seconds.
pub const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Number of tokens of a step.
pub const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// Number of choices of one prompt.
pub const N: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Number of preemptions of one request.
pub const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

/// Time of a phase of a step, in seconds: from that of a scheduler to that of a long prompt on a slow machine.
pub const PHASE: &[f64] = &[
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// Duration of an HTTP request, in seconds: those of the usual instrumentation for FastAPI and some between and above.
pub const HTTP: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Number of tokens of a request: 1, 2, 5, 10, 20, 50 and so on, up to `max_model_len`.
pub fn tokens(max_model_len: usize) -> Vec<f64> {
    let decades = std::iter::successors(Some(1_usize), |decade| decade.checked_mul(10));
    let bounds = decades.flat_map(|decade| [1, 2, 5].map(|digit| decade.saturating_mul(digit)));
    bounds.take_while(|bound| *bound <= max_model_len).map(|bound| bound as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_tokens_end_at_the_longest_request() {
        assert_eq!(tokens(120), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(tokens(200).last(), Some(&200.0));
        assert_eq!(tokens(0), [0.0; 0]);
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [TTFT, ITL, LATENCY, STEP_TOKENS, N, PREEMPTIONS, PHASE, HTTP] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }
}
