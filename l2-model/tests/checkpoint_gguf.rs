//! The GGUF reader: what it reads, and the errors for what it does not.

mod checkpoint_support;
mod judge;

use checkpoint_support::value_type::*;
use checkpoint_support::{GgufBuilder, array, sample_gguf, string, tiny_ggufs};
use half::bf16;
use l1_tensor::ops::RopeScaling;
use l2_model::checkpoint::gguf::{Metadata, Value, ValueType};
use l2_model::checkpoint::{Checkpoint, CheckpointError, GgufError, GgufFile, StoredType};
use l2_model::{ConfigError, ModelConfig};
use safetensors::SafeTensors;

/// A file that must be read.
#[track_caller]
fn read(bytes: &[u8]) -> GgufFile<'_> {
    judge::works("reading a well-formed GGUF file", GgufFile::parse(bytes))
}

#[test]
fn metadata_of_every_type_is_read() {
    let bytes = sample_gguf().build();
    let file = read(&bytes);
    let meta = file.metadata();
    assert_eq!(file.version(), 3, "the version of the file");
    assert_eq!(file.architecture(), Ok("llama"));
    let want = [
        ("u8", Value::U8(200)),
        ("i8", Value::I8(-5)),
        ("u16", Value::U16(60_000)),
        ("i16", Value::I16(-300)),
        ("u32", Value::U32(4_000_000_000)),
        ("i32", Value::I32(-70_000)),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f32", Value::F32(1.5)),
        ("f64", Value::F64(-2.25)),
        ("yes", Value::Bool(true)),
        ("no", Value::Bool(false)),
        ("general.architecture", Value::String(b"llama")),
    ];
    for (key, value) in want {
        assert_eq!(meta.get(key), Some(value), "the value of metadata key {key}");
    }
    assert_eq!(meta.get("absent"), None);
    assert_eq!(meta.len(), 18, "number of metadata keys");
    assert_eq!(meta.iter().count(), 18);
}

#[test]
fn arrays_are_read_nested_ones_included() {
    let bytes = sample_gguf().build();
    let file = read(&bytes);
    let meta = file.metadata();
    let strings = meta.str_array("tokens").unwrap();
    assert_eq!(strings, ["<s>", "", "é", "日本"], "an array of strings");
    assert_eq!(meta.i32_array("types").unwrap(), [1, -2, 3], "an array of i32");
    assert_eq!(meta.f32_array("scores").unwrap(), [0.5, -1.0]);
    let flags: Vec<_> = meta.array("flags").unwrap().iter().collect();
    assert_eq!(flags, [Value::Bool(true), Value::Bool(false)]);
    let nested = meta.array("nested").unwrap();
    assert_eq!((nested.element(), nested.len()), (ValueType::Array, 2));
    let inner: Vec<Vec<Value>> = nested
        .iter()
        .map(|v| match v {
            Value::Array(a) => a.iter().collect(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(inner[0], [Value::U8(1), Value::U8(2)]);
    assert_eq!(inner[1], [Value::String(b"x")]);
}

#[test]
fn getters_name_the_key_and_what_is_wrong_with_it() {
    let bytes = sample_gguf()
        .pair("bad text", STRING, string([0xff]))
        .pair("bad texts", ARRAY, array(STRING, &[string("ok"), string([0xc3])]))
        .build();
    let file = read(&bytes);
    let meta = file.metadata();
    assert_eq!(meta.u64("u16"), Ok(60_000));
    assert_eq!(meta.f32("f64"), Ok(-2.25));
    assert_eq!(meta.bool("yes"), Ok(true));
    let message = |e: GgufError| e.to_string();
    for (got, parts) in [
        (meta.u64("absent").map_err(message).unwrap_err(), ["\"absent\"", "no"]),
        (meta.u64("i8").map_err(message).unwrap_err(), ["\"i8\"", "-5"]),
        (meta.u64("f32").map_err(message).unwrap_err(), ["\"f32\" is f32", "integer"]),
        (meta.f32("u32").map_err(message).unwrap_err(), ["\"u32\" is u32", "float"]),
        (meta.bool("u8").map_err(message).unwrap_err(), ["\"u8\" is u8", "bool"]),
        (meta.str("tokens").map_err(message).unwrap_err(), ["\"tokens\"", "an array of string"]),
        (meta.str("bad text").map_err(message).unwrap_err(), ["\"bad text\"", "UTF-8"]),
        (meta.array("u8").map(|_| ()).map_err(message).unwrap_err(), ["\"u8\"", "array"]),
        (meta.str_array("types").map_err(message).unwrap_err(), ["\"types\"", "array of i32"]),
        (meta.str_array("bad texts").map_err(message).unwrap_err(), ["\"bad texts\"", "element 1"]),
        (meta.f32_array("types").map_err(message).unwrap_err(), ["\"types\"", "array of f32"]),
        (meta.i32_array("scores").map_err(message).unwrap_err(), ["\"scores\"", "array of i32"]),
    ] {
        assert!(parts.iter().all(|p| got.contains(p)), "{got} should say {parts:?}");
    }
    assert_eq!(meta.optional("absent", Metadata::u64), Ok(None));
    assert_eq!(meta.optional("u8", Metadata::u64), Ok(Some(200)));
    assert!(meta.optional("u8", Metadata::str).is_err());
}

#[test]
fn tensors_have_row_major_shapes_and_their_own_bytes() {
    let bytes = sample_gguf().build();
    let file = read(&bytes);
    let names: Vec<_> = file.tensors().map(|t| t.name).collect();
    assert_eq!(names, ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.attn_norm.weight"]);
    let embed = file.tensor("token_embd.weight").unwrap();
    assert_eq!(
        (embed.ty, embed.shape),
        (StoredType::F32, &[3, 2][..]),
        "type and shape of a tensor stored as dimensions 2, 3"
    );
    let sizes = (embed.n_rows(), embed.row_len(), embed.len());
    assert_eq!(sizes, (3, 2, 6), "rows, length of a row and weights of that tensor");
    let mut row = [0.0; 2];
    embed.dequantize_row(2, &mut row).unwrap();
    assert_eq!(row, [4.0, 5.0], "row 2 of token_embd.weight");
    assert!(embed.dequantize_row(3, &mut row).is_err());
    assert!(embed.dequantize_row(0, &mut [0.0; 3]).is_err());
    let q = file.tensor("blk.0.attn_q.weight").unwrap();
    assert_eq!((q.ty, q.shape), (StoredType::Q8_0, &[4, 32][..]), "type and shape of attn_q");
    assert_eq!(q.row(1).unwrap(), (34..68).collect::<Vec<u8>>(), "the bytes of row 1 of attn_q");
    let norm = file.tensor("blk.0.attn_norm.weight").unwrap();
    let mut row = [bf16::ZERO; 3];
    norm.dequantize_row_bf16(0, &mut row).unwrap();
    assert_eq!(row.map(f32::from), [1.0, 2.0, -2.0], "the BF16 row of attn_norm");
    assert!(file.tensor("blk.0").is_none());
}

#[test]
fn version_2_and_another_alignment_are_read() {
    let mut builder = sample_gguf().pair("general.alignment", U32, 64u32.to_le_bytes());
    builder.alignment = 64;
    builder.version = 2;
    let bytes = builder.build();
    let file = read(&bytes);
    let q = file.tensor("blk.0.attn_q.weight").unwrap();
    assert_eq!(q.bytes, (0..136).collect::<Vec<u8>>(), "bytes of a tensor, data aligned to 64");
}

/// Wherever the infos end, the data starts at the next multiple of the alignment.
#[test]
fn the_data_starts_at_the_next_multiple_of_the_alignment() {
    for alignment in [1usize, 8, 32, 64, 256] {
        for name_len in 1..70 {
            let key = "general.alignment";
            let mut builder =
                GgufBuilder::default().pair(key, U32, (alignment as u32).to_le_bytes());
            builder.alignment = alignment;
            let data = [1.5f32, -2.0].map(f32::to_le_bytes).concat();
            let name = "t".repeat(name_len);
            let bytes = builder.tensor(&name, &[2], 0, data.clone()).build();
            let file = read(&bytes);
            assert_eq!(
                file.tensor(&name).unwrap().bytes,
                data,
                "the bytes of a tensor with a name of {name_len} letters, alignment {alignment}"
            );
        }
    }
}

#[test]
fn scalars_empty_tensors_and_files_without_tensors_are_read() {
    let bytes = GgufBuilder::default()
        .tensor("scalar", &[], 0, 7f32.to_le_bytes())
        .tensor("empty", &[32, 0], 2, [])
        .build();
    let file = read(&bytes);
    let mut out = [0.0];
    file.tensor("scalar").unwrap().dequantize_row(0, &mut out).unwrap();
    assert_eq!(out, [7.0], "a tensor without dimensions");
    let empty = file.tensor("empty").unwrap();
    assert!(empty.is_empty() && empty.bytes.is_empty());
    assert_eq!(read(&GgufBuilder::default().build()).tensors().len(), 0);
}

/// Asserts that a file is refused with an error of this shape, of one line. The file is described by
/// `what` or, where the expression says it all, by how it was built.
macro_rules! refused {
    ($what:expr => $builder:expr, $pattern:pat $(if $guard:expr)?) => {{
        let bytes = $builder.build();
        let error = judge::fails_with!($what, GgufFile::parse(&bytes), $pattern $(if $guard)?);
        assert_eq!(error.to_string().lines().count(), 1, "one line: {error}");
        error
    }};
    ($builder:expr, $pattern:pat $(if $guard:expr)?) => {
        refused!(stringify!($builder) => $builder, $pattern $(if $guard)?)
    };
}

#[test]
fn other_files_versions_and_byte_orders_are_refused_by_name() {
    let with = |change: fn(&mut GgufBuilder)| {
        let mut builder = sample_gguf();
        change(&mut builder);
        builder
    };
    refused!(with(|b| b.version = 1), GgufError::Version { version: 1 });
    refused!(with(|b| b.version = 4), GgufError::Version { version: 4 });
    refused!(with(|b| b.version = 3u32.swap_bytes()), GgufError::BigEndian);
    refused!(with(|b| b.magic = *b"tjgg"), GgufError::NotGguf { hint } if hint.contains("before GGUF"));
    refused!(with(|b| b.magic = *b"<!DO"), GgufError::NotGguf { hint } if hint.contains("web page"));
    refused!(with(|b| b.magic = *b"\x7fELF"), GgufError::NotGguf { .. });
    for (bytes, part) in [
        (&b""[..], "empty"),
        (b"GG", "not a GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"GGUF\x03\0\0\0\x01", "tensor count"),
    ] {
        let what = format!("a file of the bytes {:?}", String::from_utf8_lossy(bytes));
        let expected = format!("an error that says {part:?}");
        let message = judge::refused(&what, &expected, GgufFile::parse(bytes)).to_string();
        assert!(message.contains(part), "{what}\n  expected  {expected}\n  got       {message}");
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = sample_gguf().build();
    for len in 0..bytes.len() {
        judge::fails_with!(
            format!("a GGUF file of {} bytes, cut at {len}", bytes.len()),
            GgufFile::parse(&bytes[..len]),
            GgufError::Truncated { .. }
                | GgufError::Count { .. }
                | GgufError::PastEnd { .. }
                | GgufError::NotGguf { .. }
        );
    }
}

#[test]
fn absurd_counts_and_lengths_are_refused() {
    let huge = u64::MAX;
    for count in [1000, 1 << 32, huge] {
        let mut builder = sample_gguf();
        builder.n_tensors = Some(count);
        refused!(format!("{count} tensors") => builder, GgufError::Count { what: "tensor count", .. });
        let mut builder = sample_gguf();
        builder.n_pairs = Some(count);
        refused!(format!("{count} metadata keys") => builder, GgufError::Count { what: "metadata count", .. });
    }
    for element in [U8, U64, STRING, ARRAY] {
        for len in [1 << 20, 1 << 61, huge / 8 + 1, huge] {
            let value = [&element.to_le_bytes()[..], &u64::to_le_bytes(len)].concat();
            let what = format!("an array of {len} elements of type {element}");
            refused!(what => sample_gguf().pair("a", ARRAY, value), GgufError::Count { .. });
        }
    }
    refused!(sample_gguf().pair("s", STRING, huge.to_le_bytes()), GgufError::Truncated { .. });
    refused!(
        sample_gguf().pair("k".repeat(70_000), U8, [1]),
        GgufError::LongName { len: 70_000, .. }
    );
    refused!(
        sample_gguf().tensor(&"t".repeat(2000), &[1], 0, [0; 4]),
        GgufError::LongName { len: 2000, .. }
    );
    // The longest names that are allowed.
    let (key, name) = ("k".repeat(65_535), "t".repeat(1024));
    let bytes = sample_gguf().pair(&key, U8, [1]).tensor(&name, &[1], 0, [0; 4]).build();
    let file = read(&bytes);
    assert_eq!(file.metadata().u64(&key), Ok(1), "the value of a key of 65,535 bytes");
    assert!(file.tensor(&name).is_some(), "a tensor with a name of 1,024 bytes");
}

#[test]
fn bad_metadata_is_refused_by_key() {
    refused!(
        sample_gguf().pair("odd", 13, [0; 8]),
        GgufError::UnknownValueType { key, id: 13 } if key == "odd"
    );
    refused!(
        sample_gguf().pair("odd", ARRAY, array(99, &[])),
        GgufError::UnknownValueType { key, id: 99 } if key == "odd"
    );
    refused!(sample_gguf().pair("b", BOOL, [2]), GgufError::BadBool { key } if key == "b");
    refused!(
        sample_gguf().pair("b", ARRAY, array(BOOL, &[vec![0], vec![3]])),
        GgufError::BadBool { key } if key == "b"
    );
    refused!(
        sample_gguf().pair("f32", U8, [1]),
        GgufError::DuplicateKey { key } if key == "f32"
    );
    refused!(sample_gguf().pair([0xff], U8, [1]), GgufError::NameNotUtf8 { .. });
    let mut nested = array(U8, &[]);
    for _ in 0..1000 {
        nested = array(ARRAY, &[nested]);
    }
    refused!(
        sample_gguf().pair("deep", ARRAY, nested),
        GgufError::NestedTooDeep { key, .. } if key == "deep"
    );
    for value in [0u32, 3, 33] {
        refused!(
            sample_gguf().pair("general.alignment", U32, value.to_le_bytes()),
            GgufError::Alignment { value: v } if *v == u64::from(value)
        );
    }
    refused!(
        sample_gguf().pair("general.alignment", STRING, string("32")),
        GgufError::WrongType { .. }
    );
}

#[test]
fn bad_tensor_infos_are_refused_by_name() {
    let one = |dims: &[u64], ty: u32, bytes: usize| {
        GgufBuilder::default().tensor("t", dims, ty, vec![0; bytes])
    };
    refused!(one(&[1, 1, 1, 1, 1], 0, 4), GgufError::TooManyDims { n: 5, name } if name == "t");
    refused!(one(&[33], 2, 36), GgufError::PartialBlock { row: 33, ty: StoredType::Q4_0, .. });
    refused!(one(&[128, 2], 12, 144), GgufError::PartialBlock { row: 128, .. });
    for dims in [
        &[u64::MAX][..],
        &[1 << 32, 1 << 32],
        &[1 << 62],
        &[0, 1 << 33, 1 << 33],
        &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
    ] {
        let what = format!("a tensor of 4 bytes whose dimensions are {dims:?}");
        refused!(what => one(dims, 0, 4), GgufError::Shape { dims: d, .. } if d == dims);
    }
    refused!(one(&[1000], 0, 4), GgufError::PastEnd { need: 4000, name, .. } if name == "t");
    refused!(one(&[1], 0, 4).last(|t| t.offset = Some(1 << 40)), GgufError::PastEnd { .. });
    refused!(one(&[1], 0, 4).last(|t| t.offset = Some(u64::MAX - 31)), GgufError::PastEnd { .. });
    refused!(
        one(&[1], 0, 64).last(|t| t.offset = Some(4)),
        GgufError::Misaligned { offset: 4, alignment: 32, .. }
    );
    refused!(
        one(&[1], 0, 4).tensor("t", &[1], 0, [0; 4]),
        GgufError::DuplicateTensor { name } if name == "t"
    );
    refused!(
        one(&[16], 0, 64).tensor("u", &[1], 0, [0; 4]).last(|t| t.offset = Some(32)),
        GgufError::Overlap { first, second } if first == "t" && second == "u"
    );
    refused!(one(&[1], 0, 4).last(|t| t.name = vec![0xff]), GgufError::NameNotUtf8 { .. });
}

#[test]
fn unsupported_tensor_types_are_refused_by_their_ggml_name() {
    for (ty, name) in [(10, "Q2_K"), (23, "IQ4_XS"), (34, "TQ1_0"), (26, "I32"), (77, "unknown")] {
        let what = format!("a tensor of ggml's type {ty}");
        let builder = GgufBuilder::default().tensor("t", &[256], ty, [0; 256]);
        let error = refused!(what => builder, GgufError::UnsupportedType { id, .. } if *id == ty);
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("Q4_K"), "{text}");
    }
}

/// Golden `embed` rows are the embedding matrix's rows at the golden's `tokens`
/// (`fixtures/reference/make_tiny_gguf.py`), decoded by gguf-py and rounded to bf16.
#[test]
fn embeddings_of_the_tiny_ggufs_are_those_of_the_reference() {
    let mut types = std::collections::HashSet::new();
    for path in tiny_ggufs() {
        let checkpoint = judge::works(path.display(), Checkpoint::open(&path));
        let weight = checkpoint.get("model.embed_tokens.weight").unwrap();
        types.insert(weight.ty);
        let golden = std::fs::read(path.with_extension("golden.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&golden).unwrap();
        let tokens = golden.tensor("tokens").unwrap();
        let embed = golden.tensor("embed").unwrap();
        let mut row = vec![bf16::ZERO; weight.row_len()];
        let want_rows = embed.data().chunks_exact(4 * weight.row_len());
        assert_eq!(want_rows.len(), 24);
        for (token, want) in tokens.data().as_chunks::<8>().0.iter().zip(want_rows) {
            let token = i64::from_le_bytes(*token) as usize;
            weight.dequantize_row_bf16(token, &mut row).unwrap();
            let got: Vec<f32> = row.iter().map(|x| x.to_f32()).collect();
            let want: Vec<f32> =
                want.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
            let what = format!("the embedding of token {token} in {}", path.display());
            judge::same_bits(&what, &[want.len()], &got, &want);
            // Reading again what was given back reads the same.
            checkpoint.release("model.embed_tokens.weight");
            checkpoint.prefetch("model.embed_tokens.weight");
        }
    }
    assert!(types.len() >= 5, "{types:?}");
}

#[test]
fn paths_that_cannot_be_opened_give_errors_that_name_them() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent.gguf");
    let error = Checkpoint::open(&absent).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error:?}");
    assert!(error.to_string().contains("absent.gguf"));
    let error = GgufFile::open(dir.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::NotAFile { .. }), "{error:?}");
    let damaged = dir.path().join("damaged.gguf");
    std::fs::write(&damaged, "GGUF").unwrap();
    let error = Checkpoint::open(&damaged).unwrap_err().to_string();
    assert!(error.contains("damaged.gguf") && error.contains("cut short"), "{error}");
    std::fs::write(&damaged, "").unwrap();
    let error = Checkpoint::open(&damaged).unwrap_err().to_string();
    assert!(error.contains("empty"), "{error}");
}

/// The rows of q and k could not be put back in order.
#[test]
fn heads_of_an_odd_number_of_elements_are_refused() {
    let bytes = GgufBuilder::default()
        .pair("general.architecture", STRING, string("llama"))
        .pair("llama.embedding_length", U32, 32u32.to_le_bytes())
        .pair("llama.attention.head_count", U32, 2u32.to_le_bytes())
        .pair("llama.attention.key_length", U32, 17u32.to_le_bytes())
        .build();
    let error = ModelConfig::from_gguf(&read(&bytes)).unwrap_err();
    let key = "llama.attention.key_length";
    judge::fails_with!("a head of 17 elements", Err::<(), _>(error), ConfigError::BadValue { key: k, .. } if k == key);
}

#[test]
fn numbers_that_no_norm_or_angle_can_be_computed_with_are_refused_by_the_key_of_the_file() {
    let number = |x: u32| x.to_le_bytes();
    let whole = || {
        GgufBuilder::default()
            .pair("general.architecture", STRING, string("llama"))
            .pair("llama.embedding_length", U32, number(32))
            .pair("llama.attention.head_count", U32, number(2))
            .pair("llama.feed_forward_length", U32, number(64))
            .pair("llama.block_count", U32, number(1))
            .pair("llama.context_length", U32, number(64))
            .tensor("token_embd.weight", &[32, 2], 0, [0; 256])
    };
    let float = |file: GgufBuilder, key: &str, x: f32| file.pair(key, F32, x.to_le_bytes());
    let scaled = |kind: &str| whole().pair("llama.rope.scaling.type", STRING, string(kind));
    judge::works("the file", ModelConfig::from_gguf(&read(&whole().build())));
    let factor = "llama.rope.scaling.factor";
    let yarn = || float(scaled("yarn"), factor, 4.0);
    // llama.cpp's default for a file with a factor and without a type.
    let linear = ModelConfig::from_gguf(&read(&float(whole(), factor, 4.0).build())).unwrap();
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 4.0 });
    let attn_factor = float(yarn(), "llama.rope.scaling.attn_factor", 2.0);
    let got = ModelConfig::from_gguf(&read(&attn_factor.build()));
    judge::fails_with!("another attn_factor", got, ConfigError::Unsupported { .. });
    let eps = "llama.attention.layer_norm_rms_epsilon";
    for (key, value, file) in [
        (eps, "-1", float(whole(), eps, -1.0)),
        (eps, "NaN", float(whole(), eps, f32::NAN)),
        ("llama.rope.freq_base", "0", float(whole(), "llama.rope.freq_base", 0.0)),
        ("llama.rope.freq_base", "inf", float(whole(), "llama.rope.freq_base", f32::INFINITY)),
        (factor, "0", float(scaled("linear"), factor, 0.0)),
        (factor, "NaN", float(scaled("yarn"), factor, f32::NAN)),
        ("llama.rope.scale_linear", "0", float(whole(), "llama.rope.scale_linear", 0.0)),
        (
            "llama.rope.scaling.yarn_beta_fast",
            "-1",
            float(yarn(), "llama.rope.scaling.yarn_beta_fast", -1.0),
        ),
        (
            "llama.rope.scaling.original_context_length",
            "0",
            yarn().pair("llama.rope.scaling.original_context_length", U32, number(0)),
        ),
        (
            "rope_freqs.weight",
            "0",
            whole().tensor(
                "rope_freqs.weight",
                &[8],
                0,
                [[0; 4], 1f32.to_le_bytes()].concat().repeat(4),
            ),
        ),
    ] {
        let got = ModelConfig::from_gguf(&read(&file.build()));
        let what = format!("a file whose {key} is {value}");
        judge::fails_with!(what, got, ConfigError::BadValue { key: k, value: v, .. } if k == key && v == value);
    }
}
