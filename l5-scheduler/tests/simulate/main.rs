//! The simulator: scenarios against another scheduler's traces, the clock of the capacity planner, and jobs of agents.

mod agents;
mod clock;
mod continuum;
mod diff;
mod formats;
mod job_log;
mod planner;
mod samples;
mod sessions;
mod shapes;
