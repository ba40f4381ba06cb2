//! Random numbers that are looked up, not rolled: Philox4x32-10.
//!
//! (Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.) A counter-based generator is a
//! function of a key and a counter; there is no state to advance. So a request's number for its token at position 17 is
//! the same whoever shares its batch, and after it was preempted and computed again.

use std::hash::{BuildHasher, RandomState};

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
    ///
    /// The key is the seed (low half, high half), the counter `[position, 0, sample, purpose]`: two different names
    /// are two different arguments of a function that scrambles all of them. 53 bits are what an f64 below 1 holds,
    /// so every number that can come out is as likely as any other, and 1 cannot.
    pub fn uniform(self, purpose: Purpose) -> f64 {
        // exercise l4.philox
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let out = philox4x32(key, [self.position, 0, self.sample, purpose as u32]);
        let bits = (u64::from(out[0]) << 32 | u64::from(out[1])) >> 11;
        bits as f64 / (1u64 << 53) as f64
        // end of exercise
    }
}

/// What two words of the counter are multiplied by in every round.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];

/// What is added to the two key words after every round: the golden ratio and sqrt(3) - 1, in 32 bits. Any numbers
/// without a pattern would do; these show that nobody chose them with a purpose.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Ten rounds of Philox4x32: 128 random bits for a key and a counter.
///
/// In a round the words 0 and 2 of the counter are each multiplied to 64 bits. The low half of a product keeps
/// everything (an odd multiplier can be undone) but mixes only upwards; the high half depends on all bits but loses
/// some. So the low halves move on as they are, the high ones are only xored to words that would otherwise stand
/// still, with the key, and the round as a whole loses nothing:
///
/// ```text
/// [c0, c1, c2, c3]  ->  [high(M1 c2) ^ c1 ^ k0,  low(M1 c2),  high(M0 c0) ^ c3 ^ k1,  low(M0 c0)]
/// ```
pub fn philox4x32(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    // exercise l4.philox
    let [mut k0, mut k1] = key;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..10 {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        (c0, c2) = ((b >> 32) as u32 ^ c1 ^ k0, (a >> 32) as u32 ^ c3 ^ k1);
        (c1, c3) = (b as u32, a as u32);
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3]
    // end of exercise
}

/// A seed for a request that brought none, from the system's entropy. Below 2^53, so that it survives JSON readers
/// that only have doubles.
pub fn fresh_seed() -> u64 {
    // The standard library keys its hash maps from the system's entropy, a new key for each map: the hash of nothing
    // under such a key is a number that nobody can guess, without a dependency for it.
    RandomState::new().hash_one(()) >> 11
}
