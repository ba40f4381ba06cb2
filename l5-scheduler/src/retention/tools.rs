//! What is known of each tool of each tenant. The number of tools is bounded: their names are the models' output.

use std::collections::HashMap;

use super::gaps::Gaps;
use super::pauses::returns;
use crate::{Note, RequestView};

/// Maximum number of tools, over all tenants.
pub(super) const MAX_TOOLS: usize = 256;

/// Maximum number of bytes of a tool's name and its tenant's together. A longer one is no tool.
const MAX_NAME_BYTES: usize = 512;

/// A tool of a tenant. A tool that was forgotten has an id that finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ToolId {
    slot: u32,
    generation: u32,
}

/// Tenant and name.
type ToolKey = (Option<String>, String);

/// The pauses of each tool. Of too many tools the one is forgotten that was used longest ago, unless a lease needs it.
#[derive(Debug)]
pub(super) struct Tools {
    /// Number of pauses that are kept of each tool.
    records: usize,
    by_key: HashMap<ToolKey, u32>,
    slots: Vec<Slot>,
    uses: u64,
}

#[derive(Debug)]
struct Slot {
    key: ToolKey,
    gaps: Gaps,
    generation: u32,
    used: u64,
    /// Number of leases of steps that called it.
    leases: usize,
}

/// Name of the tool that a finished step calls. `None` for a last step, which waits for no tool.
pub(super) fn called_name<'a>(
    finished: &RequestView<'_>,
    note: Option<&'a Note>,
) -> Option<&'a str> {
    note.and_then(|note| note.tool.as_deref()).filter(|_| returns(finished))
}

impl Tools {
    /// Creates an empty table that keeps so many pauses of each tool.
    pub(super) fn new(records: usize) -> Self {
        Self { records, by_key: HashMap::new(), slots: Vec::new(), uses: 0 }
    }

    /// The tool of this name, which may be new. `None` if its name is too long, or if leases need all tools that can be
    /// remembered.
    pub(super) fn find(&mut self, tenant: Option<&str>, tool: &str) -> Option<ToolId> {
        if tool.len() + tenant.map_or(0, str::len) > MAX_NAME_BYTES {
            return None;
        }
        let key = (tenant.map(str::to_owned), tool.to_owned());
        self.uses += 1;
        let slot = match self.by_key.get(&key) {
            Some(slot) => *slot,
            None => self.insert(key)?,
        };
        let entry = &mut self.slots[slot as usize];
        entry.used = self.uses;
        Some(ToolId { slot, generation: entry.generation })
    }

    /// The tool that a finished step calls, by its name. `None` for a last step, which waits for no tool.
    pub(super) fn called(
        &mut self,
        finished: &RequestView<'_>,
        note: Option<&Note>,
    ) -> Option<ToolId> {
        let tenant = finished.job_key().and_then(|job| job.tenant.as_deref());
        self.find(tenant, called_name(finished, note)?)
    }

    fn insert(&mut self, key: ToolKey) -> Option<u32> {
        let slot = if self.slots.len() < MAX_TOOLS {
            self.slots.push(Slot {
                key: key.clone(),
                gaps: Gaps::new(self.records),
                generation: 0,
                used: 0,
                leases: 0,
            });
            self.slots.len() - 1
        } else {
            let free = self.slots.iter().enumerate().filter(|(_, slot)| slot.leases == 0);
            let (number, _) = free.min_by_key(|(_, slot)| slot.used)?;
            let slot = &mut self.slots[number];
            self.by_key.remove(&slot.key);
            slot.key.clone_from(&key);
            slot.gaps = Gaps::new(self.records);
            slot.generation = slot.generation.wrapping_add(1);
            number
        };
        self.by_key.insert(key, slot as u32);
        Some(slot as u32)
    }

    fn slot(&mut self, id: ToolId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        (slot.generation == id.generation).then_some(slot)
    }

    /// Pauses of a tool.
    pub(super) fn gaps(&self, id: ToolId) -> Option<&Gaps> {
        let slot = self.slots.get(id.slot as usize)?;
        (slot.generation == id.generation).then_some(&slot.gaps)
    }

    /// Adds a pause of a tool, if it is still known.
    pub(super) fn add(&mut self, id: ToolId, seconds: f64) {
        if let Some(slot) = self.slot(id) {
            slot.gaps.add(seconds);
        }
    }

    /// A lease of a step that called this tool has begun.
    pub(super) fn hold(&mut self, id: ToolId) {
        if let Some(slot) = self.slot(id) {
            slot.leases += 1;
        }
    }

    /// Such a lease has ended.
    pub(super) fn release(&mut self, id: ToolId) {
        if let Some(slot) = self.slot(id) {
            slot.leases = slot.leases.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_do_not_share_what_is_known_of_a_tool() {
        let mut tools = Tools::new(4);
        let [a, b, none] = [Some("a"), Some("b"), None].map(|t| tools.find(t, "cat").unwrap());
        tools.add(a, 30.0);
        tools.add(b, 0.1);
        assert_eq!(tools.find(Some("a"), "cat"), Some(a));
        let mean = |id| tools.gaps(id).unwrap().mean();
        assert_eq!([mean(a), mean(b), mean(none)], [Some(30.0), Some(0.1), None]);
    }

    #[test]
    fn of_too_many_tools_the_one_used_longest_ago_is_forgotten() {
        let mut tools = Tools::new(4);
        let ids: Vec<_> =
            (0..MAX_TOOLS).map(|n| tools.find(None, &format!("{n}")).unwrap()).collect();
        tools.hold(ids[0]);
        tools.find(None, "1");
        let new = tools.find(None, "new").unwrap();
        assert!(tools.gaps(ids[2]).is_none(), "0 is needed by a lease, and 1 was used again");
        assert!(tools.gaps(ids[0]).is_some() && tools.gaps(ids[1]).is_some());
        tools.add(ids[2], 9.0);
        assert_eq!(tools.gaps(new).unwrap().len(), 0, "the new tool is another one");
        tools.release(ids[0]);
        tools.find(None, "newer");
        assert!(tools.gaps(ids[0]).is_none());
    }

    #[test]
    fn while_leases_need_all_tools_a_new_one_is_unknown() {
        let mut tools = Tools::new(4);
        for n in 0..MAX_TOOLS {
            let id = tools.find(None, &format!("{n}")).unwrap();
            tools.hold(id);
        }
        assert_eq!(tools.find(None, "new"), None);
        assert!(tools.find(None, "7").is_some());
        assert_eq!(Tools::new(4).find(Some(&"t".repeat(400)), &"n".repeat(200)), None);
    }
}
