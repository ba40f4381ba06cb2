//! Turns of engines that share the cores of a machine: one step at a time, first come, first served.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Turns of the engines that share one [`Runtime`](l1_tensor::Runtime): a step computes while its engine has the turn.
/// Clones share the same turns.
///
/// Two forward passes side by side would take each other's cores and caches: the thread pool runs one op at a time, so
/// both would wait for every op of the other. With turns a step has the whole machine, and then the next engine's step
/// has it. Engines get the turn in the order in which they ask, one step a turn. So no engine starves: between the
/// moment it asks and its turn, every other engine runs at most one step, and each of these steps has at most
/// `max_num_batched_tokens` tokens.
///
/// # Example
///
/// ```
/// use l5_scheduler::Turns;
///
/// let turns = Turns::default();
/// let turn = turns.take();
/// assert!(turns.try_take().is_none(), "another engine has the turn");
/// drop(turn);
/// assert!(turns.try_take().is_some());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when a turn ends.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Number of the next ticket.
    next: u64,
    /// Tickets that have not ended: the first one has the turn.
    tickets: VecDeque<u64>,
}

/// The turn of one engine. It ends when this is dropped.
#[derive(Debug)]
#[must_use = "the turn ends when this is dropped"]
pub struct Turn(Arc<Shared>);

impl Turns {
    /// Waits for the turn.
    pub fn take(&self) -> Turn {
        let mut queue = self.0.lock();
        let ticket = queue.issue();
        while queue.tickets.front() != Some(&ticket) {
            queue = self.0.ended.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self.0.clone())
    }

    /// Takes the turn if no engine has it or waits for it.
    pub fn try_take(&self) -> Option<Turn> {
        let mut queue = self.0.lock();
        if !queue.tickets.is_empty() {
            return None;
        }
        queue.issue();
        Some(Turn(self.0.clone()))
    }

    /// Number of engines that wait for the turn.
    pub fn waiting(&self) -> usize {
        self.0.lock().tickets.len().saturating_sub(1)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn issue(&mut self) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.tickets.push_back(ticket);
        ticket
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.lock().tickets.pop_front();
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Waits until `n` engines wait.
    fn until_waiting(turns: &Turns, n: usize) {
        while turns.waiting() < n {
            thread::yield_now();
        }
    }

    #[test]
    fn engines_get_the_turn_in_the_order_in_which_they_ask() {
        let (turns, order) = (Turns::default(), Arc::new(Mutex::new(Vec::new())));
        let held = turns.take();
        let mut threads = Vec::new();
        for engine in 0..8 {
            let (own, log) = (turns.clone(), order.clone());
            threads.push(thread::spawn(move || {
                let turn = own.take();
                log.lock().unwrap().push(engine);
                drop(turn);
            }));
            until_waiting(&turns, engine + 1);
        }
        assert!(order.lock().unwrap().is_empty(), "the first engine still has the turn");
        drop(held);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
        assert_eq!(turns.waiting(), 0);
    }

    #[test]
    fn an_engine_that_has_had_the_turn_is_behind_those_that_wait() {
        let (turns, log) = (Turns::default(), Arc::new(Mutex::new(Vec::new())));
        let held = turns.take();
        let threads: Vec<_> = (0..3)
            .map(|engine| {
                let (own, log) = (turns.clone(), log.clone());
                let thread = thread::spawn(move || {
                    let _turn = own.take();
                    log.lock().unwrap().push(engine);
                });
                until_waiting(&turns, engine + 1);
                thread
            })
            .collect();
        drop(held);
        let _again = turns.take();
        assert_eq!(*log.lock().unwrap(), [0, 1, 2], "each of the others ran one step first");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
