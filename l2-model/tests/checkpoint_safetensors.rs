//! The safetensors directory: single file, shards, and everything that can be wrong with them.

mod checkpoint_support;
mod judge;

use std::fs::File;
use std::path::Path;

use checkpoint_support::{fixture, safetensors, sample_safetensors};
use l2_model::checkpoint::{
    Checkpoint, CheckpointError, IndexError, SafetensorsDir, SafetensorsError, StoredType,
};
use safetensors::SafeTensors;
use tempfile::TempDir;

/// A directory with these files.
fn dir(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

fn one_tensor(name: &str) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
    safetensors(&header, &1f32.to_le_bytes())
}

#[test]
fn a_single_file_is_read() {
    let dir = dir(&[("model.safetensors", &sample_safetensors())]);
    let what = "reading a well-formed safetensors file";
    let model = judge::works(what, SafetensorsDir::open(dir.path()));
    let embed = model.tensor("model.embed_tokens.weight").unwrap();
    let expected = (StoredType::BF16, &[3, 2][..]);
    assert_eq!((embed.ty, embed.shape), expected, "type and shape of the embedding");
    let expected: Vec<u8> = (8..20).collect();
    assert_eq!(embed.bytes, expected, "bytes 8..20 of the data, which counts from 0");
    assert_eq!(embed.row(1).unwrap(), [12, 13, 14, 15]);
    let types: Vec<_> = model.tensors().map(|t| t.ty).collect();
    assert_eq!(types, [StoredType::F16, StoredType::BF16, StoredType::F32], "types, by name");
    assert!(model.tensor("absent").is_none());
}

/// What the `safetensors` crate reads from a fixture, we read.
fn assert_same_as_the_crate(dir: &Path) -> usize {
    let model = judge::works(dir.display(), SafetensorsDir::open(dir));
    let mut n = 0;
    for file in model.files() {
        let bytes = std::fs::read(file).unwrap();
        for (name, want) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let got = model.tensor(&name).unwrap();
            // A byte of codes is two weights.
            let mut shape = want.shape().to_vec();
            shape.iter_mut().last().into_iter().for_each(|last| *last *= got.ty.block_len());
            assert_eq!(got.shape, shape, "the shape of {name} in {}", file.display());
            // Not assert_eq: thousands of bytes would be printed.
            let first = got.bytes.iter().zip(want.data()).position(|(g, w)| g != w);
            assert!(
                got.bytes == want.data(),
                "the bytes of {name} in {}: {} bytes, the first that differs is number {first:?}\n  expected  {:02x?} ..\n  got       {:02x?} ..",
                file.display(),
                got.bytes.len(),
                &want.data()[..want.data().len().min(8)],
                &got.bytes[..got.bytes.len().min(8)],
            );
            n += 1;
        }
    }
    assert_eq!(model.tensors().count(), n);
    n
}

#[test]
fn the_tiny_models_read_as_the_safetensors_crate_reads_them() {
    let mut sharded = 0;
    for entry in std::fs::read_dir(fixture("")).unwrap() {
        let path = entry.unwrap().path();
        if path.join("model.safetensors").exists() {
            assert!(assert_same_as_the_crate(&path) > 10);
        } else if path.join("model.safetensors.index.json").exists() {
            assert!(assert_same_as_the_crate(&path) > 10);
            sharded += 1;
        }
    }
    assert!(sharded >= 1);
}

#[test]
fn reading_a_released_tensor_reads_the_same_bytes() {
    let checkpoint = Checkpoint::open(&fixture("tiny-llama")).unwrap();
    for (name, tensor) in checkpoint.tensors() {
        let before = tensor.bytes.to_vec();
        checkpoint.prefetch(&name);
        checkpoint.release(&name);
        assert_eq!(checkpoint.get(&name).unwrap().bytes, before);
    }
    checkpoint.release("absent");
}

/// What a directory whose `model.safetensors` is to blame says about that file.
fn open(dir: &Path) -> Result<SafetensorsDir, SafetensorsError> {
    SafetensorsDir::open(dir).map_err(|error| match error {
        CheckpointError::Safetensors { path, reason } => {
            assert!(path.ends_with("model.safetensors"));
            assert_eq!(reason.to_string().lines().count(), 1, "one line: {reason}");
            reason
        }
        other => panic!("expected  CheckpointError::Safetensors\n  got       {other:?}"),
    })
}

/// Asserts that a file of these bytes is refused with an error of this shape.
macro_rules! refused {
    ($what:expr, $bytes:expr, $pattern:pat $(if $guard:expr)?) => {{
        let dir = dir(&[("model.safetensors", $bytes)]);
        judge::fails_with!($what, open(dir.path()), $pattern $(if $guard)?);
    }};
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = sample_safetensors();
    let dir = dir(&[("model.safetensors", &bytes)]);
    // One file that becomes shorter: hundreds of new ones are slow where the disk is busy.
    let file = File::options().write(true).open(dir.path().join("model.safetensors")).unwrap();
    for len in (0..bytes.len()).rev() {
        file.set_len(len as u64).unwrap();
        judge::fails_with!(
            format!("a file of {} bytes, cut at {len}", bytes.len()),
            open(dir.path()),
            SafetensorsError::Truncated { .. } | SafetensorsError::FileSize { .. }
        );
    }
    let longer = [&bytes[..], &[0]].concat();
    refused!("a file with a byte too many", &longer, SafetensorsError::FileSize { .. });
}

#[test]
fn bad_headers_are_refused() {
    for len in [100_000_001, u64::MAX] {
        let bytes = [&u64::to_le_bytes(len)[..], b"{}"].concat();
        let what = format!("a header that claims {len} bytes");
        refused!(what, &bytes, SafetensorsError::HeaderTooLong { len: l } if *l == len);
    }
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n";
    refused!("a pointer of Git LFS", &pointer[..], SafetensorsError::LfsPointer);
    let deep = "[".repeat(100_000);
    for header in [
        "",
        "{",
        "[]",
        "null",
        "{}{}",
        r#"{"t":1}"#,
        r#"{"t":{"dtype":"F32","shape":[1]}}"#,
        r#"{"t":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999999]}}"#,
        &deep,
        &format!(r#"{{"t":{deep}"#),
        &format!(r#"{{"__metadata__":{deep}"#),
    ] {
        let what = format!("the header {header:.100}");
        refused!(what, &safetensors(header, &[0; 4]), SafetensorsError::Header { .. });
    }
    let not_text = [&3u64.to_le_bytes()[..], b"{\xff}"].concat();
    refused!("a header that is not UTF-8", &not_text, SafetensorsError::Header { .. });
}

#[test]
fn tensors_must_tile_the_data_and_fit_their_shapes() {
    let two = |a: &str, b: &str, data: usize| {
        let header = format!(
            r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{a}}},"b":{{"dtype":"F32","shape":[2],"data_offsets":{b}}}}}"#
        );
        let what = format!("two tensors of 8 bytes at {a} and {b}, in {data} bytes of data");
        (what, safetensors(&header, &vec![0; data]))
    };
    for (a, b, data) in
        [("[0,8]", "[4,12]", 12), ("[0,8]", "[12,20]", 20), ("[4,12]", "[12,20]", 20)]
    {
        let (what, bytes) = two(a, b, data);
        refused!(what, &bytes, SafetensorsError::Offsets { .. });
    }
    for (a, b, data) in [("[0,4]", "[4,12]", 12), ("[8,0]", "[0,8]", 8)] {
        let (what, bytes) = two(a, b, data);
        refused!(what, &bytes, SafetensorsError::Size { .. } | SafetensorsError::Offsets { .. });
    }
    for shape in ["[18446744073709551615]", "[4294967296,4294967296]", "[0,4294967296,4294967296]"]
    {
        let header = format!(r#"{{"t":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}"#);
        let what = format!("a tensor of shape {shape} in no bytes");
        refused!(what, &safetensors(&header, &[]), SafetensorsError::Size { .. });
    }
    // Both lengths are impossible, of the place and of the shape; that does not make them equal.
    let backwards = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[9223372036854775808,9223372036854775808],"data_offsets":[8,0]}}"#;
    for data in [0, 8] {
        let what = format!("a tensor at [8,0] of an impossible shape, in {data} bytes of data");
        refused!(what, &safetensors(backwards, &vec![0; data]), SafetensorsError::Size { .. });
    }
    let twice = r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    let bytes = safetensors(twice, &[0; 8]);
    refused!(
        "two tensors with the name t",
        &bytes,
        SafetensorsError::DuplicateTensor { name } if name == "t"
    );
    // A tensor without elements begins where the next one does, wherever the header names it.
    let empty = r#"{"full":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"none":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#;
    let dir = dir(&[("model.safetensors", &safetensors(empty, &1f32.to_le_bytes()))]);
    let what = "reading a file with a tensor without elements in front of another one";
    let model = judge::works(what, SafetensorsDir::open(dir.path()));
    assert_eq!(model.tensor("full").unwrap().bytes, 1f32.to_le_bytes());
    assert!(model.tensor("none").unwrap().bytes.is_empty());
}

/// Eight tensors of 2^61 - 1 bytes and one of 7 tile the data without a gap, up to `usize::MAX`. Only
/// then is the length of the header added.
#[test]
fn tensors_that_fill_the_address_space_do_not_overflow_the_length_of_the_file() {
    let most = (1usize << 61) - 1;
    let mut begin = 0;
    let tensors: Vec<String> = [[most; 8].as_slice(), &[7]]
        .concat()
        .into_iter()
        .enumerate()
        .map(|(i, len)| {
            let end = begin + len;
            let entry = format!(
                r#""t{i}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{begin},{end}]}}"#
            );
            begin = end;
            entry
        })
        .collect();
    assert_eq!(begin, usize::MAX, "where the last of these tensors ends");
    let header = format!("{{{}}}", tensors.join(","));
    refused!(
        "tensors that end at usize::MAX, in a file without data",
        &safetensors(&header, &[]),
        SafetensorsError::FileSize { expected: usize::MAX, .. }
    );
}

#[test]
fn other_dtypes_are_refused_but_in_buffers_that_nobody_reads() {
    let header = r#"{"w":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}"#;
    refused!(
        "a weight of type F8_E4M3",
        &safetensors(header, &[0; 4]),
        SafetensorsError::UnsupportedType { dtype, .. } if dtype == "F8_E4M3"
    );
    for (name, dtype) in [("a.weight", "F8_E4M3"), ("a.weight_scale", "U8"), ("a.blocks", "U8")] {
        let header =
            format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":[4],"data_offsets":[0,4]}}}}"#);
        refused!(
            format!("{name} of type {dtype}, which is no part of NVFP4"),
            &safetensors(&header, &[0; 4]),
            SafetensorsError::UnsupportedType { .. }
        );
    }
    let header = r#"{"model.position_ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
    let dir = dir(&[("model.safetensors", &safetensors(header, &[0; 8]))]);
    let model = judge::works("position ids of type I64, which nobody reads", open(dir.path()));
    assert_eq!(model.tensors().count(), 0, "number of tensors in a file of position ids");
}

#[test]
fn a_directory_without_weights_says_what_it_looked_for() {
    let dir = dir(&[("pytorch_model.bin", b"x")]);
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::NoWeights { .. }));
    assert!(error.to_string().contains("model.safetensors"), "{error}");
}

/// Shards `a` and `b` under an index with this weight_map.
fn sharded(weight_map: &str) -> Result<SafetensorsDir, CheckpointError> {
    let dir = dir(&[
        ("s1.safetensors", &one_tensor("a")),
        ("s2.safetensors", &one_tensor("b")),
        ("also-a.safetensors", &one_tensor("a")),
        (
            "model.safetensors.index.json",
            format!(r#"{{"metadata":{{"total_size":8}},"weight_map":{weight_map}}}"#).as_bytes(),
        ),
    ]);
    SafetensorsDir::open(dir.path())
}

fn index_error(weight_map: &str) -> IndexError {
    let what = format!("an index with the weight_map {weight_map}");
    match judge::refused(what, "CheckpointError::Index", sharded(weight_map)) {
        CheckpointError::Index { path, reason } => {
            assert!(path.ends_with("model.safetensors.index.json"));
            reason
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn shards_are_read_through_their_index() {
    let model = sharded(r#"{"a":"s1.safetensors","b":"s2.safetensors"}"#);
    let model = judge::works("reading two shards", model);
    let names: Vec<_> = model.tensors().map(|t| t.name).collect();
    assert_eq!(names, ["a", "b"], "the tensors of both shards");
    assert_eq!(model.files().count(), 2);
}

#[test]
fn an_index_that_does_not_fit_its_shards_is_refused() {
    let s = |text: &str| text.to_string();
    assert_eq!(
        index_error(r#"{"a":"s1.safetensors","b":"s3.safetensors"}"#),
        IndexError::ShardMissing { file: s("s3.safetensors") }
    );
    assert_eq!(
        index_error(r#"{"a":"s1.safetensors","c":"s2.safetensors"}"#),
        IndexError::TensorAbsent { tensor: s("c"), file: s("s2.safetensors") }
    );
    assert!(matches!(
        index_error(r#"{"a":"s1.safetensors","b":"s2.safetensors","a":"also-a.safetensors"}"#),
        IndexError::DuplicateTensor { tensor, .. } if tensor == "a"
    ));
    assert_eq!(index_error("{}"), IndexError::Empty);
    for bad in ["[]", "{\"a\":1}", "{\"a\":", "null", "{}}"] {
        assert!(matches!(index_error(bad), IndexError::Json { .. }), "{bad}");
    }
}

#[test]
fn an_index_cannot_lead_out_of_its_directory() {
    for file in [
        "../x.safetensors",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/../s1.safetensors",
        "..\\\\x",
        "c:x",
        "a\\u0000b",
    ] {
        let error = index_error(&format!(r#"{{"a":"{file}"}}"#));
        assert!(matches!(error, IndexError::FileName { .. }), "{file}: {error:?}");
    }
}

#[test]
fn an_index_without_a_weight_map_is_refused() {
    let dir = dir(&[("model.safetensors.index.json", b"{\"metadata\":{}}")]);
    let error = SafetensorsDir::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("weight_map"), "{error}");
}
