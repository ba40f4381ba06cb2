//! vLLM's metric of LoRA adapters.
//!
//! Its labels are lists of names, so it is made anew for each scrape, as one series: a series for each pair of lists
//! that there ever was, as vLLM has them, would grow without a bound. Readers take the series with the latest time,
//! which is the metric's value.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use super::registry::Registry;
use crate::lanes::Lanes;

/// Maximum number of names in a label.
const MAX_LISTED: usize = 64;

/// Writes the metric, if the server takes adapters.
pub fn write(out: &mut String, lanes: &Lanes) {
    let Some(adapters) = lanes.adapters() else { return };
    let used = lanes.first().metrics().adapters_in_use();
    let waiting = used.waiting.into_iter().chain(adapters.waiting()).collect();
    // Every request may have another adapter, up to those that may be in memory.
    let max = adapters.registry().options().max_cpu_loras.to_string();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    *out += &text(&max, &used.running, &waiting, now.as_secs_f64());
}

/// Names of the adapters of unfinished requests.
#[derive(Debug, Default)]
pub struct AdaptersInUse {
    /// Of running requests.
    pub running: BTreeSet<String>,
    /// Of waiting requests.
    pub waiting: BTreeSet<String>,
}

fn text(max: &str, running: &BTreeSet<String>, waiting: &BTreeSet<String>, now: f64) -> String {
    let list = |names: &BTreeSet<String>| {
        names.iter().take(MAX_LISTED).map(String::as_str).collect::<Vec<_>>().join(",")
    };
    let labels = [
        ("max_lora", max),
        ("running_lora_adapters", &list(running)),
        ("waiting_lora_adapters", &list(waiting)),
    ];
    let registry = Registry::default();
    registry.gauge("vllm:lora_requests_info", "Running stats on lora requests.", &labels).set(now);
    registry.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_lists_in_labels_and_the_value_is_the_time() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let text = text("16", &names(&["sql", "chat"]), &names(&["\"q\""]), 1.5);
        let expected = "# HELP vllm:lora_requests_info Running stats on lora requests.\n\
            # TYPE vllm:lora_requests_info gauge\n\
            vllm:lora_requests_info{max_lora=\"16\",running_lora_adapters=\"chat,sql\",\
            waiting_lora_adapters=\"\\\"q\\\"\"} 1.5\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_list_has_a_bounded_number_of_names() {
        let all = (0..1000).map(|i| format!("a{i:04}")).collect();
        let text = text("16", &BTreeSet::new(), &all, 0.0);
        assert!(text.contains("a0063\"") && !text.contains("a0064"), "{text}");
    }
}
