//! Random choices that a seed repeats.

/// A stream of numbers that is the same for the same seed, everywhere and for ever.
///
/// The generator is splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
/// Generators", 2014): one addition and a mixing function.
pub struct Draw(u64);

impl Draw {
    /// The stream of a question kind under a seed. It depends on the kind's name and on nothing
    /// else, so that a kind that is added or removed moves no question of the others.
    pub fn new(kind: &str, seed: u64) -> Self {
        Self(rank(kind, seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number from 0 to `n - 1`.
    pub fn below(&mut self, n: usize) -> usize {
        // The high half of a product: as fair as 64 bits can be, and without a division.
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// One of several things.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// How a kind ranks for a seed: the kind that ranks highest is the one that is asked. So a new
/// kind takes over some seeds and leaves the others with the question they had.
pub fn rank(kind: &str, seed: u64) -> u64 {
    // FNV-1a makes a number of the name.
    let name = kind
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    mix(mix(seed ^ 0x5354_5241_5441) ^ name)
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_splitmix64() {
        // The first numbers for state 0, as the paper's reference code prints them.
        let mut draw = Draw(0);
        assert_eq!(
            [draw.next(), draw.next(), draw.next()],
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]
        );
    }

    #[test]
    fn both_ends_of_a_range_are_drawn_and_nothing_outside() {
        let mut draw = Draw::new("range", 1);
        let seen: Vec<usize> = (0..200).map(|_| draw.between(3, 6)).collect();
        for n in 3..=6 {
            assert!(seen.contains(&n), "{n} never came");
        }
        assert!(seen.iter().all(|n| (3..=6).contains(n)));
    }
}
