//! The manager's sequences: a slab. A place is used again when its sequence is gone, table and all,
//! so that admitting a request allocates nothing once enough of them have been there.

use crate::{BlockTable, KvError, Result, SeqId};

/// One sequence's bookkeeping.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) table: BlockTable,
    generation: u32,
    pub(super) live: bool,
    /// Blocks with a hash: the first so many of the table, and no others.
    pub(super) hashed: usize,
    /// Blocks that were found in the cache at admission.
    pub(super) hit: usize,
    /// Whether the place stands in the list of this step. The fields below mean something only then.
    pub(super) in_step: bool,
    /// This step admitted it.
    pub(super) admitted: bool,
    /// Length of the table when the step began.
    pub(super) blocks_before: usize,
    /// `hashed` when the step began. The hashes between this and `hashed` are pending.
    pub(super) hashed_before: usize,
}

impl Sequence {
    /// The places in the table whose hashes are pending.
    pub(super) fn pending(&self) -> std::ops::Range<usize> {
        if self.in_step { self.hashed_before..self.hashed } else { 0..0 }
    }
}

/// All of them, by place.
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

    /// Sequences that live.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    pub(super) fn was_used(&self) -> bool {
        !self.places.is_empty()
    }

    /// A new sequence with an empty table: its place.
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
        });
        // Ending sequences must not allocate.
        self.vacant.reserve(self.places.len());
        (self.places.len() - 1) as u32
    }

    /// The sequence is gone. Its blocks were given back.
    pub(super) fn end(&mut self, place: u32) {
        let gone = self.at_mut(place);
        debug_assert!(gone.live && gone.table.blocks().is_empty());
        gone.generation = gone.generation.wrapping_add(1);
        gone.live = false;
        gone.admitted = false;
        (gone.hashed, gone.hit, gone.blocks_before, gone.hashed_before) = (0, 0, 0, 0);
        self.vacant.push(place);
    }

    pub(super) fn id(&self, place: u32) -> SeqId {
        SeqId { index: place, generation: self.at(place).generation }
    }

    /// The place of a handle, if its sequence still lives.
    pub(super) fn place(&self, seq: SeqId) -> Result<u32> {
        self.get(seq).map(|_| seq.index)
    }

    pub(super) fn get(&self, seq: SeqId) -> Result<&Sequence> {
        let known = self.places.get(seq.index as usize);
        let alive = known.filter(|s| s.live && s.generation == seq.generation);
        alive.ok_or(KvError::UnknownSequence(seq))
    }

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
