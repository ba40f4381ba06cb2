//! What a request must keep to count as good.

use std::str::FromStr;

use serde::Serialize;

/// The unit of a time that is written without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// `s`
    Seconds,
    /// `ms`
    Milliseconds,
}

/// Upper bounds, each of which a good request keeps: `ttft:500ms,itl:0.05s`. Times are in seconds, unless they were
/// read in another unit by [`Goodput::parse`].
///
/// (Goodput is from Zhong et al. 2024, "DistServe": requests per second that are served as well as was promised. Those
/// beyond it may cost as much, and nobody is content with them.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Goodput {
    /// Until the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft: Option<f64>,
    /// Until the next token, each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub itl: Option<f64>,
    /// Until the next token, on the average of an answer (time per output token).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot: Option<f64>,
    /// Until the last token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2e: Option<f64>,
}

impl Goodput {
    /// Whether anything is promised at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads bounds, separated by commas or spaces. Every time becomes a number of `unit`, which is also what a number
    /// without a unit counts.
    ///
    /// # Errors
    /// What is wrong with the text, in one line: an unknown or repeated name, a time that is not above 0, no bound.
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
                    return Err(format!("there is no `{other}`: use ttft, itl, tpot or e2e"));
                }
            };
            let Some(time) = unit.of(time) else {
                return Err(format!(
                    "`{part}`: give a time above 0, as in {name}:500ms or {name}:0.5s; a number without a unit counts {}",
                    unit.name()
                ));
            };
            if slot.replace(time).is_some() {
                return Err(format!("{name} is there twice: give it once"));
            }
        }
        if goodput.is_empty() {
            return Err("give at least one bound, as in ttft:500ms,itl:50ms".to_owned());
        }
        Ok(goodput)
    }

    /// Whether a request keeps all of it.
    pub fn keeps(&self, ttft: f64, longest_itl: f64, tpot: f64, e2e: f64) -> bool {
        let pairs =
            [(self.ttft, ttft), (self.itl, longest_itl), (self.tpot, tpot), (self.e2e, e2e)];
        pairs.into_iter().all(|(most, took)| most.is_none_or(|most| took <= most))
    }
}

impl FromStr for Goodput {
    type Err = String;

    /// Bounds in seconds.
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

    /// A time as a number of this unit; `None` unless it is finite and above 0.
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
            ("speed:3", "there is no `speed`"),
            ("ttft:1,ttft:2", "twice"),
        ] {
            let error = Goodput::parse(text, TimeUnit::Milliseconds).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
