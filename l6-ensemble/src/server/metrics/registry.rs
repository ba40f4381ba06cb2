//! Counters, gauges and histograms, and their text.
//!
//! Whoever counts keeps a handle and adds to an atomic number: nothing is looked up, locked or allocated, which the engine's
//! thread could not afford between two steps. A histogram counts into its buckets at once, so that a server nobody
//! scrapes keeps nothing. Only making a handle and writing the text take a lock.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A number that only grows.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// How many it is.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down: an `f64`'s bits.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// It is this now.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// It is so much more, or less.
    pub fn add(&self, by: f64) {
        add(&self.0, by);
    }

    /// What it is.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

fn add(bits: &AtomicU64, by: f64) {
    let sum = |old| Some((f64::from_bits(old) + by).to_bits());
    // The closure never declines, so the update never fails.
    let _ = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
}

/// How often a value was in which range, and the sum of all.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Buckets>);

#[derive(Debug)]
struct Buckets {
    /// The largest value of each bucket, ascending; one bucket more for what is above all.
    bounds: Vec<f64>,
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: &[f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Buckets { bounds: bounds.to_vec(), counts, sum: AtomicU64::new(0) }))
    }

    /// One value.
    pub fn observe(&self, value: f64) {
        let Buckets { bounds, counts, sum } = &*self.0;
        let bucket = bounds.partition_point(|bound| *bound < value);
        if let Some(count) = counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        add(sum, value);
    }

    /// The sum of all values.
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.0.sum.load(Ordering::Relaxed))
    }
}

/// Something that a family has for each set of labels.
trait Series: Clone {
    /// Prometheus' word for it.
    const KIND: &'static str;

    /// Its lines. `labels` are without braces, and may be none.
    fn write(&self, out: &mut String, name: &str, labels: &str);
}

impl Series for Counter {
    const KIND: &'static str = "counter";

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        line(out, name, "", labels, "", &self.get());
    }
}

impl Series for Gauge {
    const KIND: &'static str = "gauge";

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        line(out, name, "", labels, "", &self.get());
    }
}

impl Series for Histogram {
    const KIND: &'static str = "histogram";

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let Buckets { bounds, counts, .. } = &*self.0;
        let mut seen = 0;
        for (i, count) in counts.iter().enumerate() {
            seen += count.load(Ordering::Relaxed);
            // As Python's client writes them, "1.0" and not "1": some queries name a bucket.
            let le = bounds.get(i).map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
            line(out, name, "_bucket", labels, &format!("le=\"{le}\""), &seen);
        }
        line(out, name, "_sum", labels, "", &self.sum());
        line(out, name, "_count", labels, "", &seen);
    }
}

fn line(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &str,
    le: &str,
    value: &dyn std::fmt::Display,
) {
    let comma = if labels.is_empty() || le.is_empty() { "" } else { "," };
    // A `String` takes all that is written to it.
    let _ = if labels.is_empty() && le.is_empty() {
        writeln!(out, "{name}{suffix} {value}")
    } else {
        writeln!(out, "{name}{suffix}{{{labels}{comma}{le}}} {value}")
    };
}

/// What has one name, with all its sets of labels.
#[derive(Debug)]
struct Family<S> {
    help: &'static str,
    series: BTreeMap<String, S>,
}

/// Families of one kind, by name.
#[derive(Debug)]
struct Families<S>(Mutex<BTreeMap<&'static str, Family<S>>>);

impl<S> Default for Families<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Series> Families<S> {
    fn get(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&str, &str)],
        new: impl FnOnce() -> S,
    ) -> S {
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let family =
            families.entry(name).or_insert_with(|| Family { help, series: BTreeMap::new() });
        family.series.entry(written(labels)).or_insert_with(new).clone()
    }

    fn write(&self, out: &mut String) {
        let families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, Family { help, series }) in &*families {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {}", S::KIND);
            series.iter().for_each(|(labels, series)| series.write(out, name, labels));
        }
    }
}

/// Labels as they stand between braces.
fn written(labels: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (name, value) in labels {
        let comma = if out.is_empty() { "" } else { "," };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(out, "{comma}{name}=\"{value}\"");
    }
    out
}

/// All families.
#[derive(Debug, Default)]
pub struct Registry {
    counters: Families<Counter>,
    gauges: Families<Gauge>,
    histograms: Families<Histogram>,
}

impl Registry {
    /// The counter of this name and these labels, new or there already. A name has one kind, one help, and always the same
    /// names of labels.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&str, &str)],
    ) -> Counter {
        self.counters.get(name, help, labels, Counter::default)
    }

    /// The gauge of this name and these labels.
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: &[(&str, &str)]) -> Gauge {
        self.gauges.get(name, help, labels, Gauge::default)
    }

    /// The histogram of this name and these labels, with buckets up to these bounds and one above.
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        bounds: &[f64],
        labels: &[(&str, &str)],
    ) -> Histogram {
        self.histograms.get(name, help, labels, || Histogram::new(bounds))
    }

    /// All of it, in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut out = String::with_capacity(32 << 10);
        self.counters.write(&mut out);
        self.gauges.write(&mut out);
        self.histograms.write(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_its_bucket_and_in_all_above() {
        let registry = Registry::default();
        let times = registry.histogram("t_seconds", "Times.", &[0.5, 1.0], &[("who", "a")]);
        for value in [0.25, 0.5, 0.75, 2.0] {
            times.observe(value);
        }
        let expected = "# HELP t_seconds Times.\n# TYPE t_seconds histogram\n\
            t_seconds_bucket{who=\"a\",le=\"0.5\"} 2\nt_seconds_bucket{who=\"a\",le=\"1.0\"} 3\n\
            t_seconds_bucket{who=\"a\",le=\"+Inf\"} 4\nt_seconds_sum{who=\"a\"} 3.5\n\
            t_seconds_count{who=\"a\"} 4\n";
        assert_eq!(registry.text(), expected);
    }

    #[test]
    fn a_label_keeps_what_is_special_in_it() {
        let registry = Registry::default();
        registry.counter("n_total", "Number.", &[("model", "a\"b\\c\nd")]).add(3);
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
