//! The simulator: scenarios against another scheduler's traces, and the clock of the capacity planner.

mod clock;
mod diff;
mod formats;
mod planner;
mod samples;
mod shapes;
