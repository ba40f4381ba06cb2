//! Latencies of requests, and statistics over all of them.
//!
//! They are those of `vllm bench serve`, under its names: TTFT to the first chunk that brings tokens, ITL between such
//! chunks, TPOT `(last - first) / (tokens - 1)`, E2EL to the last chunk. One thing differs: in an open loop they count
//! from the moment a request was due, not from the one when the client got to it.

use super::client::Record;

/// Latencies of one request, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Latencies {
    /// To the first chunk.
    pub ttft: f64,
    /// Mean time of a token after the first; `None` if there is only one.
    pub tpot: Option<f64>,
    /// To the last chunk.
    pub e2el: f64,
    /// Longest time between two chunks; `None` if there is only one.
    pub worst_itl: Option<f64>,
}

impl Record {
    /// Number of output tokens: as the server counts them, or else the number of chunks.
    pub(super) fn tokens(&self) -> u64 {
        self.usage.map_or(self.chunks.len() as u64, |usage| usage.completion_tokens)
    }

    /// Tokens of the prompt that were in the cache.
    pub(super) fn cached(&self) -> Option<u64> {
        self.usage?.prompt_tokens_details?.cached_tokens
    }

    /// Times between chunks.
    pub(super) fn gaps(&self) -> impl Iterator<Item = f64> {
        self.chunks.windows(2).map(|pair| match pair {
            [a, b] => b - a,
            _ => 0.0,
        })
    }

    /// Latencies of a successful request.
    pub(super) fn latencies(&self) -> Option<Latencies> {
        if self.failure.is_some() {
            return None;
        }
        let first = *self.chunks.first()?;
        let behind_first = self.tokens().saturating_sub(1);
        Some(Latencies {
            ttft: first - self.due,
            tpot: (behind_first > 0).then(|| (self.end - first) / behind_first as f64),
            e2el: self.end - self.due,
            worst_itl: self.gaps().reduce(f64::max),
        })
    }
}

/// Numbers of one kind, sorted.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::cli::bench) struct Sample(Vec<f64>);

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(of: I) -> Self {
        let mut all: Vec<f64> = of.into_iter().collect();
        all.sort_unstable_by(f64::total_cmp);
        Self(all)
    }
}

impl Sample {
    /// All, the smallest first.
    pub(in crate::cli::bench) fn sorted(&self) -> &[f64] {
        &self.0
    }

    /// Their mean; `None` of none.
    pub(in crate::cli::bench) fn mean(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }

    /// Their standard deviation, as that of the whole population.
    pub(in crate::cli::bench) fn std(&self) -> Option<f64> {
        let mean = self.mean()?;
        let squares = self.0.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        Some((squares / self.0.len() as f64).sqrt())
    }

    /// The value that so many of 100 do not exceed, on the line between two neighbours where it falls between them: as
    /// NumPy and so vLLM's benchmark have it, so that figures can be compared.
    pub(in crate::cli::bench) fn percentile(&self, percent: f64) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        let at = (percent / 100.0).clamp(0.0, 1.0) * last as f64;
        let below = self.0.get(at.floor() as usize)?;
        let above = self.0.get(at.ceil() as usize)?;
        Some(below + (above - below) * at.fract())
    }

    /// The largest.
    pub(in crate::cli::bench) fn max(&self) -> Option<f64> {
        self.0.last().copied()
    }
}

/// Maximum number of requests in flight at one time.
pub(super) fn peak(records: &[Record]) -> usize {
    let mut moments: Vec<(f64, i64)> =
        records.iter().flat_map(|r| [(r.sent, 1), (r.end, -1)]).collect();
    // Where one ends as another begins, they did not overlap.
    moments.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut now, mut most) = (0, 0);
    for (_, change) in moments {
        now += change;
        most = most.max(now);
    }
    usize::try_from(most).unwrap_or_default()
}

/// Output tokens of all requests, in each of `bins` equal parts of the run: a request's tokens are spread over its
/// chunks.
pub(super) fn tokens_over_time(records: &[Record], seconds: f64, bins: usize) -> Vec<f64> {
    let mut all = vec![0.0; bins];
    for record in records {
        let weight = record.tokens() as f64 / record.chunks.len().max(1) as f64;
        for at in &record.chunks {
            let bin = (at / seconds * bins as f64) as usize;
            if let Some(sum) = all.get_mut(bin.min(bins.saturating_sub(1))) {
                *sum += weight;
            }
        }
    }
    all
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::failure::Failure;
    use super::super::stream::Usage;
    use super::*;

    /// A response of three chunks and five tokens, whose request was sent late.
    pub(in super::super) fn record() -> Record {
        let usage = Usage { prompt_tokens: 9, completion_tokens: 5, prompt_tokens_details: None };
        Record {
            index: 0,
            due: 1.0,
            sent: 1.25,
            chunks: vec![1.5, 1.75, 2.5],
            end: 2.5,
            usage: Some(usage),
            queue_ms: None,
            request_id: None,
            failure: None,
        }
    }

    #[test]
    fn latencies_count_from_the_moment_a_request_was_due() {
        let latencies = record().latencies().unwrap();
        let expected = Latencies { ttft: 0.5, tpot: Some(0.25), e2el: 1.5, worst_itl: Some(0.75) };
        assert_eq!(latencies, expected);
        assert_eq!(record().gaps().collect::<Vec<_>>(), [0.25, 0.75]);
    }

    #[test]
    fn without_a_count_a_chunk_is_a_token() {
        let uncounted = Record { usage: None, ..record() };
        assert_eq!(uncounted.tokens(), 3);
        assert_eq!(uncounted.latencies().unwrap().tpot, Some(0.5));
    }

    #[test]
    fn one_token_has_no_time_per_token_and_a_failure_no_latencies() {
        let short = Record { usage: None, chunks: vec![1.5], end: 1.5, ..record() };
        let latencies = short.latencies().unwrap();
        assert_eq!((latencies.tpot, latencies.worst_itl), (None, None));
        let failed = Record { failure: Some(Failure::Timeout), ..record() };
        assert_eq!(failed.latencies(), None);
    }

    #[test]
    fn percentiles_are_those_of_numpy() {
        let sample: Sample = [4.0, 1.0, 3.0, 2.0].into_iter().collect();
        // numpy.percentile([1, 2, 3, 4], [50, 90, 99, 0, 100])
        for (percent, value) in [(50.0, 2.5), (90.0, 3.7), (99.0, 3.97), (0.0, 1.0), (100.0, 4.0)] {
            assert!((sample.percentile(percent).unwrap() - value).abs() < 1e-12, "{percent}");
        }
        assert_eq!((sample.mean(), sample.max()), (Some(2.5), Some(4.0)));
        assert_eq!(sample.std(), Some(1.25f64.sqrt()));
        assert_eq!(Sample::default().percentile(50.0), None);
        assert_eq!(Sample::default().std(), None);
    }

    #[test]
    fn requests_that_follow_each_other_are_not_under_way_together() {
        let span = |sent, end| Record { sent, end, ..record() };
        assert_eq!(peak(&[span(0.0, 1.0), span(1.0, 2.0)]), 1);
        assert_eq!(peak(&[span(0.0, 1.5), span(1.0, 2.0), span(1.25, 3.0)]), 3);
        assert_eq!(peak(&[]), 0);
    }

    #[test]
    fn tokens_over_time_add_up() {
        let bins = tokens_over_time(&[record()], 2.5, 5);
        assert_eq!(bins.len(), 5);
        assert!((bins.iter().sum::<f64>() - 5.0).abs() < 1e-9);
        assert!((bins[3] - 10.0 / 3.0).abs() < 1e-9, "{bins:?}");
    }
}
