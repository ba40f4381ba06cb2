//! Bytes that a stream holds back, and a count of how often they are touched.
//!
//! Text that was returned is dropped with the next push, so the held bytes are all that a detokenizer could
//! read again and again. They are readable through one function, [`Held::look`], which counts. So a test can
//! check that the work is linear without a clock.

/// Bytes received and not yet returned as text, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    touched: u64,
}

impl Held {
    /// Appends one byte. Costs nothing.
    pub fn push(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Appends all of these bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// All held bytes. Each call costs as many bytes as there are.
    pub fn look(&mut self) -> &[u8] {
        self.touched += self.bytes.len() as u64;
        &self.bytes
    }

    /// Drops the first `n` bytes. Costs the bytes that move up.
    pub fn drop_first(&mut self, n: usize) {
        if n > 0 {
            self.bytes.drain(..n);
            self.touched += self.bytes.len() as u64;
        }
    }

    /// Drops all bytes.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Number of bytes touched so far, by reading and by moving.
    pub fn touched(&self) -> u64 {
        self.touched
    }
}
