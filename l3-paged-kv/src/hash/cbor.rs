//! The part of CBOR (RFC 8949) that block hashes need.
//!
//! An item begins with a byte of which three bits are its major type and five say how large its
//! *argument* is: a number's value, or how many bytes or items follow. Core deterministic encoding
//! (section 4.2.1) asks for the shortest argument and definite lengths, which leaves exactly one way to
//! write each value. Equal values, equal bytes: without that a hash would be of no use.

/// Receives the encoded bytes.
pub(crate) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Writes items one after the other. Heads are a few bytes each, and handing a hash function so few
/// at a time costs more than hashing them: they gather in a buffer on the stack first.
pub(crate) struct Encoder<S> {
    sink: S,
    buffer: [u8; BUFFER],
    used: usize,
}

const BUFFER: usize = 256;

const UINT: u8 = 0;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const NULL: u8 = 0xf6;

impl<S: Sink> Encoder<S> {
    pub(crate) fn new(sink: S) -> Self {
        Self { sink, buffer: [0; BUFFER], used: 0 }
    }

    pub(crate) fn uint(&mut self, value: u64) {
        self.head(UINT, value);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.head(BYTES, bytes.len() as u64);
        self.raw(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.head(TEXT, text.len() as u64);
        self.raw(text.as_bytes());
    }

    /// `len` items follow.
    pub(crate) fn array(&mut self, len: usize) {
        self.head(ARRAY, len as u64);
    }

    pub(crate) fn null(&mut self) {
        self.raw(&[NULL]);
    }

    /// An item's first byte and its argument, big-endian, in as few bytes as it fits.
    #[inline]
    fn head(&mut self, major: u8, argument: u64) {
        let major = major << 5;
        // exercise l3.hash
        match argument {
            0..24 => self.raw(&[major | argument as u8]),
            24..0x100 => self.raw(&[major | 24, argument as u8]),
            0x100..0x1_0000 => {
                let [a, b] = (argument as u16).to_be_bytes();
                self.raw(&[major | 25, a, b]);
            }
            0x1_0000..0x1_0000_0000 => {
                let [a, b, c, d] = (argument as u32).to_be_bytes();
                self.raw(&[major | 26, a, b, c, d]);
            }
            _ => {
                self.raw(&[major | 27]);
                self.raw(&argument.to_be_bytes());
            }
        }
        // end of exercise
    }

    #[inline]
    fn raw(&mut self, bytes: &[u8]) {
        if bytes.len() > BUFFER - self.used {
            self.flush();
            if bytes.len() > BUFFER {
                return self.sink.put(bytes);
            }
        }
        self.buffer[self.used..][..bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }

    fn flush(&mut self) {
        self.sink.put(&self.buffer[..self.used]);
        self.used = 0;
    }

    /// Passes all buffered bytes to the sink.
    pub(crate) fn finish(mut self) -> S {
        self.flush();
        self.sink
    }
}
