//! Goodput: the rate of requests that were answered well enough.

use std::str::FromStr;

use super::measure::Latencies;

/// What an answer must keep, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Bounds {
    ttft: Option<f64>,
    itl: Option<f64>,
    tpot: Option<f64>,
    e2el: Option<f64>,
}

impl FromStr for Bounds {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut bounds = Self::default();
        for part in s.split([',', ' ']).filter(|part| !part.is_empty()) {
            let (name, ms) = part.split_once(':').ok_or("write ttft:MS,itl:MS")?;
            let ms = match ms.parse::<f64>() {
                Ok(ms) if ms.is_finite() && ms > 0.0 => ms,
                _ => return Err(format!("`{ms}` is no number of milliseconds above 0")),
            };
            let bound = match name {
                "ttft" => &mut bounds.ttft,
                "itl" => &mut bounds.itl,
                "tpot" => &mut bounds.tpot,
                "e2e" | "e2el" => &mut bounds.e2el,
                other => return Err(format!("`{other}` is none of ttft, itl, tpot, e2e")),
            };
            *bound = Some(ms);
        }
        if bounds == Self::default() {
            return Err("write ttft:MS,itl:MS".to_owned());
        }
        Ok(bounds)
    }
}

impl Bounds {
    /// Whether an answer kept all of them. What it has none of (a time between tokens, if there is one token) it keeps.
    pub(super) fn kept_by(&self, of: &Latencies) -> bool {
        let kept = |bound: Option<f64>, seconds: Option<f64>| match (bound, seconds) {
            (Some(ms), Some(seconds)) => seconds * 1e3 <= ms,
            _ => true,
        };
        kept(self.ttft, Some(of.ttft))
            && kept(self.itl, of.worst_itl)
            && kept(self.tpot, of.tpot)
            && kept(self.e2el, Some(of.e2el))
    }

    /// Each bound with its name.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [("ttft", self.ttft), ("itl", self.itl), ("tpot", self.tpot), ("e2e", self.e2el)];
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
        assert_eq!("e2e:1.5".parse::<Bounds>(), "e2el:1.5".parse());
        for wrong in ["", "ttft", "ttft:x", "ttft:-1", "ttft:nan", "speed:3"] {
            assert!(wrong.parse::<Bounds>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_is_good_if_it_keeps_every_bound() {
        let of = Latencies { ttft: 0.1, tpot: Some(0.02), e2el: 1.0, worst_itl: Some(0.3) };
        let good = |text: &str| text.parse::<Bounds>().unwrap().kept_by(&of);
        assert!(good("ttft:101,tpot:21,e2e:1000"));
        assert!(!good("ttft:99,tpot:21") && !good("ttft:101,itl:299"));
        let single = Latencies { tpot: None, worst_itl: None, ..of };
        assert!("itl:1,tpot:1".parse::<Bounds>().unwrap().kept_by(&single));
    }
}
