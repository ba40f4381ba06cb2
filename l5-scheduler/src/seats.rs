//! Seats: stable indices of running requests.
//!
//! Arrays that a model keeps from step to step (recurrent states, block tables on a device, drafts) have one row for
//! each request that can run at once. A running request keeps its row, its *seat*, from admission until it is
//! preempted or ends; another request may have it afterwards. (llama.cpp calls this a slot; here a slot is the memory
//! of one token's keys and values.)

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;

use crate::RequestId;

#[cfg(test)]
mod tests;

/// Seat of a running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    /// Index of the seat, below `max_num_seqs`. Two running requests never have the same.
    pub index: u32,
    /// How often this seat had been given before, modulo 2^32. What is kept for another generation belongs to another
    /// admission.
    pub generation: u32,
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seat {}", self.index)
    }
}

/// All seats of a scheduler.
#[derive(Debug)]
pub(crate) struct Seats {
    /// Free seats, the lowest on top.
    free: BinaryHeap<Reverse<u32>>,
    /// Number of times that each seat has been given.
    generations: Vec<u32>,
    /// For each seat, the key of the request that it was given to last.
    owners: Vec<u32>,
}

impl Seats {
    /// Creates `n` free seats.
    pub(crate) fn new(n: usize) -> Self {
        Self {
            free: (0..n as u32).map(Reverse).collect(),
            generations: vec![0; n],
            owners: vec![0; n],
        }
    }

    /// Gives the request with this key the lowest free seat, so that the seats in use stay close together.
    pub(crate) fn take(&mut self, key: u32) -> Option<Seat> {
        // exercise l5.seat
        let Reverse(index) = self.free.pop()?;
        let given = &mut self.generations[index as usize];
        let seat = Seat { index, generation: *given };
        *given = given.wrapping_add(1);
        self.owners[index as usize] = key;
        Some(seat)
        // end of exercise
    }

    /// Takes a seat back.
    pub(crate) fn give_back(&mut self, seat: Seat) {
        debug_assert!(self.free().all(|free| free != seat.index), "{seat} is free already");
        // exercise l5.seat
        self.free.push(Reverse(seat.index));
        // end of exercise
    }

    /// Key of the request that has a seat, or was the last to have it.
    pub(crate) fn owner(&self, seat: Seat) -> u32 {
        self.owners[seat.index as usize]
    }

    /// Indices of the free seats, in no particular order.
    pub(crate) fn free(&self) -> impl ExactSizeIterator<Item = u32> + use<'_> {
        self.free.iter().map(|free| free.0)
    }
}

/// Values of an executor, one for each unfinished request: found by id, and without a search by the seat that the
/// request has while it runs.
///
/// A value stays where it is when its request is preempted or waits. A seat remembers where that is, and what it
/// remembers is compared with the request's id, so it never leads to another request's value.
#[derive(Debug)]
pub struct BySeat<T> {
    values: Vec<Option<(RequestId, T)>>,
    vacant: Vec<u32>,
    by_id: HashMap<RequestId, u32>,
    /// For each seat, the key that was looked up last.
    seats: Vec<u32>,
}

impl<T> Default for BySeat<T> {
    fn default() -> Self {
        Self { values: Vec::new(), vacant: Vec::new(), by_id: HashMap::new(), seats: Vec::new() }
    }
}

impl<T> BySeat<T> {
    /// Inserts the value of a request. Returns the value that was there under the same id.
    pub fn insert(&mut self, id: RequestId, value: T) -> Option<T> {
        let before = self.remove(id);
        let key = self.vacant.pop().unwrap_or(self.values.len() as u32);
        match self.values.get_mut(key as usize) {
            Some(vacant) => *vacant = Some((id, value)),
            None => self.values.push(Some((id, value))),
        }
        self.by_id.insert(id, key);
        before
    }

    /// Removes the value of a request.
    pub fn remove(&mut self, id: RequestId) -> Option<T> {
        let key = self.by_id.remove(&id)?;
        self.vacant.push(key);
        self.values[key as usize].take().map(|(_, value)| value)
    }

    /// Value of a request, found by its id.
    pub fn get(&self, id: RequestId) -> Option<&T> {
        self.at(*self.by_id.get(&id)?, id)
    }

    /// Value of a request, found by its id.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let key = *self.by_id.get(&id)?;
        self.at_mut(key, id)
    }

    /// Value of the running request `id`, found by its seat. Only the first call after an admission looks for the id.
    pub fn seated(&mut self, seat: Seat, id: RequestId) -> Option<&mut T> {
        let index = seat.index as usize;
        let known = self.seats.get(index).copied().filter(|key| self.at(*key, id).is_some());
        let key = match known {
            Some(key) => key,
            None => {
                let key = *self.by_id.get(&id)?;
                if self.seats.len() <= index {
                    self.seats.resize(index + 1, u32::MAX);
                }
                self.seats[index] = key;
                key
            }
        };
        self.at_mut(key, id)
    }

    /// As [`BySeat::seated`], for reading: it remembers nothing, and looks for the id if the seat is new to it.
    pub fn get_seated(&self, seat: Seat, id: RequestId) -> Option<&T> {
        let known = self.seats.get(seat.index as usize).and_then(|key| self.at(*key, id));
        known.or_else(|| self.get(id))
    }

    fn at(&self, key: u32, id: RequestId) -> Option<&T> {
        let (owner, value) = self.values.get(key as usize)?.as_ref()?;
        (*owner == id).then_some(value)
    }

    fn at_mut(&mut self, key: u32, id: RequestId) -> Option<&mut T> {
        let (owner, value) = self.values.get_mut(key as usize)?.as_mut()?;
        (*owner == id).then_some(value)
    }
}
