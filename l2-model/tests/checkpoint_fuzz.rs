//! Damaged files: whatever the bytes, the readers answer soon, without a panic, and without
//! allocating more than a small multiple of the file.
//!
//! `PROPTEST_CASES` sets how many files are tried.

mod checkpoint_support;

use std::path::Path;
use std::time::{Duration, Instant};

use checkpoint_support::value_type::{ARRAY, BOOL, STRING, U8};
use checkpoint_support::{
    Counting, GgufBuilder, TensorSpec, array, peak_bytes, safetensors, sample_gguf,
    sample_safetensors, string,
};
use l2_model::checkpoint::gguf::{Array, Value};
use l2_model::checkpoint::{CheckpointError, GgufFile, SafetensorsDir, StoredTensor};
use proptest::prelude::*;
use safetensors::SafeTensors;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A file of these sizes is read in well under a millisecond; the bound is for a machine that is
/// doing something else meanwhile.
const SOON: Duration = Duration::from_secs(5);

fn within_bounds<T>(file_len: usize, read: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let (result, peak) = peak_bytes(read);
    let took = start.elapsed();
    assert!(took < SOON, "{took:?} for {file_len} bytes");
    let most = 8 * file_len + (1 << 20);
    assert!(peak <= most, "{peak} bytes allocated for a file of {file_len}");
    result
}

/// Uses everything that a tensor offers.
fn visit_tensor(tensor: StoredTensor<'_>) {
    assert_eq!(tensor.ty.bytes_for(tensor.len()), Some(tensor.bytes.len()));
    if tensor.n_rows() > 0 && tensor.row_len() < 10_000 {
        let mut row = vec![0.0; tensor.row_len()];
        tensor.dequantize_row(tensor.n_rows() - 1, &mut row).unwrap();
    }
}

fn visit_array(array: Array<'_>) {
    assert_eq!(array.iter().count(), array.len());
    for value in array.iter() {
        if let Value::Array(inner) = value {
            visit_array(inner);
        }
    }
}

/// Reads a GGUF file and, when it is accepted, all that is in it. True when it was.
fn visit_gguf(bytes: &[u8]) -> bool {
    within_bounds(bytes.len(), || {
        let file = match GgufFile::parse(bytes) {
            Ok(file) => file,
            Err(error) => {
                let _ = error.to_string();
                return false;
            }
        };
        let meta = file.metadata();
        for (key, value) in meta.iter() {
            assert_eq!(meta.get(key).map(|v| v.kind()), Some(value.kind()));
            if let Value::Array(array) = value {
                visit_array(array);
            }
            let _ = (meta.u64(key), meta.f32(key), meta.bool(key), meta.str(key));
            let _ = (meta.str_array(key), meta.i32_array(key), meta.f32_array(key));
        }
        assert_eq!(meta.iter().count(), meta.len());
        for tensor in file.tensors() {
            assert_eq!(file.tensor(tensor.name).map(|t| t.shape), Some(tensor.shape));
            visit_tensor(tensor);
        }
        true
    })
}

fn visit_safetensors(dir: &Path, bytes: &[u8]) -> bool {
    let path = dir.join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let accepted = within_bounds(bytes.len(), || visit_dir(dir));
    // Whatever we accept, the format's own crate accepts.
    if accepted {
        SafeTensors::deserialize(bytes).unwrap();
    }
    accepted
}

fn visit_dir(dir: &Path) -> bool {
    match SafetensorsDir::open(dir) {
        Ok(model) => {
            for tensor in model.tensors() {
                assert!(model.tensor(tensor.name).is_some());
                visit_tensor(tensor);
            }
            true
        }
        Err(CheckpointError::Io { path, reason }) => panic!("{}: {reason}", path.display()),
        Err(error) => {
            let _ = error.to_string();
            false
        }
    }
}

/// One way to damage a file. Positions are fractions, so that they suit any length.
#[derive(Clone, Debug)]
enum Damage {
    Flip {
        at: f64,
        mask: u8,
    },
    Cut {
        at: f64,
    },
    Remove {
        at: f64,
        len: usize,
    },
    Insert {
        at: f64,
        bytes: Vec<u8>,
    },
    Copy {
        from: f64,
        to: f64,
        len: usize,
    },
    /// Overwrites eight bytes with a number that a length or an offset should never be.
    Number {
        at: f64,
        value: u64,
    },
    /// Adds to a little-endian number, as a length that grew would.
    Grow {
        at: f64,
        by: u64,
    },
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0.0..1.0f64;
    let number = prop_oneof![
        Just(u64::MAX),
        Just(u64::MAX - 31),
        Just(1 << 63),
        Just(1 << 61),
        Just(1 << 32),
        Just(u64::from(u32::MAX)),
        0..1000u64,
        any::<u64>(),
    ];
    prop_oneof![
        4 => (at.clone(), 1..=255u8).prop_map(|(at, mask)| Damage::Flip { at, mask }),
        1 => at.clone().prop_map(|at| Damage::Cut { at }),
        1 => (at.clone(), 1..64usize).prop_map(|(at, len)| Damage::Remove { at, len }),
        1 => (at.clone(), prop::collection::vec(any::<u8>(), 1..64))
            .prop_map(|(at, bytes)| Damage::Insert { at, bytes }),
        1 => (at.clone(), at.clone(), 1..64usize)
            .prop_map(|(from, to, len)| Damage::Copy { from, to, len }),
        2 => (at.clone(), number).prop_map(|(at, value)| Damage::Number { at, value }),
        2 => (at, prop_oneof![1..100u64, Just(1 << 20), Just(1 << 40)])
            .prop_map(|(at, by)| Damage::Grow { at, by }),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let len = bytes.len();
    let place = |at: f64| ((at * len as f64) as usize).min(len.saturating_sub(1));
    if len < 16 {
        return;
    }
    let number_at = |at: f64| place(at).min(len - 8);
    match damage {
        Damage::Flip { at, mask } => bytes[place(*at)] ^= mask,
        Damage::Cut { at } => bytes.truncate(place(*at)),
        Damage::Remove { at, len: n } => {
            let start = place(*at);
            bytes.drain(start..(start + n).min(len));
        }
        Damage::Insert { at, bytes: new } => {
            let start = place(*at);
            bytes.splice(start..start, new.iter().copied());
        }
        Damage::Copy { from, to, len: n } => {
            let (from, to) = (place(*from), place(*to));
            let n = (*n).min(len - from.max(to));
            bytes.copy_within(from..from + n, to);
        }
        Damage::Number { at, value } => {
            let at = number_at(*at);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        Damage::Grow { at, by } => {
            let at = number_at(*at);
            let field: [u8; 8] = bytes[at..at + 8].try_into().unwrap();
            let grown = u64::from_le_bytes(field).wrapping_add(*by);
            bytes[at..at + 8].copy_from_slice(&grown.to_le_bytes());
        }
    }
}

/// Where the damage goes: mostly into the header, which is where decisions are made.
fn damaged(bytes: &[u8], header: usize, damages: &[Damage]) -> Vec<u8> {
    let mut head = bytes[..header].to_vec();
    for damage in damages {
        apply(&mut head, damage);
    }
    head.extend(&bytes[header..]);
    head
}

proptest! {
    #[test]
    fn damaged_gguf_files_are_read_or_refused(
        damages in prop::collection::vec(damage(), 1..5),
        in_header in any::<bool>(),
    ) {
        let bytes = sample_gguf().build();
        let header = if in_header { bytes.len() - 256 } else { bytes.len() };
        visit_gguf(&damaged(&bytes, header, &damages));
    }

    #[test]
    fn gguf_fields_of_any_value_are_read_or_refused(
        dims in prop::collection::vec(prop_oneof![0..300u64, any::<u64>()], 0..6),
        ty in 0..45u32,
        offset in prop_oneof![(0..20u64).prop_map(|i| 32 * i), any::<u64>()],
        value_type in 0..15u32,
        value in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let file = sample_gguf()
            .pair("any", value_type, value)
            .tensor("any", &dims, ty, [0; 512])
            .last(|t| t.offset = Some(offset));
        visit_gguf(&file.build());
    }

    #[test]
    fn any_bytes_at_all_are_read_or_refused(tail in prop::collection::vec(any::<u8>(), 0..500)) {
        visit_gguf(&tail);
        visit_gguf(&[b"GGUF\x03\0\0\0", &tail[..]].concat());
    }

    #[test]
    fn damaged_safetensors_are_read_or_refused(
        damages in prop::collection::vec(damage(), 1..5),
        in_header in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let bytes = sample_safetensors();
        let header = if in_header { bytes.len() - 32 } else { bytes.len() };
        visit_safetensors(dir.path(), &damaged(&bytes, header, &damages));
    }

    #[test]
    fn damaged_headers_of_the_right_length_are_read_or_refused(
        damages in prop::collection::vec(damage(), 1..5),
    ) {
        // The length field made to fit again, so that the JSON parser gets to see the damage.
        let dir = tempfile::tempdir().unwrap();
        let bytes = sample_safetensors();
        let header = bytes.len() - 32;
        let json = damaged(&bytes[8..header], header - 8, &damages);
        let length = (json.len() as u64).to_le_bytes();
        visit_safetensors(dir.path(), &[&length[..], &json, &bytes[header..]].concat());
    }

    #[test]
    fn damaged_indices_of_shards_are_read_or_refused(
        damages in prop::collection::vec(damage(), 1..5),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let index = br#"{"metadata":{"total_size":32},"weight_map":{
            "lm_head.weight":"model-00001-of-00001.safetensors",
            "model.norm.weight":"model-00001-of-00001.safetensors"}}"#;
        let shard = sample_safetensors();
        std::fs::write(dir.path().join("model-00001-of-00001.safetensors"), &shard).unwrap();
        let index = damaged(index, index.len(), &damages);
        std::fs::write(dir.path().join("model.safetensors.index.json"), &index).unwrap();
        within_bounds(index.len() + shard.len(), || visit_dir(dir.path()));
    }
}

#[test]
fn undamaged_files_are_accepted_within_the_same_bounds() {
    assert!(visit_gguf(&sample_gguf().build()));
    let dir = tempfile::tempdir().unwrap();
    assert!(visit_safetensors(dir.path(), &sample_safetensors()));
}

/// How many of the smallest things the bombs below hold; a megabyte or more of header each.
const MANY: usize = 60_000;

#[test]
fn a_gguf_of_many_tiny_things_costs_a_small_multiple_of_its_size() {
    let mut pairs = GgufBuilder::default();
    let mut tensors = GgufBuilder::default();
    for i in 0..MANY {
        pairs.pairs.push((format!("{i:x}").into(), U8, vec![0]));
        tensors.tensors.push(TensorSpec {
            name: format!("{i:x}").into(),
            dims: vec![],
            ty: 0,
            offset: None,
            data: vec![0; 4],
        });
    }
    assert!(visit_gguf(&pairs.build()));
    assert!(visit_gguf(&tensors.build()));
    // The infos alone, without the data that gives the file its size.
    tensors.tensors.iter_mut().for_each(|t| t.data.clear());
    assert!(!visit_gguf(&tensors.build()));
}

#[test]
fn gguf_arrays_of_many_tiny_things_cost_a_small_multiple_of_their_size() {
    let texts = array(STRING, &vec![string(""); MANY * 4]);
    let arrays = array(ARRAY, &vec![array(BOOL, &[]); MANY]);
    let deep = array(ARRAY, &vec![array(ARRAY, &[array(STRING, &[string("")])]); MANY]);
    for value in [texts, arrays, deep] {
        assert!(visit_gguf(&GgufBuilder::default().pair("a", ARRAY, value).build()));
    }
}

#[test]
fn safetensors_headers_made_to_grow_in_memory_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |header: String| {
        assert!(!visit_safetensors(dir.path(), &safetensors(&header, &[])));
    };
    let zeros = "0,".repeat(2_000_000);
    refused(format!(r#"{{"t":{{"dtype":"F32","shape":[{zeros}0],"data_offsets":[0,0]}}}}"#));
    refused(format!(r#"{{"t":{{"x":[{zeros}0]}}}}"#));
    refused(format!(r#"{{"t":[{zeros}0]}}"#));
    refused(format!(r#"{{"t":{{"dtype":"{}"}}}}"#, "F".repeat(4_000_000)));
    let metadata: Vec<_> = (0..MANY).map(|i| format!(r#""{i:x}":"""#)).collect();
    let header = format!(r#"{{"__metadata__":{{{}}}}}"#, metadata.join(","));
    assert!(visit_safetensors(dir.path(), &safetensors(&header, &[])));
    let tensors: Vec<_> = (0..MANY)
        .map(|i| format!(r#""{i:x}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#))
        .collect();
    let header = format!("{{{}}}", tensors.join(","));
    assert!(visit_safetensors(dir.path(), &safetensors(&header, &[])));
}

#[test]
fn an_index_made_to_grow_in_memory_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let tensors: Vec<_> = (0..MANY).map(|i| format!(r#""{i:x}":"s""#)).collect();
    let files: Vec<_> = (0..MANY).map(|i| format!(r#""{i:x}":"{i:x}""#)).collect();
    for map in [tensors, files] {
        let index = format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","));
        std::fs::write(dir.path().join("model.safetensors.index.json"), &index).unwrap();
        assert!(!within_bounds(index.len(), || visit_dir(dir.path())));
    }
}
