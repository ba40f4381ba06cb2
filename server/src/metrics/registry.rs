//! Counters, gauges and histograms by name and labels, and their text.
//!
//! They are those of the crate `prometheus`. Code that counts keeps a handle and adds to atomic numbers: nothing is
//! looked up, locked or allocated, which would delay the engine's thread between two steps. A histogram counts into its
//! buckets at once, so that a server that is never scraped buffers nothing. Only creating a handle and writing the text
//! take a lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
pub use prometheus::{Gauge, Histogram, IntCounter as Counter};
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, TextEncoder};

/// All families. Their names and labels are constants of this program: a name that Prometheus does not allow, or that
/// is used for two families, is a bug, and panics where the handle is created.
#[derive(Debug, Default)]
pub struct Registry {
    all: prometheus::Registry,
    counters: Families<IntCounterVec>,
    gauges: Families<GaugeVec>,
    histograms: Families<HistogramVec>,
}

/// Families of one kind, by name.
type Families<V> = Mutex<BTreeMap<&'static str, V>>;

impl Registry {
    /// The counter of this name and these labels, created if it is new. A name has one kind, one help, and always the
    /// same names of labels.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&str, &str)],
    ) -> Counter {
        let new = |keys: &[&str]| IntCounterVec::new(Opts::new(name, help), keys);
        self.get(&self.counters, name, labels, new)
    }

    /// The gauge of this name and these labels.
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: &[(&str, &str)]) -> Gauge {
        let new = |keys: &[&str]| GaugeVec::new(Opts::new(name, help), keys);
        self.get(&self.gauges, name, labels, new)
    }

    /// The histogram of this name and these labels, with buckets up to these bounds and one above.
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        bounds: &[f64],
        labels: &[(&str, &str)],
    ) -> Histogram {
        let opts = || HistogramOpts::new(name, help).buckets(bounds.to_vec());
        self.get(&self.histograms, name, labels, |keys| HistogramVec::new(opts(), keys))
    }

    fn get<B: MetricVecBuilder>(
        &self,
        families: &Families<MetricVec<B>>,
        name: &'static str,
        labels: &[(&str, &str)],
        new: impl FnOnce(&[&str]) -> prometheus::Result<MetricVec<B>>,
    ) -> B::M
    where
        MetricVec<B>: Collector + 'static,
    {
        let mut families = families.lock().unwrap_or_else(PoisonError::into_inner);
        let family = families.entry(name).or_insert_with(|| {
            let keys: Vec<_> = labels.iter().map(|(key, _)| *key).collect();
            let family = new(&keys).expect("names are Prometheus' and bounds ascend");
            self.all.register(Box::new(family.clone())).expect("a name has one kind");
            family
        });
        let labels: HashMap<&str, &str> = labels.iter().copied().collect();
        family.get_metric_with(&labels).expect("a family's labels have always the same names")
    }

    /// All families, in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut out = String::with_capacity(32 << 10);
        let encoded = TextEncoder::new().encode_utf8(&self.all.gather(), &mut out);
        encoded.expect("a string takes all that is written to it");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_its_bucket_and_in_all_above() {
        let registry = Registry::default();
        let times = registry.histogram("a:t_seconds", "Times.", &[0.5, 1.0], &[("key", "a")]);
        for value in [0.25, 0.5, 0.75, 2.0] {
            times.observe(value);
        }
        let expected = "# HELP a:t_seconds Times.\n# TYPE a:t_seconds histogram\n\
            a:t_seconds_bucket{key=\"a\",le=\"0.5\"} 2\na:t_seconds_bucket{key=\"a\",le=\"1\"} 3\n\
            a:t_seconds_bucket{key=\"a\",le=\"+Inf\"} 4\na:t_seconds_sum{key=\"a\"} 3.5\n\
            a:t_seconds_count{key=\"a\"} 4\n";
        assert_eq!(registry.text(), expected);
    }

    #[test]
    fn a_label_keeps_what_is_special_in_it() {
        let registry = Registry::default();
        registry.counter("n_total", "Number.", &[("model", "a\"b\\c\nd")]).inc_by(3);
        let expected = "# HELP n_total Number.\n# TYPE n_total counter\n\
            n_total{model=\"a\\\"b\\\\c\\nd\"} 3\n";
        assert_eq!(registry.text(), expected);
    }

    #[test]
    fn the_same_name_and_labels_are_the_same_series() {
        let registry = Registry::default();
        registry.gauge("g", "Gauge.", &[]).set(2.0);
        registry.gauge("g", "Gauge.", &[]).add(-0.5);
        assert_eq!(registry.text(), "# HELP g Gauge.\n# TYPE g gauge\ng 1.5\n");
    }
}
