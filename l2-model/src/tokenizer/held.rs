//! The bytes a stream holds back, and a count of how often they are touched.
//!
//! Text that was given out is forgotten with the next push, so the held bytes are all that a detokenizer can look
//! at again and again. They are therefore lent out through one door, [`Held::look`], which counts: whether the work
//! is linear is judged without a clock, and without the word of the code that is judged.

/// Bytes taken in and not yet given out, in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    touched: u64,
}

impl Held {
    /// Holds one byte more. Costs nothing yet.
    pub fn push(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Holds all of these.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// All that is held. Costs as many bytes as there are, at each call.
    pub fn look(&mut self) -> &[u8] {
        self.touched += self.bytes.len() as u64;
        &self.bytes
    }

    /// Lets go of the first `n` bytes. Costs the bytes that move up.
    pub fn drop_first(&mut self, n: usize) {
        if n > 0 {
            self.bytes.drain(..n);
            self.touched += self.bytes.len() as u64;
        }
    }

    /// Lets go of everything.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes touched so far, by looking and by moving.
    pub fn touched(&self) -> u64 {
        self.touched
    }
}
