//! Room for somebody who cannot wait, at the cost of those who can.

use super::Scheduler;
use super::budget::Budget;

impl Scheduler {
    /// Let running requests give way to a waiting one that does not fit, as far as the policy says that they do, and only if
    /// together they have what it needs: blocks for `fits` tokens, and a seat. Returns whether somebody did.
    pub(super) fn make_room(&mut self, place: u32, fits: usize, budget: &mut Budget) -> bool {
        let arrival = self.requests.at(place).view();
        let yields = |place: &&u32| self.policy.yields(&self.requests.at(**place).view(), &arrival);
        if !self.running.iter().any(|place| yields(&place)) {
            return false;
        }
        let _ = (fits, budget);
        todo!()
    }
}
