//! A device on which lanes take turns.

use std::collections::VecDeque;

use l5_scheduler::Time;

/// A device that runs one step at a time. Lanes get it in the order in which they asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    queue: VecDeque<usize>,
    running: Option<(usize, Time)>,
}

impl Device {
    /// Queues a lane for one step.
    pub(super) fn ask(&mut self, lane: usize) {
        self.queue.push_back(lane);
    }

    /// The lane whose turn it is, if no step runs.
    pub(super) fn next(&mut self) -> Option<usize> {
        if self.running.is_some() { None } else { self.queue.pop_front() }
    }

    /// Begins the step of a lane, which ends at `end`.
    pub(super) fn begin(&mut self, lane: usize, end: Time) {
        self.running = Some((lane, end));
    }

    /// End of the running step.
    pub(super) fn ends(&self) -> Option<Time> {
        self.running.map(|(_, end)| end)
    }

    /// Ends the running step, and returns its lane.
    pub(super) fn end(&mut self) -> Option<usize> {
        self.running.take().map(|(lane, _)| lane)
    }
}
