//! The manager's sequences: a slab. An index is reused, with its table, after its sequence was freed, so
//! that admitting a request allocates nothing in a steady state.

use crate::{BlockTable, KvError, Result, SeqId};

/// State of one sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) table: BlockTable,
    generation: u32,
    pub(super) live: bool,
    /// Number of blocks with a hash; they are the first of the table.
    pub(super) hashed: usize,
    /// Number of blocks that were hit in the cache at admission.
    pub(super) hit: usize,
    /// Whether the index is in the list of this step. The fields below are valid only then.
    pub(super) in_step: bool,
    /// Whether this step admitted the sequence.
    pub(super) admitted: bool,
    /// Length of the table when the step began.
    pub(super) blocks_before: usize,
    /// `hashed` when the step began. The hashes between this and `hashed` are pending.
    pub(super) hashed_before: usize,
    /// Its part of the step that runs, while the step after that one is planned.
    pub(super) running: Option<StepPart>,
}

/// A sequence's part of a step that has not been committed: [`Sequence::admitted`], [`Sequence::blocks_before`] and
/// [`Sequence::hashed_before`] of that step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepPart {
    admitted: bool,
    blocks_before: usize,
    hashed_before: usize,
}

impl Sequence {
    /// Moves its part of the newest step aside: another step begins while that one runs.
    pub(super) fn step_runs(&mut self) {
        self.running = Some(StepPart {
            admitted: std::mem::take(&mut self.admitted),
            blocks_before: self.blocks_before,
            hashed_before: self.hashed_before,
        });
        self.in_step = false;
    }

    /// Makes its part of the step that runs that of the newest step again.
    pub(super) fn step_is_newest(&mut self) {
        let Some(part) = self.running.take() else { return };
        self.in_step = true;
        self.admitted = part.admitted;
        self.blocks_before = part.blocks_before;
        self.hashed_before = part.hashed_before;
    }

    /// Indices in the table of blocks whose hashes are pending in the newest step.
    pub(super) fn pending(&self) -> std::ops::Range<usize> {
        if self.in_step { self.hashed_before..self.hashed } else { 0..0 }
    }
}

/// All sequences, by index.
#[derive(Debug)]
pub(super) struct Sequences {
    places: Vec<Sequence>,
    vacant: Vec<u32>,
    block_size: usize,
    max_blocks: usize,
}

impl Sequences {
    pub(super) fn new(block_size: usize, max_blocks: usize) -> Self {
        Self { places: Vec::new(), vacant: Vec::new(), block_size, max_blocks }
    }

    /// Number of live sequences.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    pub(super) fn was_used(&self) -> bool {
        !self.places.is_empty()
    }

    /// Begins a sequence with an empty table and returns its index.
    pub(super) fn begin(&mut self) -> u32 {
        if let Some(place) = self.vacant.pop() {
            self.at_mut(place).live = true;
            return place;
        }
        self.places.push(Sequence {
            table: BlockTable::with_capacity(self.block_size, self.max_blocks),
            generation: 0,
            live: true,
            hashed: 0,
            hit: 0,
            in_step: false,
            admitted: false,
            blocks_before: 0,
            hashed_before: 0,
            running: None,
        });
        // Ending sequences must not allocate.
        self.vacant.reserve(self.places.len());
        (self.places.len() - 1) as u32
    }

    /// Ends a sequence whose blocks were released.
    pub(super) fn end(&mut self, place: u32) {
        let gone = self.at_mut(place);
        debug_assert!(gone.live && gone.table.blocks().is_empty() && gone.running.is_none());
        gone.generation = gone.generation.wrapping_add(1);
        gone.live = false;
        gone.admitted = false;
        (gone.hashed, gone.hit, gone.blocks_before, gone.hashed_before) = (0, 0, 0, 0);
        self.vacant.push(place);
    }

    pub(super) fn id(&self, place: u32) -> SeqId {
        SeqId { index: place, generation: self.at(place).generation }
    }

    /// Index of a handle, if its sequence is live.
    #[inline]
    pub(super) fn place(&self, seq: SeqId) -> Result<u32> {
        self.get(seq).map(|_| seq.index)
    }

    #[inline]
    pub(super) fn get(&self, seq: SeqId) -> Result<&Sequence> {
        self.find(seq).ok_or(KvError::UnknownSequence(seq))
    }

    #[inline]
    pub(super) fn find(&self, seq: SeqId) -> Option<&Sequence> {
        let known = self.places.get(seq.index as usize);
        known.filter(|s| s.live && s.generation == seq.generation)
    }

    #[inline]
    pub(super) fn at(&self, place: u32) -> &Sequence {
        &self.places[place as usize]
    }

    pub(super) fn at_mut(&mut self, place: u32) -> &mut Sequence {
        &mut self.places[place as usize]
    }

    pub(super) fn living(&self) -> impl Iterator<Item = (SeqId, &Sequence)> {
        (0..).zip(&self.places).filter(|(_, s)| s.live).map(|(place, s)| (self.id(place), s))
    }
}
