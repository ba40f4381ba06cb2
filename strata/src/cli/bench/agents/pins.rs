//! Leases of a server, as its `/metrics` tell them.

use serde::Serialize;

/// Interval between two looks at `/metrics`, in seconds.
pub(super) const INTERVAL: f64 = 0.3;

/// Leases of a server at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Pins {
    /// Number of leases.
    pub leases: u64,
    /// Blocks that they hold.
    pub blocks: u64,
}

/// What was seen while the tool behind a turn ran.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Gap {
    /// Number of the turn, from 1.
    pub turn: usize,
    /// Its tool.
    pub tool: Option<String>,
    /// How long the tool ran, in seconds; 0 behind the last turn.
    pub seconds: f64,
    /// Looks at `/metrics`, one every 0.3 s.
    pub polls: Vec<Pins>,
    /// Looks that failed.
    pub failed_polls: usize,
}

impl Gap {
    /// Smallest and largest number of blocks.
    pub(super) fn blocks(&self) -> Option<(u64, u64)> {
        let blocks = || self.polls.iter().map(|pins| pins.blocks);
        Some((blocks().min()?, blocks().max()?))
    }
}

/// Reads a scrape; `None` if it lacks the gauges. The counts of all replicas are added.
pub(super) fn read(scrape: &str) -> Option<Pins> {
    let (mut leases, mut blocks) = (None, None);
    for line in scrape.lines() {
        let of = |name: &str| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        };
        if let Some(value) = of("strata:leases") {
            *leases.get_or_insert(0) += value as u64;
        } else if line.contains("state=\"leased\"")
            && let Some(value) = of("strata:kv_blocks")
        {
            *blocks.get_or_insert(0) += value as u64;
        }
    }
    Some(Pins { leases: leases?, blocks: blocks? })
}

/// Seconds from the beginning of a gap at which `/metrics` is read: every 0.3 s, and once within a shorter gap.
pub(super) fn polls(seconds: f64) -> impl Iterator<Item = f64> {
    let first = INTERVAL.min(seconds / 2.0);
    (0..).map(move |n| first + f64::from(n) * INTERVAL).take_while(move |at| *at < seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gauges_of_all_replicas_are_added() {
        let scrape = "# HELP strata:leases Number of leases.\n# TYPE strata:leases gauge\n\
            strata:leases{engine=\"0\",model_name=\"a b\"} 2\nstrata:leases{engine=\"1\",model_name=\"a b\"} 1\n\
            strata:leases_other{engine=\"1\"} 50\n\
            strata:kv_blocks{engine=\"0\",state=\"leased\"} 9\nstrata:kv_blocks{engine=\"1\",state=\"leased\"} 4\n\
            strata:kv_blocks{engine=\"0\",state=\"used\"} 70\n";
        assert_eq!(read(scrape), Some(Pins { leases: 3, blocks: 13 }));
        assert_eq!(
            read("strata:leases 0\nstrata:kv_blocks{state=\"leased\"} 0\n"),
            Some(Pins { leases: 0, blocks: 0 })
        );
        assert_eq!(read("strata:leases 0\nstrata:kv_blocks{state=\"used\"} 3\n"), None);
        assert_eq!(read("vllm:num_requests_running 0\n"), None);
    }

    #[test]
    fn every_gap_is_looked_at_and_a_long_one_every_three_tenths_of_a_second() {
        let at = |seconds| polls(seconds).collect::<Vec<_>>();
        assert_eq!(at(0.08), [0.04]);
        assert_eq!(at(0.5), [0.25]);
        assert_eq!(at(1.0).len(), 3);
        assert!(at(0.0).is_empty());
        assert_eq!(at(3.1).len(), 10);
    }
}
