//! What a request must keep to count as good.

use std::str::FromStr;

use serde::Serialize;

/// Deadlines in seconds, each of which a good request keeps: `ttft:0.5,itl:0.05`.
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

    /// Whether a request keeps all of it.
    pub fn keeps(&self, ttft: f64, longest_itl: f64, tpot: f64, e2e: f64) -> bool {
        let pairs =
            [(self.ttft, ttft), (self.itl, longest_itl), (self.tpot, tpot), (self.e2e, e2e)];
        pairs.into_iter().all(|(most, took)| most.is_none_or(|most| took <= most))
    }
}

impl FromStr for Goodput {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut goodput = Self::default();
        for part in s.split(',') {
            let (name, seconds) = part.split_once(':').unwrap_or((part, ""));
            let slot = match name.trim() {
                "ttft" => &mut goodput.ttft,
                "itl" => &mut goodput.itl,
                "tpot" => &mut goodput.tpot,
                "e2e" => &mut goodput.e2e,
                other => {
                    return Err(format!("there is no `{other}`: use ttft, itl, tpot or e2e"));
                }
            };
            let seconds = seconds.trim().parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0);
            let Some(seconds) = seconds else {
                return Err(format!("`{part}`: give seconds above 0, as in ttft:0.5"));
            };
            if slot.replace(seconds).is_some() {
                return Err(format!("{name} is there twice: give it once"));
            }
        }
        Ok(goodput)
    }
}
