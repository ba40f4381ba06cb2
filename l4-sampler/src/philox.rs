//! Random numbers that are looked up, not rolled: Philox4x32-10.
//!
//! (Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.) A counter-based generator is a
//! function of a key and a counter; there is no state to advance. So a request's number for its token at position 17 is
//! the same whoever shares its batch, and after it was preempted and computed again.

/// What a random number is for. Different purposes at one position get independent numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// A token from a distribution.
    Draw = 0,
    /// Whether a draft's token is accepted.
    Accept = 1,
    /// The token in place of a rejected one.
    Residual = 2,
    /// The token behind a draft that was accepted whole.
    Bonus = 3,
}

/// Names one random number of one request, but for its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawKey {
    /// The request's seed.
    pub seed: u64,
    /// Which of the request's parallel samples.
    pub sample: u32,
    /// Place in the sequence, prompt included, of the token that is being chosen.
    pub position: u32,
}

impl DrawKey {
    /// The same request, `n` tokens later.
    #[must_use]
    pub fn ahead(self, n: u32) -> Self {
        Self { position: self.position.wrapping_add(n), ..self }
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn uniform(self, purpose: Purpose) -> f64 {
        let _ = purpose;
        todo!()
    }
}

/// Ten rounds of Philox4x32: 128 random bits for a key and a counter.
pub fn philox4x32(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let _ = (key, counter);
    todo!()
}

/// A seed for a request that brought none, from the system's entropy. Below 2^53, so that it survives JSON readers
/// that only have doubles.
pub fn fresh_seed() -> u64 {
    todo!()
}
