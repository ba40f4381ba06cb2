//! What the checkpoint tests share: a GGUF writer that can also write nonsense, a safetensors
//! writer, an allocator that counts, and where the fixtures are.

// Each test binary uses its own part of this.
#![allow(dead_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// A path under `fixtures/`.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures")).join(name)
}

/// The tiny GGUF files, by name. Each has a golden beside it.
pub fn tiny_ggufs() -> Vec<PathBuf> {
    let all = std::fs::read_dir(fixture("tiny-gguf")).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = all.filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect();
    all.sort();
    assert!(all.len() >= 12, "{all:?}");
    all
}

/// Copies a tiny model of one file of weights to a directory, with `bytes` in place of those of a tensor from its byte
/// `at` on.
pub fn damaged(model: &str, dir: &Path, tensor: &str, at: usize, bytes: &[u8]) {
    for entry in std::fs::read_dir(fixture(model)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
    }
    let path = dir.join("model.safetensors");
    let mut file = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let parsed: serde_json::Value = serde_json::from_slice(&file[8..8 + header]).unwrap();
    let begin = parsed[tensor]["data_offsets"][0].as_u64().unwrap() as usize + at;
    file[8 + header + begin..][..bytes.len()].copy_from_slice(bytes);
    std::fs::write(&path, file).unwrap();
}

/// The numbers of GGUF value types.
pub mod value_type {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

/// A GGUF string: length and bytes.
pub fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// A GGUF array of elements that are encoded already.
pub fn array(element: u32, elements: &[Vec<u8>]) -> Vec<u8> {
    let mut out = element.to_le_bytes().to_vec();
    out.extend((elements.len() as u64).to_le_bytes());
    out.extend(elements.concat());
    out
}

/// One tensor to be written: everything as it will stand in the file.
#[derive(Clone)]
pub struct TensorSpec {
    pub name: Vec<u8>,
    /// Innermost first, as GGUF stores them.
    pub dims: Vec<u64>,
    pub ty: u32,
    /// `None`: the next aligned place.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

/// Writes GGUF files, by default well-formed ones; every field can be set to something else.
#[derive(Clone)]
pub struct GgufBuilder {
    pub magic: [u8; 4],
    pub version: u32,
    pub alignment: usize,
    pub pairs: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub tensors: Vec<TensorSpec>,
    pub n_tensors: Option<u64>,
    pub n_pairs: Option<u64>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        GgufBuilder {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            pairs: Vec::new(),
            tensors: Vec::new(),
            n_tensors: None,
            n_pairs: None,
        }
    }
}

impl GgufBuilder {
    pub fn pair(mut self, key: impl AsRef<[u8]>, ty: u32, value: impl Into<Vec<u8>>) -> Self {
        self.pairs.push((key.as_ref().to_vec(), ty, value.into()));
        self
    }

    pub fn tensor(mut self, name: &str, dims: &[u64], ty: u32, data: impl Into<Vec<u8>>) -> Self {
        self.tensors.push(TensorSpec {
            name: name.into(),
            dims: dims.to_vec(),
            ty,
            offset: None,
            data: data.into(),
        });
        self
    }

    /// Changes the tensor added last.
    pub fn last(mut self, change: impl FnOnce(&mut TensorSpec)) -> Self {
        change(self.tensors.last_mut().unwrap());
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        let count =
            |given: Option<u64>, actual: usize| given.unwrap_or(actual as u64).to_le_bytes();
        out.extend(count(self.n_tensors, self.tensors.len()));
        out.extend(count(self.n_pairs, self.pairs.len()));
        for (key, ty, value) in &self.pairs {
            out.extend(string(key));
            out.extend(ty.to_le_bytes());
            out.extend(value);
        }
        let mut at = 0;
        for t in &self.tensors {
            out.extend(string(&t.name));
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.ty.to_le_bytes());
            out.extend(t.offset.unwrap_or(at as u64).to_le_bytes());
            at += t.data.len().next_multiple_of(self.alignment);
        }
        for t in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&t.data);
        }
        out
    }
}

/// A small well-formed model-like file: every value type, arrays, plain and quantised tensors.
pub fn sample_gguf() -> GgufBuilder {
    use value_type::*;
    GgufBuilder::default()
        .pair("general.architecture", STRING, string("llama"))
        .pair("u8", U8, [200])
        .pair("i8", I8, (-5i8).to_le_bytes())
        .pair("u16", U16, 60_000u16.to_le_bytes())
        .pair("i16", I16, (-300i16).to_le_bytes())
        .pair("u32", U32, 4_000_000_000u32.to_le_bytes())
        .pair("i32", I32, (-70_000i32).to_le_bytes())
        .pair("u64", U64, u64::MAX.to_le_bytes())
        .pair("i64", I64, i64::MIN.to_le_bytes())
        .pair("f32", F32, 1.5f32.to_le_bytes())
        .pair("f64", F64, (-2.25f64).to_le_bytes())
        .pair("yes", BOOL, [1])
        .pair("no", BOOL, [0])
        .pair("tokens", ARRAY, array(STRING, &["<s>", "", "é", "日本"].map(string)))
        .pair("types", ARRAY, array(I32, &[1i32, -2, 3].map(|v| v.to_le_bytes().to_vec())))
        .pair("scores", ARRAY, array(F32, &[0.5f32, -1.0].map(|v| v.to_le_bytes().to_vec())))
        .pair("flags", ARRAY, array(BOOL, &[vec![1], vec![0]]))
        .pair(
            "nested",
            ARRAY,
            array(ARRAY, &[array(U8, &[vec![1], vec![2]]), array(STRING, &[string("x")])]),
        )
        .tensor(
            "token_embd.weight",
            &[2, 3],
            0,
            (0..6u8).flat_map(|i| f32::from(i).to_le_bytes()).collect::<Vec<_>>(),
        )
        .tensor("blk.0.attn_q.weight", &[32, 4], 8, (0..136).collect::<Vec<u8>>())
        .tensor("blk.0.attn_norm.weight", &[3], 30, vec![0x80, 0x3f, 0, 0x40, 0, 0xc0])
}

/// A safetensors file with this header and this much data.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// A small well-formed safetensors file.
pub fn sample_safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "model.norm.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "model.embed_tokens.weight":{"dtype":"BF16","shape":[3,2],"data_offsets":[8,20]},
        "lm_head.weight":{"dtype":"F16","shape":[3,2],"data_offsets":[20,32]}}"#;
    safetensors(header, &(0..32).collect::<Vec<u8>>())
}

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Counts the bytes that each thread has allocated and not freed, and their peak.
pub struct Counting;

fn count(by: isize) {
    // During the teardown of a thread the counters may be gone already.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + by);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator as it came. `realloc` is the trait's
// own, which allocates, copies and frees, so that both copies count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Runs `f` and returns the most bytes this thread held at once meanwhile, beyond those before.
pub fn peak_bytes<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = f();
    (result, (PEAK.get() - before).max(0) as usize)
}
