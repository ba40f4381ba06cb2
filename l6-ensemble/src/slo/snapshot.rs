//! A window's counts as bytes, so that they survive a restart.
//!
//! The format is JSON with a version. Minutes are ages, in minutes before the snapshot; the snapshot has its wall-clock
//! minute, so that the minutes for which the process was down age the counts too. It also has the lane's identity
//! (model and adapter): counts of another model are not restored.

use l5_scheduler::Time;
use serde::{Deserialize, Serialize};

use super::histogram::{Histogram, NUM_BUCKETS};
use super::window::{latency_slot, rate_slot};
use super::{RATE_WINDOW_MINUTES, SloOptions, SloWindow};

/// Largest snapshot that is read, in bytes. The largest that is written has less than half of it.
pub const MAX_SNAPSHOT_BYTES: usize = 4 << 20;

const VERSION: u32 = 1;

/// Why a snapshot was not restored. The window is then empty, as at the lane's first start.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Too many bytes.
    #[error(
        "the SLO snapshot has {0} bytes, and at most {MAX_SNAPSHOT_BYTES} are read: delete the file"
    )]
    TooLong(usize),
    /// No JSON of this form.
    #[error("the SLO snapshot is damaged ({0}): delete the file")]
    Malformed(#[from] serde_json::Error),
    /// Written by another version.
    #[error(
        "the SLO snapshot has format {0}, and this version reads {VERSION}: delete the file, or run its version"
    )]
    Version(u32),
    /// Counts of another model.
    #[error(
        "the SLO snapshot is of {found:?}, and the lane serves {expected:?}: the counts start from zero"
    )]
    OtherModel {
        /// Identity of the lane.
        expected: String,
        /// Identity in the snapshot.
        found: String,
    },
    /// Counts that no window can have.
    #[error("the SLO snapshot is damaged ({0}): delete the file")]
    Impossible(&'static str),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Snapshot {
    version: u32,
    identity: String,
    /// Minutes since the Unix epoch.
    wall_minute: u64,
    /// Age, passed, checked, preempted, finished.
    rates: Vec<(u64, u32, u32, u32, u32)>,
    latencies: Vec<Latencies>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Latencies {
    age: u64,
    ttft: Vec<(usize, u32)>,
    itl: Vec<(usize, u32)>,
    admitted: Vec<(usize, u32)>,
}

/// Only the version, which is read first: the rest may have another form.
#[derive(Deserialize)]
struct Header {
    version: u32,
}

impl SloWindow {
    /// The counts as bytes. `wall_minute` is the present minute since the Unix epoch, `identity` names model and
    /// adapter.
    ///
    /// # Errors
    /// None in practice: numbers and strings always have a JSON form.
    pub fn snapshot(
        &self,
        now: Time,
        wall_minute: u64,
        identity: &str,
    ) -> Result<Vec<u8>, SnapshotError> {
        let minute = self.minute(now);
        let rates = self
            .rate_minutes(now)
            .filter(|slot| slot.checked > 0 || slot.finished > 0)
            .map(|m| (minute - m.minute, m.passed, m.checked, m.preempted, m.finished))
            .collect();
        let latencies = self
            .latency_minutes(now)
            .map(|slot| Latencies {
                age: minute - slot.minute,
                ttft: slot.ttft.filled().collect(),
                itl: slot.itl.filled().collect(),
                admitted: slot.admitted.filled().collect(),
            })
            .filter(|m| !(m.ttft.is_empty() && m.itl.is_empty() && m.admitted.is_empty()))
            .collect();
        let identity = identity.to_owned();
        let snapshot = Snapshot { version: VERSION, identity, wall_minute, rates, latencies };
        Ok(serde_json::to_vec(&snapshot)?)
    }

    /// Replaces the counts with those of a snapshot, aged by the minutes that have passed since. A wall clock that went
    /// back ages nothing. Latencies older than the present window, which may be shorter than the recorded one, are left
    /// out.
    ///
    /// The minutes of the two clocks begin at different seconds, so a count can be dropped up to a minute early or
    /// late.
    ///
    /// # Errors
    /// [`SnapshotError`]; the window is empty then, and can be used.
    pub fn restore(
        &mut self,
        bytes: &[u8],
        now: Time,
        wall_minute: u64,
        identity: &str,
    ) -> Result<(), SnapshotError> {
        self.clear();
        let snapshot = parse(bytes, identity)?;
        let passed = wall_minute.saturating_sub(snapshot.wall_minute);
        let minute = self.minute(now);
        self.latest = minute;
        for (age, passed_checks, checked, preempted, finished) in snapshot.rates {
            let age = age.saturating_add(passed);
            if age < RATE_WINDOW_MINUTES {
                let slot = rate_slot(&mut self.rates, minute - age);
                (slot.passed, slot.checked) = (passed_checks, checked);
                (slot.preempted, slot.finished) = (preempted, finished);
            }
        }
        let minutes = self.latencies.len() as u64;
        for latencies in snapshot.latencies {
            let age = latencies.age.saturating_add(passed);
            if age < minutes {
                let slot = latency_slot(&mut self.latencies, minute - age);
                fill(&mut slot.ttft, &latencies.ttft);
                fill(&mut slot.itl, &latencies.itl);
                fill(&mut slot.admitted, &latencies.admitted);
            }
        }
        Ok(())
    }
}

/// Reads a snapshot and checks all of it, before any of it is used.
fn parse(bytes: &[u8], identity: &str) -> Result<Snapshot, SnapshotError> {
    if bytes.len() > MAX_SNAPSHOT_BYTES {
        return Err(SnapshotError::TooLong(bytes.len()));
    }
    let Header { version } = serde_json::from_slice(bytes)?;
    if version != VERSION {
        return Err(SnapshotError::Version(version));
    }
    let snapshot: Snapshot = serde_json::from_slice(bytes)?;
    if snapshot.identity != identity {
        let expected = identity.to_owned();
        return Err(SnapshotError::OtherModel { expected, found: snapshot.identity });
    }
    let mut ages = [false; RATE_WINDOW_MINUTES as usize];
    for (age, passed, checked, preempted, finished) in &snapshot.rates {
        if passed > checked || preempted > finished {
            return Err(SnapshotError::Impossible("a part is greater than its whole"));
        }
        once(&mut ages, *age)?;
    }
    let mut ages = [false; SloOptions::MAX_LATENCY_MINUTES as usize];
    for latencies in &snapshot.latencies {
        once(&mut ages, latencies.age)?;
        let buckets = [&latencies.ttft, &latencies.itl, &latencies.admitted];
        if buckets.into_iter().flatten().any(|(bucket, _)| *bucket >= NUM_BUCKETS) {
            return Err(SnapshotError::Impossible("a bucket of latencies is out of range"));
        }
    }
    Ok(snapshot)
}

/// Marks an age, which may occur once.
fn once(ages: &mut [bool], age: u64) -> Result<(), SnapshotError> {
    let seen = usize::try_from(age).ok().and_then(|age| ages.get_mut(age));
    let seen = seen.ok_or(SnapshotError::Impossible("a minute is older than the window"))?;
    if std::mem::replace(seen, true) {
        return Err(SnapshotError::Impossible("a minute occurs twice"));
    }
    Ok(())
}

fn fill(histogram: &mut Histogram, buckets: &[(usize, u32)]) {
    for (bucket, n) in buckets {
        histogram.add(*bucket, *n);
    }
}
