//! Drafts of a measurement, in the words of `vllm bench serve`.

use std::fmt;

use anyhow::bail;
use l5_scheduler::speculation::DraftMethod;
use serde::Serialize;

use super::serve::client::Client;
use crate::cli::context::warn;
use server::words::count;

/// Counts of drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DraftTotals {
    /// Drafts: each is one or more tokens that a step verified for a request.
    pub drafts: u64,
    /// Their tokens.
    pub draft_tokens: u64,
    /// Tokens that were accepted.
    pub accepted_tokens: u64,
}

/// Fields of a report in JSON. Those that `vllm bench serve` has too have the names and units that they have there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct SpeculationReport {
    /// How drafts are made; absent of a server, whose metrics do not say it.
    #[serde(rename = "spec_decode_method", skip_serializing_if = "Option::is_none")]
    method: Option<DraftMethod>,
    #[serde(rename = "spec_decode_num_drafts")]
    drafts: u64,
    #[serde(rename = "spec_decode_draft_tokens")]
    draft_tokens: u64,
    #[serde(rename = "spec_decode_accepted_tokens")]
    accepted_tokens: u64,
    /// Accepted tokens of all draft tokens, in percent; `None`: there were none.
    #[serde(rename = "spec_decode_acceptance_rate")]
    acceptance_rate: Option<f64>,
    /// Tokens that a step with drafts brought a request, on average: the accepted ones and the one behind them.
    #[serde(rename = "spec_decode_acceptance_length")]
    acceptance_length: Option<f64>,
}

impl DraftTotals {
    /// What a server has counted, if that is `asked` for.
    ///
    /// # Errors
    /// A server without these metrics.
    pub(super) async fn of(client: &Client, asked: bool) -> anyhow::Result<Option<Self>> {
        if !asked {
            return Ok(None);
        }
        let text = client.text("/metrics").await;
        let text = text.map_err(|why| anyhow::anyhow!("--speculation reads /metrics: {why}"))?;
        match Self::read(&text) {
            Some(totals) => Ok(Some(totals)),
            None => bail!(
                "--speculation: /metrics has no vllm:spec_decode_num_drafts: start the server with --speculative-config"
            ),
        }
    }

    /// Reads a scrape of a server; `None`: it does not speculate. The counts of all engines are added.
    pub(super) fn read(scrape: &str) -> Option<Self> {
        let sum = |name: &str| {
            let value = |line: &str| {
                let rest = line.strip_prefix(name)?.strip_prefix("_total").unwrap_or_default();
                rest.starts_with(['{', ' '])
                    .then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
            };
            scrape.lines().filter_map(value).reduce(|sum, own| sum + own).map(|sum| sum as u64)
        };
        Some(Self {
            drafts: sum("vllm:spec_decode_num_drafts")?,
            draft_tokens: sum("vllm:spec_decode_num_draft_tokens")?,
            accepted_tokens: sum("vllm:spec_decode_num_accepted_tokens")?,
        })
    }

    /// What was counted since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            drafts: self.drafts.saturating_sub(before.drafts),
            draft_tokens: self.draft_tokens.saturating_sub(before.draft_tokens),
            accepted_tokens: self.accepted_tokens.saturating_sub(before.accepted_tokens),
        }
    }
}

impl SpeculationReport {
    /// Drafts of a server since `before`, if that is known. A server that cannot say it any more is a warning, since
    /// the measurement is there.
    pub(super) async fn since(before: Option<DraftTotals>, client: &Client) -> Option<Self> {
        let before = before?;
        match DraftTotals::of(client, true).await {
            Ok(after) => after.map(|after| Self::new(None, after.since(before))),
            Err(why) => {
                warn(why);
                None
            }
        }
    }

    pub(super) fn new(method: Option<DraftMethod>, totals: DraftTotals) -> Self {
        let DraftTotals { drafts, draft_tokens, accepted_tokens } = totals;
        let of = |all: u64| (all > 0).then(|| accepted_tokens as f64 / all as f64);
        Self {
            method,
            drafts,
            draft_tokens,
            accepted_tokens,
            acceptance_rate: of(draft_tokens).map(|rate| 100.0 * rate),
            acceptance_length: of(drafts).map(|accepted| 1.0 + accepted),
        }
    }
}

impl fmt::Display for SpeculationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, drafts, draft_tokens, accepted_tokens, .. } = self;
        write!(f, "speculation  ")?;
        if let Some(method) = method {
            write!(f, "{}: ", method.name())?;
        }
        match (self.acceptance_rate, self.acceptance_length) {
            (Some(rate), Some(length)) => write!(
                f,
                "acceptance rate {rate:.1}% ({accepted_tokens} of {draft_tokens} draft tokens), mean acceptance length \
                 {length:.2} over {}",
                count(*drafts as usize, "draft")
            ),
            _ => write!(f, "no drafts"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRAPE: &str = "# TYPE vllm:spec_decode_num_drafts_total counter\n\
        vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"a b\"} 3\n\
        vllm:spec_decode_num_drafts_total{engine=\"1\",model_name=\"a b\"} 2\n\
        vllm:spec_decode_num_draft_tokens_total{engine=\"0\"} 20\n\
        vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} 5\n\
        vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} 4\n";

    #[test]
    fn the_counters_of_all_engines_are_added_and_positions_are_not() {
        let totals = DraftTotals { drafts: 5, draft_tokens: 20, accepted_tokens: 5 };
        assert_eq!(DraftTotals::read(SCRAPE), Some(totals));
        assert_eq!(DraftTotals::read("vllm:num_requests_running 0\n"), None);
        let before = DraftTotals { drafts: 1, draft_tokens: 10, accepted_tokens: 1 };
        let since = DraftTotals { drafts: 4, draft_tokens: 10, accepted_tokens: 4 };
        assert_eq!(totals.since(before), since);
    }

    #[test]
    fn the_rate_is_of_draft_tokens_and_the_length_counts_the_token_behind_them() {
        let totals = DraftTotals { drafts: 4, draft_tokens: 10, accepted_tokens: 6 };
        let report = SpeculationReport::new(Some(DraftMethod::Ngram), totals);
        let json = serde_json::to_value(report).unwrap();
        assert_eq!(json["spec_decode_method"], "ngram");
        assert_eq!(json["spec_decode_acceptance_rate"], 60.0);
        assert_eq!(json["spec_decode_acceptance_length"], 2.5);
        assert_eq!(
            report.to_string(),
            "speculation  ngram: acceptance rate 60.0% (6 of 10 draft tokens), mean acceptance length 2.50 over 4 \
             drafts"
        );
        let none = SpeculationReport::new(None, DraftTotals::default());
        assert_eq!(none.to_string(), "speculation  no drafts");
        assert_eq!(
            serde_json::to_value(none).unwrap()["spec_decode_acceptance_rate"],
            serde_json::Value::Null
        );
    }
}
