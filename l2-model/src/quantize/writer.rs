//! Writing safetensors: a header that promises tensors, then their bytes in the same order.

use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

/// A tensor to write.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: usize,
}

/// Creates the file and writes its header. The tensors' bytes follow, in the order of `entries`.
pub(super) fn create(path: &Path, entries: &[Entry]) -> std::io::Result<BufWriter<std::fs::File>> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut begin = 0;
    for Entry { name, dtype, shape, bytes } in entries {
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + bytes]});
        header.insert(name.clone(), entry);
        begin += bytes;
    }
    let mut header = Value::Object(header).to_string();
    // Readers map the file and expect data at a multiple of eight bytes.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    Ok(file)
}
