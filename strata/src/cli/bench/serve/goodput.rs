//! Goodput: the rate of requests that meet all latency bounds.

use std::str::FromStr;

use l5_scheduler::sim::{Goodput, TimeUnit};

use super::measure::Latencies;

/// Latency bounds in milliseconds, which is also the default unit, as in vLLM's benchmark client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds(Goodput);

impl FromStr for Bounds {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Goodput::parse(s, TimeUnit::Milliseconds).map(Self)
    }
}

impl Bounds {
    /// Whether a response meets all bounds. A latency that it does not have (ITL with a single token) meets its bound.
    pub(super) fn kept_by(&self, of: &Latencies) -> bool {
        let kept = |bound: Option<f64>, seconds: Option<f64>| match (bound, seconds) {
            (Some(ms), Some(seconds)) => seconds * 1e3 <= ms,
            _ => true,
        };
        kept(self.0.ttft, Some(of.ttft))
            && kept(self.0.itl, of.worst_itl)
            && kept(self.0.tpot, of.tpot)
            && kept(self.0.e2e, Some(of.e2el))
    }

    /// Each bound with its name, in milliseconds.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let Goodput { ttft, itl, tpot, e2e } = self.0;
        let all = [("ttft", ttft), ("itl", itl), ("tpot", tpot), ("e2e", e2e)];
        all.into_iter().filter_map(|(name, bound)| Some((name, bound?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_by_name() {
        let bounds: Bounds = "ttft:200,itl:50".parse().unwrap();
        assert_eq!(bounds.named().collect::<Vec<_>>(), [("ttft", 200.0), ("itl", 50.0)]);
        assert_eq!("ttft:0.2s,itl:50ms".parse::<Bounds>(), Ok(bounds), "bare: milliseconds");
        assert_eq!("e2e:1.5".parse::<Bounds>(), "e2el:1.5".parse());
        for wrong in ["", "ttft", "ttft:x", "ttft:-1", "ttft:nan", "speed:3"] {
            assert!(wrong.parse::<Bounds>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_request_is_good_if_it_meets_every_bound() {
        let of = Latencies { ttft: 0.1, tpot: Some(0.02), e2el: 1.0, worst_itl: Some(0.3) };
        let good = |text: &str| text.parse::<Bounds>().unwrap().kept_by(&of);
        assert!(good("ttft:101,tpot:21,e2e:1000"));
        assert!(!good("ttft:99,tpot:21") && !good("ttft:101,itl:299"));
        let single = Latencies { tpot: None, worst_itl: None, ..of };
        assert!("itl:1,tpot:1".parse::<Bounds>().unwrap().kept_by(&single));
    }
}
