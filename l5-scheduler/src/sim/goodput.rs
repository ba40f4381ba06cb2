//! Goodput: the latency bounds that a request must meet.

use std::str::FromStr;

use serde::Serialize;

/// Unit of a time that is written without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds, `s`.
    Seconds,
    /// Milliseconds, `ms`.
    Milliseconds,
}

/// Upper bounds that a good request meets: `ttft:500ms,itl:0.05s`. Times are in seconds, unless they were read in
/// another unit by [`Goodput::parse`].
///
/// (Goodput is from Zhong et al. 2024, "DistServe": requests per second that meet their latency bounds.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Goodput {
    /// Time to first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft: Option<f64>,
    /// Inter-token latency: the longest time between two output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub itl: Option<f64>,
    /// Time per output token: the mean time between two output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot: Option<f64>,
    /// End-to-end latency: time to the last token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2e: Option<f64>,
}

impl Goodput {
    /// Whether there are no bounds.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Parses bounds, separated by commas or spaces. Times are converted to `unit`, which is also the unit of numbers
    /// without one.
    ///
    /// # Errors
    /// A line that says what is wrong: an unknown or repeated name, a time that is not above 0, or no bound.
    pub fn parse(text: &str, unit: TimeUnit) -> Result<Self, String> {
        let mut goodput = Self::default();
        for part in text.replace(": ", ":").split([',', ' ']).filter(|part| !part.is_empty()) {
            let (name, time) = part.split_once(':').unwrap_or((part, ""));
            let slot = match name {
                "ttft" => &mut goodput.ttft,
                "itl" => &mut goodput.itl,
                "tpot" => &mut goodput.tpot,
                "e2e" | "e2el" => &mut goodput.e2e,
                other => {
                    return Err(format!("unknown latency `{other}`: use ttft, itl, tpot or e2e"));
                }
            };
            let Some(time) = unit.of(time) else {
                return Err(format!(
                    "`{part}`: give a time above 0, as in {name}:500ms or {name}:0.5s; a number without a unit counts \
                     {}",
                    unit.name()
                ));
            };
            if slot.replace(time).is_some() {
                return Err(format!("{name} is given twice"));
            }
        }
        if goodput.is_empty() {
            return Err("give at least one bound, as in ttft:500ms,itl:50ms".to_owned());
        }
        Ok(goodput)
    }

    /// Whether a request with these latencies meets all bounds.
    pub fn keeps(&self, ttft: f64, longest_itl: f64, tpot: f64, e2e: f64) -> bool {
        let pairs =
            [(self.ttft, ttft), (self.itl, longest_itl), (self.tpot, tpot), (self.e2e, e2e)];
        pairs.into_iter().all(|(most, took)| most.is_none_or(|most| took <= most))
    }
}

impl FromStr for Goodput {
    type Err = String;

    /// Parses bounds in seconds.
    fn from_str(s: &str) -> Result<Self, String> {
        Self::parse(s, TimeUnit::Seconds)
    }
}

impl TimeUnit {
    fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Milliseconds => "milliseconds",
        }
    }

    /// A time in this unit; `None` unless it is finite and above 0.
    fn of(self, time: &str) -> Option<f64> {
        let (number, given) = match (time.strip_suffix("ms"), time.strip_suffix('s')) {
            (Some(number), _) => (number, Self::Milliseconds),
            (_, Some(number)) => (number, Self::Seconds),
            _ => (time, self),
        };
        let number: f64 = number.parse().ok()?;
        let number = match (given, self) {
            (Self::Seconds, Self::Milliseconds) => number * 1e3,
            (Self::Milliseconds, Self::Seconds) => number / 1e3,
            _ => number,
        };
        (number.is_finite() && number > 0.0).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_with_a_unit_is_the_same_wherever_it_is_read() {
        let text = "ttft:500ms,itl:0.05s tpot:35ms,e2e:2s";
        let [s, ms] = [TimeUnit::Seconds, TimeUnit::Milliseconds]
            .map(|unit| Goodput::parse(text, unit).unwrap());
        let all = |g: Goodput| [g.ttft, g.itl, g.tpot, g.e2e].map(Option::unwrap);
        assert_eq!(all(s), [0.5, 0.05, 0.035, 2.0], "in seconds");
        assert_eq!(all(ms), [500.0, 50.0, 35.0, 2000.0], "in milliseconds");
    }

    #[test]
    fn a_number_without_a_unit_counts_the_unit_that_is_asked_for() {
        let ttft = |text, unit| Goodput::parse(text, unit).map(|g| g.ttft);
        assert_eq!(ttft("ttft:2", TimeUnit::Seconds), Ok(Some(2.0)));
        assert_eq!(ttft("ttft: 2", TimeUnit::Milliseconds), Ok(Some(2.0)));
        assert_eq!("ttft:2".parse::<Goodput>(), "ttft:2s".parse(), "from a string: seconds");
    }

    #[test]
    fn a_text_that_is_no_bound_is_refused_with_what_to_write() {
        for (text, said) in [
            ("", "at least one bound, as in ttft:500ms"),
            ("ttft", "as in ttft:500ms or ttft:0.5s; a number without a unit counts milliseconds"),
            ("itl:5m", "`itl:5m`"),
            ("itl:ms", "`itl:ms`"),
            ("itl:-1s", "above 0"),
            ("itl:nans", "above 0"),
            ("itl:1e308s", "above 0"),
            ("speed:3", "unknown latency `speed`"),
            ("ttft:1,ttft:2", "twice"),
        ] {
            let error = Goodput::parse(text, TimeUnit::Milliseconds).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
