//! Several models, storages of weights or adapters in one table: a row for each, and how it compares with the first.

use std::fmt;

use super::report::{Figures, Report};

/// Reports of subjects that were measured in turns.
pub(super) struct Comparison<'a> {
    pub labels: &'a [String],
    pub reports: &'a [Report],
}

impl Comparison<'_> {
    fn rows(&self) -> impl Iterator<Item = (&str, &Report)> {
        self.labels.iter().map(String::as_str).zip(self.reports)
    }

    /// Width of the column of labels.
    fn width(&self) -> usize {
        self.labels.iter().map(|label| label.chars().count()).max().unwrap_or(0).max(24)
    }

    /// A table of one cell for each row and batch size, under a title.
    fn by_batch(
        &self,
        f: &mut fmt::Formatter<'_>,
        title: &str,
        cell: impl Fn(&Figures) -> String,
    ) -> fmt::Result {
        let width = self.width();
        write!(f, "\n{title:<width$}")?;
        for figures in self.reports.first().into_iter().flat_map(Report::figures) {
            write!(f, " {:>20}", format!("batch {}", figures.batch))?;
        }
        for (label, report) in self.rows() {
            write!(f, "\n{label:<width$}")?;
            report.figures().try_for_each(|figures| write!(f, " {:>20}", cell(figures)))?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.reports.first() else { return Ok(()) };
        let width = self.width();
        writeln!(f, "{}", first.machine())?;
        writeln!(f, "{}, in turns", first.workload())?;
        write!(
            f,
            "\n{:<width$} {:>11} {:>12} {:>14}",
            "", "weights, MB", "resident, MB", "prefill tok/s"
        )?;
        first.figures().try_for_each(|figures| {
            write!(f, " {:>16}", format!("decode {} tok/s", figures.batch))
        })?;
        for (label, report) in self.rows() {
            let resident =
                report.resident_bytes().map(|bytes| format!("{:.0}", bytes as f64 / 1e6));
            let resident = resident.unwrap_or_else(|| "-".into());
            let prefill = report.figures().next().map_or(0.0, |f| f.prefill_tokens_per_s);
            let weights = report.weight_bytes as f64 / 1e6;
            write!(f, "\n{label:<width$} {weights:>11.1} {resident:>12} {prefill:>14.1}")?;
            report.figures().try_for_each(|f2| write!(f, " {:>16.1}", f2.decode_tokens_per_s))?;
        }
        writeln!(f)?;
        self.by_batch(f, "decode, GB/s (share)", |figures| {
            let share = 100.0 * figures.decode_of_bandwidth;
            let median = 100.0 * figures.decode_of_median_bandwidth;
            format!("{:.1} ({share:.0}%, {median:.0}%)", figures.decode_bytes_per_s() / 1e9)
        })?;
        let base: Vec<&Figures> = first.figures().collect();
        self.by_batch(f, "speed / first row", |figures| {
            let first = base.iter().find(|first| first.batch == figures.batch);
            first.map_or_else(String::new, |first| {
                let prefill = figures.prefill_tokens_per_s / first.prefill_tokens_per_s;
                let decode = figures.decode_tokens_per_s / first.decode_tokens_per_s;
                format!("{prefill:.2} / {decode:.2}")
            })
        })?;
        writeln!(
            f,
            "\nPrefill is that of the first batch size. Shares are of the best and of the median reading of the memory\n\
             bandwidth beside each decode. Speed: prefill / decode. Resident: anonymous memory of the model and of the\n\
             buffers of the largest batch."
        )
    }
}
