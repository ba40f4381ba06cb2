//! safetensors in and out: what is written is read back, and what is broken is said to be.

use std::io::Write;

use l1_tensor::safetensors::{SafetensorsFile, save};
use l1_tensor::{DType, Device, Error, Tensor, bf16};
use proptest::prelude::*;

fn three() -> (Tensor, Tensor, Tensor) {
    let a = Tensor::from_slice(&[1.0f32, -2.5, f32::NAN, f32::INFINITY, 0.0, -0.0], &[2, 3]);
    let b = Tensor::from_slice(&[1, 2, 3].map(|v| bf16::from_f32(v as f32)), &[3]);
    let c = Tensor::from_slice(&[-1i32, i32::MAX], &[1, 2, 1]);
    (a.unwrap(), b.unwrap(), c.unwrap())
}

/// The bytes of a small valid file.
fn valid() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("valid.safetensors");
    let (a, b, c) = three();
    let tensors = [("a", a.view()), ("layers.0.b", b.view()), ("c", c.view())];
    save(&path, &tensors, &[("maker", "test")]).unwrap();
    std::fs::read(path).unwrap()
}

/// Open these bytes as a file and read every tensor.
fn read_all(bytes: &[u8]) -> Result<Vec<(String, Tensor)>, Error> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    let file = SafetensorsFile::open(file.path())?;
    file.names().into_iter().map(|n| Ok((n.clone(), file.tensor(&n)?))).collect()
}

/// A file with this header and so many zero bytes behind it.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn what_is_saved_is_read_back_bit_by_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let (a, b, c) = three();
    let tail = a.view().narrow(0, 1, 1).unwrap();
    let empty = Tensor::zeros(&[0, 4], DType::F32, Device::Cpu).unwrap();
    let tensors =
        [("a", a.view()), ("b", b.view()), ("c", c.view()), ("tail", tail), ("e", empty.view())];
    save(&path, &tensors, &[("maker", "test"), ("torch", "none")]).unwrap();

    let file = SafetensorsFile::open(&path).unwrap();
    assert_eq!(file.metadata().unwrap()["maker"], "test");
    assert_eq!(file.names().len(), 5);
    assert_eq!(file.info("a").unwrap(), (DType::F32, &[2, 3][..]));
    assert_eq!(file.info("c").unwrap(), (DType::I32, &[1, 2, 1][..]));
    assert_eq!(file.bytes("b").unwrap().len(), 6);
    let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let read = file.tensor("a").unwrap().to_vec_f32().unwrap();
    assert_eq!(bits(read), bits(a.to_vec_f32().unwrap()));
    assert_eq!(file.tensor("b").unwrap().to_vec_f32().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(file.tensor("tail").unwrap().to_vec_f32().unwrap(), [f32::INFINITY, 0.0, -0.0]);
    assert_eq!(file.tensor("e").unwrap().dims(), [0, 4]);
    let c = file.tensor("c").unwrap();
    assert_eq!(c.view().as_slice::<i32>("test").unwrap(), [-1, i32::MAX]);
}

#[test]
fn what_cannot_be_saved_is_named_and_the_old_file_survives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let (a, ..) = three();
    save(&path, &[("a", a.view())], &[]).unwrap();
    let before = std::fs::read(&path).unwrap();

    let turned = a.view().transpose(0, 1).unwrap();
    let e = save(&path, &[("a", turned)], &[]).unwrap_err();
    assert!(matches!(e, Error::UnsupportedLayout { .. }), "{e}");
    let e = save(&path, &[("a", a.view()), ("a", a.view())], &[]).unwrap_err();
    assert!(matches!(e, Error::Safetensors { .. }), "{e}");
    let e = save(dir.path().join("no/such/dir.safetensors"), &[("a", a.view())], &[]).unwrap_err();
    assert!(matches!(e, Error::Io { .. }), "{e}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_is_not_there_is_an_io_error_with_its_name() {
    let Err(e) = SafetensorsFile::open("no/such/file.safetensors") else { panic!("opened") };
    assert!(matches!(e, Error::Io { .. }), "{e}");
    assert!(e.to_string().contains("no/such/file.safetensors"), "{e}");
    let dir = tempfile::tempdir().unwrap();
    assert!(SafetensorsFile::open(dir.path()).is_err());
}

#[test]
fn a_name_that_is_not_in_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    save(&path, &[("a", three().0.view())], &[]).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    assert!(file.contains("a") && !file.contains("b"));
    let Err(e) = file.tensor("b") else { panic!("found") };
    assert!(matches!(e, Error::Safetensors { .. }) && e.to_string().contains("`b`"), "{e}");
}

#[test]
fn every_truncation_is_a_typed_error() {
    let bytes = valid();
    for n in 0..bytes.len() {
        let e = read_all(&bytes[..n]).map(|_| ()).unwrap_err();
        assert!(matches!(e, Error::Safetensors { .. }), "{n} of {} bytes: {e}", bytes.len());
    }
    assert_eq!(read_all(&bytes).unwrap().len(), 3);
}

#[test]
fn headers_that_lie_are_typed_errors() {
    let tensor = |dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
    };
    let huge = u64::MAX;
    let cases = [
        ("a size that overflows", tensor("F32", &format!("[{huge},{huge}]"), 0, 4)),
        ("more data than the file has", tensor("F32", "[1000000000]", 0, 4_000_000_000)),
        ("a shape that is not its size", tensor("F32", "[2]", 0, 4)),
        ("a gap", tensor("F32", "[1]", 4, 8)),
        ("an end before its start", tensor("F32", "[0]", 8, 4)),
        ("a type nobody has", tensor("F77", "[1]", 0, 4)),
        ("a type that layer 1 has not", tensor("I16", "[2]", 0, 4)),
        ("no object", "[]".into()),
        ("no JSON", "{".into()),
        ("too deep", "[".repeat(100_000)),
    ];
    for (what, header) in cases {
        let data = if what == "a gap" { 8 } else { 4 };
        let e = read_all(&with_header(&header, data)).map(|_| ()).unwrap_err();
        assert!(matches!(e, Error::Safetensors { .. }), "{what}: {e}");
    }
    let five = tensor("F32", "[1,1,1,1,1]", 0, 4);
    let e = read_all(&with_header(&five, 4)).map(|_| ()).unwrap_err();
    assert!(matches!(e, Error::BadShape { .. }), "too many dimensions: {e}");
    let length_only = (1u64 << 40).to_le_bytes();
    let e = read_all(&length_only).map(|_| ()).unwrap_err();
    assert!(matches!(e, Error::Safetensors { .. }), "a header of a terabyte: {e}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn mutated_files_are_read_or_refused_but_never_crash(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = valid();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        match read_all(&bytes) {
            Ok(tensors) => {
                let held: usize = tensors.iter().map(|(_, t)| t.bytes()).sum();
                prop_assert!(held <= bytes.len(), "{} bytes out of {}", held, bytes.len());
            }
            Err(Error::Safetensors { .. } | Error::BadShape { .. }) => {}
            Err(other) => prop_assert!(false, "not the error to expect: {}", other),
        }
    }
}
