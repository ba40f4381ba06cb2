//! Indices of the adapters that unfinished requests have.
//!
//! The model names an adapter of a step by an index ([`l2_model::Workspace::set_adapter`]). An adapter has the lowest
//! free index from the begin of its first request to the end of its last one, so indices stay dense whatever is loaded
//! and unloaded meanwhile. Two loads of one name are two adapters here: requests keep the weights that they began with.

use std::sync::Arc;

use l2_model::Workspace;
use l2_model::adapter::LoraAdapter;

/// Index of a row without an adapter.
pub(super) const NO_ADAPTER: i32 = -1;

/// The adapters in use.
#[derive(Default)]
pub(super) struct AdapterTable {
    /// By index: an adapter, and the number of choices that have it.
    used: Vec<Option<(Arc<LoraAdapter>, usize)>>,
}

impl AdapterTable {
    /// Counts a choice with this adapter, and returns the adapter's index.
    ///
    /// # Errors
    /// Those of [`Workspace::set_adapter`]; then nothing was counted.
    pub(super) fn begin(
        &mut self,
        ws: &mut Workspace,
        adapter: &Arc<LoraAdapter>,
    ) -> l2_model::Result<i32> {
        let own = |used: &Option<(Arc<LoraAdapter>, usize)>| {
            used.as_ref().is_some_and(|(other, _)| Arc::ptr_eq(other, adapter))
        };
        let known = self.used.iter().position(own);
        let free = || self.used.iter().position(Option::is_none).unwrap_or(self.used.len());
        let index = known.unwrap_or_else(free);
        if known.is_none() {
            ws.set_adapter(index, Some(adapter.clone()))?;
            if index == self.used.len() {
                self.used.push(None);
            }
        }
        let (_, choices) = self.used[index].get_or_insert_with(|| (adapter.clone(), 0));
        *choices += 1;
        Ok(i32::try_from(index).unwrap_or(i32::MAX))
    }

    /// A choice with the adapter of this index has ended. With the last one the index becomes free.
    pub(super) fn end(&mut self, ws: &mut Workspace, index: i32) {
        let Some(at) = usize::try_from(index).ok().filter(|at| *at < self.used.len()) else {
            return;
        };
        if let Some((_, choices)) = &mut self.used[at] {
            *choices -= 1;
            if *choices == 0 {
                self.used[at] = None;
                // Without an adapter there is no rank that could be too large.
                let freed = ws.set_adapter(at, None);
                debug_assert!(freed.is_ok(), "{freed:?}");
            }
        }
    }

    /// Number of adapters in use.
    pub(super) fn len(&self) -> usize {
        self.used.iter().flatten().count()
    }
}
