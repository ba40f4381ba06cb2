//! Agents' jobs: which unfinished requests are their steps, and when each job began.
//!
//! A job's first arrival must outlive its requests, because the next step arrives when the one before is gone. How long
//! it takes, and whether it comes at all, is not known, so the jobs without unfinished requests are kept in a list of
//! bounded size, from which the one that has been idle longest is dropped.

mod idle;
mod inferred;

use std::collections::HashMap;

use crate::{JobKey, Time};

pub(crate) use idle::IdleJobs;
pub(crate) use inferred::InferredJobs;

/// Jobs by key.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    by_key: HashMap<JobKey, Job>,
    idle: IdleJobs,
}

#[derive(Debug)]
struct Job {
    /// Arrival of its first request.
    arrival: Time,
    /// Keys of its unfinished requests, in the order of arrival.
    steps: Vec<u32>,
    /// Number in `idle`.
    idle: Option<u64>,
}

impl Jobs {
    /// Adds an unfinished request of a job. Returns the arrival of the job's first request.
    pub(crate) fn begin_step(&mut self, key: &JobKey, step: u32, arrival: Time) -> Time {
        if let Some(job) = self.by_key.get_mut(key) {
            job.steps.push(step);
            if let Some(idle) = job.idle.take() {
                self.idle.remove(idle);
            }
            return job.arrival;
        }
        self.by_key.insert(key.clone(), Job { arrival, steps: vec![step], idle: None });
        arrival
    }

    /// Removes a request that has ended. With the `last` step, a job is forgotten as soon as none of its requests is
    /// unfinished.
    pub(crate) fn end_step(&mut self, key: &JobKey, step: u32, last: bool) {
        let Some(job) = self.by_key.get_mut(key) else { return };
        job.steps.retain(|other| *other != step);
        if !job.steps.is_empty() {
            return;
        }
        if last {
            self.by_key.remove(key);
            return;
        }
        job.idle = Some(self.idle.add(key));
        while let Some(key) = self.idle.pop_surplus() {
            self.by_key.remove(&key);
        }
    }

    /// Unfinished requests of a job, in the order of arrival.
    pub(crate) fn steps(&self, key: &JobKey) -> &[u32] {
        self.by_key.get(key).map_or(&[], |job| &job.steps)
    }

    /// Number of jobs that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::idle::{MAX_IDLE_BYTES, MAX_IDLE_JOBS};
    use super::*;

    fn key(id: String) -> JobKey {
        JobKey { tenant: None, id }
    }

    #[test]
    fn a_jobs_first_arrival_is_known_when_its_next_step_comes() {
        let (mut jobs, a) = (Jobs::default(), key("a".to_owned()));
        assert_eq!(jobs.begin_step(&a, 1, Time(3.0)), Time(3.0));
        assert_eq!(jobs.begin_step(&a, 2, Time(5.0)), Time(3.0));
        assert_eq!(jobs.steps(&a), [1, 2]);
        jobs.end_step(&a, 1, false);
        jobs.end_step(&a, 2, false);
        assert_eq!((jobs.steps(&a), jobs.len()), (&[][..], 1));
        assert_eq!(jobs.begin_step(&a, 7, Time(90.0)), Time(3.0));
        jobs.end_step(&a, 7, true);
        assert_eq!(jobs.len(), 0, "jobs after the last step");
        assert_eq!(jobs.begin_step(&a, 8, Time(95.0)), Time(95.0), "another job of that name");
    }

    #[test]
    fn a_job_of_which_a_step_is_unfinished_is_not_forgotten_with_its_last_step() {
        let (mut jobs, a) = (Jobs::default(), key("a".to_owned()));
        jobs.begin_step(&a, 1, Time(3.0));
        jobs.begin_step(&a, 2, Time(5.0));
        jobs.end_step(&a, 2, true);
        assert_eq!((jobs.steps(&a), jobs.len()), (&[1][..], 1));
    }

    #[test]
    fn jobs_that_never_return_are_dropped_the_longest_idle_first() {
        let mut jobs = Jobs::default();
        let (first, busy) = (key("first".to_owned()), key("busy".to_owned()));
        jobs.begin_step(&busy, 0, Time(0.0));
        for n in 0..3 * MAX_IDLE_JOBS as u32 {
            let key = key(format!("job {n}"));
            jobs.begin_step(&key, n + 1, Time(1.0));
            jobs.end_step(&key, n + 1, false);
            if n % 1000 == 0 {
                // It comes back now and then.
                assert_eq!(jobs.begin_step(&first, 1 << 30, Time(f64::from(n))), Time(0.0));
                jobs.end_step(&first, 1 << 30, false);
            }
        }
        assert_eq!(jobs.len(), MAX_IDLE_JOBS + 1, "idle jobs, and one that has a request");
        assert_eq!(jobs.idle.len(), MAX_IDLE_JOBS);
        assert_eq!(jobs.steps(&busy), [0]);
    }

    #[test]
    fn idle_jobs_with_long_names_are_fewer() {
        let mut jobs = Jobs::default();
        for n in 0..200 {
            let key = key(format!("{n:050000}"));
            jobs.begin_step(&key, n, Time(1.0));
            jobs.end_step(&key, n, false);
        }
        assert_eq!(jobs.len(), MAX_IDLE_BYTES / 50_000);
        assert!(jobs.idle.adds_up(), "bytes of their names");
    }
}
