//! Counter-based random numbers: Philox4x32-10.
//!
//! (Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.) A counter-based generator is a
//! function of a key and a counter; there is no state to advance. So a request's random number for its token at
//! position 17 does not depend on the batch, nor on a preemption in between.

use std::hash::{BuildHasher, RandomState};

/// Purpose of a random number. Different purposes at one position get independent numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Sampling a token from a distribution.
    Draw = 0,
    /// Accepting a draft's token.
    Accept = 1,
    /// Replacing a rejected token.
    Residual = 2,
    /// Sampling the token behind a draft that was accepted in full.
    Bonus = 3,
}

/// Key of a request's random numbers at one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawKey {
    /// Seed of the request.
    pub seed: u64,
    /// Index among the parallel samples of the request.
    pub sample: u32,
    /// Position in the sequence, prompt included, of the token that is sampled.
    pub position: u32,
}

impl DrawKey {
    /// Key of the same request, `n` tokens later.
    #[must_use]
    pub fn ahead(self, n: u32) -> Self {
        Self { position: self.position.wrapping_add(n), ..self }
    }

    /// A number in `[0, 1)` with 53 random bits.
    ///
    /// The Philox key is the seed (low half, high half), the counter `[position, 0, sample, purpose]`, so different
    /// keys and purposes give independent numbers. 53 bits are what an f64 below 1 holds: all values are equally
    /// likely, and 1 is not among them.
    pub fn uniform(self, purpose: Purpose) -> f64 {
        // exercise l4.philox
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let out = philox4x32(key, [self.position, 0, self.sample, purpose as u32]);
        let bits = (u64::from(out[0]) << 32 | u64::from(out[1])) >> 11;
        bits as f64 / (1u64 << 53) as f64
        // end of exercise
    }
}

/// Factors of two words of the counter in every round.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];

/// Constants added to the two key words after every round: the golden ratio and sqrt(3) - 1, in 32 bits. Any numbers
/// without a pattern would do; these show that they were not chosen for a hidden purpose.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Ten rounds of Philox4x32: 128 random bits for a key and a counter.
///
/// In a round the words 0 and 2 of the counter are each multiplied to 64 bits. The low half of a product loses nothing
/// (an odd factor can be undone) but mixes only upwards; the high half depends on all bits but loses some. So the low
/// halves are kept as they are, the high ones are only xored with the key and with the other words, and the round as a
/// whole loses nothing:
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

/// A seed for a request without one, from the system's entropy. Below 2^53, so that JSON readers with doubles only can
/// represent it.
pub fn fresh_seed() -> u64 {
    // The standard library keys each hash map from the system's entropy: the hash of nothing under such a key is an
    // unpredictable number, without another dependency.
    RandomState::new().hash_one(()) >> 11
}
