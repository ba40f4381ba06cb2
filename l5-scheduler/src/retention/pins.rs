//! Leases by the tools that their jobs wait for, so that the one with the longest expected rest is found without a look
//! at all of them.
//!
//! All leases of one tool have the same records, and the [expected rest](super::gaps::Gaps::expected_rest) is a function
//! of the age alone. Between two recorded pauses it falls with the age if at least two longer ones are recorded, is
//! constant with one, and rises with none. So of all leases whose age is between the same two pauses only the youngest
//! can have the longest rest, and of those that are older than all pauses only the oldest. At most as many leases of a
//! tool are looked at as pauses are recorded of it, and one more.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;

use super::gaps::Gaps;
use super::tools::{ToolId, Tools};
use crate::{LeaseId, Time};

/// A lease by its begin.
type Pin = (Time, LeaseId);

/// Leases of jobs of which no step is unfinished.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// Leases by tool, without one those of unknown tools.
    by_tool: BTreeMap<Option<ToolId>, BTreeSet<Pin>>,
    by_lease: HashMap<LeaseId, (Option<ToolId>, Time)>,
}

impl Pins {
    /// Adds a lease. Returns whether it is new.
    pub(super) fn insert(&mut self, lease: LeaseId, tool: Option<ToolId>, since: Time) -> bool {
        if self.by_lease.contains_key(&lease) {
            return false;
        }
        self.by_lease.insert(lease, (tool, since));
        self.by_tool.entry(tool).or_default().insert((since, lease))
    }

    /// Removes a lease. Returns its tool if it was there.
    pub(super) fn remove(&mut self, lease: LeaseId) -> Option<Option<ToolId>> {
        let (tool, since) = self.by_lease.remove(&lease)?;
        if let Some(pins) = self.by_tool.get_mut(&tool) {
            pins.remove(&(since, lease));
            if pins.is_empty() {
                self.by_tool.remove(&tool);
            }
        }
        Some(tool)
    }

    /// Expected rest of the pause of a lease's job.
    pub(super) fn rest(&self, tools: &Tools, now: Time, lease: LeaseId) -> Option<f64> {
        let (tool, since) = *self.by_lease.get(&lease)?;
        let unknown = Gaps::new(0);
        let gaps = tool.and_then(|tool| tools.gaps(tool)).unwrap_or(&unknown);
        Some(gaps.expected_rest(now - since))
    }

    /// The lease with the longest expected rest, beside those that were `named`: by earlier calls, at the same time.
    pub(super) fn longest(
        &self,
        tools: &Tools,
        now: Time,
        named: &[LeaseId],
    ) -> Option<(f64, LeaseId)> {
        let named: HashSet<LeaseId> = named.iter().copied().collect();
        let unknown = Gaps::new(0);
        let mut best: Option<(f64, LeaseId)> = None;
        for (tool, pins) in &self.by_tool {
            let gaps = tool.and_then(|tool| tools.gaps(tool)).unwrap_or(&unknown);
            for (since, lease) in candidates(gaps, pins, now, &named) {
                let rest = gaps.expected_rest(now - since);
                let longer = |(most, other): (f64, LeaseId)| {
                    rest.total_cmp(&most).then(lease.cmp(&other)).is_gt()
                };
                if best.is_none_or(longer) {
                    best = Some((rest, lease));
                }
            }
        }
        best
    }
}

/// The leases of a tool of which one has the longest rest. Those that were named are skipped: of each stretch between
/// two pauses they are the ones with the longest rests, so they lie together.
fn candidates<'a>(
    gaps: &'a Gaps,
    pins: &'a BTreeSet<Pin>,
    now: Time,
    named: &'a HashSet<LeaseId>,
) -> impl Iterator<Item = Pin> + 'a {
    let free = |pin: &&Pin| !named.contains(&pin.1);
    let mut behind: Bound<Pin> = Bound::Unbounded;
    let mut over = false;
    std::iter::from_fn(move || {
        if over {
            return None;
        }
        // exercise l5.longest
        let youngest = pins.range((Bound::Unbounded, behind)).rev().find(free)?;
        let Some(gap) = gaps.next_above(now - youngest.0) else {
            over = true;
            return pins.iter().find(free).copied();
        };
        // The next stretch begins with the youngest lease that is at least as old as this pause.
        let next = (now + -gap, LeaseId(u64::MAX));
        behind = if next < *youngest { Bound::Included(next) } else { Bound::Excluded(*youngest) };
        Some(*youngest)
        // end of exercise
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a look at all leases.
        #[test]
        fn the_longest_rest_is_found_by_the_heads_alone(
            records in prop::collection::vec(prop::collection::vec(0.0..30.0_f64, 0..9), 1..4),
            leases in prop::collection::vec((0_usize..5, 0.0..40.0_f64), 0..40),
        ) {
            let mut tools = Tools::new(6);
            let mut ids = Vec::new();
            for (number, gaps) in records.iter().enumerate() {
                let id = tools.find(None, &number.to_string()).unwrap();
                gaps.iter().for_each(|gap| tools.add(id, *gap));
                ids.push(id);
            }
            let now = Time(40.0);
            let mut pins = Pins::default();
            let mut rests = HashMap::new();
            for (number, (tool, since)) in leases.iter().enumerate() {
                let (id, tool) = (LeaseId(number as u64), ids.get(*tool).copied());
                pins.insert(id, tool, Time(*since));
                let unknown = Gaps::new(0);
                let gaps = tool.and_then(|tool| tools.gaps(tool)).unwrap_or(&unknown);
                rests.insert(id, gaps.expected_rest(40.0 - since));
            }
            let mut named = Vec::new();
            while let Some((rest, lease)) = pins.longest(&tools, now, &named) {
                prop_assert_eq!(rests.remove(&lease), Some(rest));
                let longest = rests.values().copied().fold(0.0, f64::max);
                prop_assert!(rest >= longest - 1e-9, "{} s, and {} s is left", rest, longest);
                named.push(lease);
            }
            prop_assert_eq!(named.len(), leases.len());
            for lease in named {
                pins.remove(lease);
            }
            prop_assert!(pins.by_tool.is_empty() && pins.by_lease.is_empty());
        }
    }

    #[test]
    fn a_choice_looks_at_as_many_leases_as_there_are_pauses() {
        let mut gaps = Gaps::new(4);
        [1.0, 2.0, 3.0, 4.0].into_iter().for_each(|gap| gaps.add(gap));
        let pins: BTreeSet<Pin> =
            (0..10_000).map(|n| (Time(n as f64 * 1e-3), LeaseId(n))).collect();
        let none = HashSet::new();
        let looked: Vec<f64> =
            candidates(&gaps, &pins, Time(10.0), &none).map(|(since, _)| since.seconds()).collect();
        assert_eq!(
            looked,
            [9.999, 9.0, 8.0, 7.0, 0.0],
            "the youngest of each stretch, and the oldest"
        );
    }
}
