//! Metrics of the process, under the names that all Prometheus clients use. Without `/proc` there are fewer.

use std::fmt::Write;

/// Clock ticks per second in `/proc/self/stat`: 100 for programs, whatever the kernel uses.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads and writes all of them. `started` is in seconds since 1970.
pub fn write(out: &mut String, started: f64) {
    let mut family = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            // A `String` takes all that is written to it.
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
    };
    let counter = "counter";
    family(
        "process_cpu_seconds_total",
        counter,
        "Total user and system CPU time spent in seconds.",
        cpu_seconds(),
    );
    family(
        "process_open_fds",
        "gauge",
        "Number of open file descriptors.",
        entries("/proc/self/fd"),
    );
    family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident());
    let help = "Start time of the process since the Unix epoch in seconds.";
    family("process_start_time_seconds", "gauge", help, Some(started));
    family(
        "process_threads",
        "gauge",
        "Number of OS threads in the process.",
        entries("/proc/self/task"),
    );
}

fn resident() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0)
}

fn entries(path: &str) -> Option<f64> {
    Some(std::fs::read_dir(path).ok()?.count() as f64)
}

/// User and system time: the 14th and 15th field, counted behind the name, which may hold anything.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<f64>);
    Some((times.next()?.ok()? + times.next()?.ok()?) / TICKS_PER_SECOND)
}
