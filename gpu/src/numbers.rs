//! Reproducible pseudo-random numbers.

/// A stream of pseudo-random numbers, whose seed is its name.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// Creates the stream of this name.
    pub fn new(name: &str) -> Self {
        // FNV-1a suffices to give two names different streams.
        let fold = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, fold))
    }

    /// Next 64 bits (SplitMix64).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Integer from 0 to below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.bits() % end as u64) as usize }
    }

    /// Number in [0, 1).
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u64 << 24) as f32
    }

    /// Number with mean 0 and standard deviation 1, from -6 to 6: the sum of twelve uniform numbers, less 6.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    /// Vector of such numbers, multiplied by `by`.
    pub fn normals(&mut self, n: usize, by: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * by).collect()
    }

    /// Vector of token ids of a vocabulary.
    pub fn tokens(&mut self, n: usize, vocab: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(vocab) as u32).collect()
    }
}
