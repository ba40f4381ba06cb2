//! GGUF tensor infos: name, shape, type and position of each tensor.

use super::GgufError;
use super::cursor::{Cursor, Span};
use crate::checkpoint::StoredTensor;
use crate::checkpoint::quant::StoredType;

/// Maximum number of dimensions in ggml.
const MAX_DIMS: usize = 4;
/// Maximum length of a name. ggml keeps 63 bytes; longer names are read here.
const MAX_NAME: u64 = 1024;
/// Minimum size of an info: name length, n_dims, type, offset.
const MIN_INFO: usize = 8 + 4 + 4 + 8;

/// One tensor, as positions in the file.
#[derive(Debug)]
pub(super) struct Info {
    pub(super) name: Span,
    /// Row-major: the first `n_dims` count.
    shape: [usize; MAX_DIMS],
    n_dims: usize,
    ty: StoredType,
    pub(super) data: Span,
}

impl Info {
    pub(super) fn view<'a>(&'a self, file: &'a [u8]) -> StoredTensor<'a> {
        StoredTensor {
            // Checked when it was read.
            name: std::str::from_utf8(self.name.of(file)).unwrap_or_default(),
            ty: self.ty,
            shape: &self.shape[..self.n_dims],
            bytes: self.data.of(file),
        }
    }
}

/// An info as stored, before the start of the data section is known.
struct Raw {
    name: Span,
    shape: [usize; MAX_DIMS],
    n_dims: usize,
    ty: StoredType,
    offset: u64,
    len: usize,
}

/// Reads `count` infos, finds the data section after them, and checks every tensor's position. The
/// second result are the infos' indices, sorted by name.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    count: u64,
    alignment: usize,
) -> Result<(Vec<Info>, Vec<u32>), GgufError> {
    let most_indices = u32::MAX as usize;
    let n = cursor.check_count("tensor count", count, MIN_INFO)?;
    if n > most_indices {
        return Err(GgufError::Count { what: "tensor count", count, most: most_indices });
    }
    let file = cursor.file();
    // exercise l2.gguf
    // The infos come first and say how long they are only by being read. So: once over them to
    // find where the data starts, and once more to keep them.
    let mut ahead = *cursor;
    for _ in 0..n {
        read_one(&mut ahead)?;
    }
    // Without room for the padding there is no data either; a tensor will say so if it has any.
    let data_start = ahead.at().checked_next_multiple_of(alignment);
    let data_start = data_start.unwrap_or(file.len()).min(file.len());

    let mut infos = Vec::with_capacity(n);
    for _ in 0..n {
        infos.push(place(read_one(cursor)?, file, data_start, alignment)?);
    }
    let by_name = sorted_names(&infos, file)?;
    check_overlaps(&infos, file)?;
    Ok((infos, by_name))
    // end of exercise
}

fn read_one(cursor: &mut Cursor<'_>) -> Result<Raw, GgufError> {
    let file = cursor.file();
    let at = cursor.at();
    let what = "tensor name";
    let name = cursor.short_string(what, MAX_NAME)?;
    std::str::from_utf8(name.of(file)).map_err(|_| GgufError::NameNotUtf8 { what, at })?;

    let n = cursor.u32("tensor dimensions")?;
    let n_dims = n as usize;
    if n_dims > MAX_DIMS {
        let name = text(name, file);
        return Err(GgufError::TooManyDims { name, n });
    }
    let mut dims = [0u64; MAX_DIMS];
    for dim in &mut dims[..n_dims] {
        *dim = cursor.u64("tensor shape")?;
    }
    let id = cursor.u32("tensor type")?;
    let ty = stored_type(id).ok_or_else(|| GgufError::UnsupportedType {
        name: text(name, file),
        id,
        type_name: ggml_name(id),
    })?;
    let offset = cursor.u64("tensor offset")?;

    // exercise l2.gguf
    let impossible = || GgufError::Shape { name: text(name, file), dims: dims[..n_dims].to_vec() };
    // The innermost dimension comes first in the file, last in a row-major shape.
    let mut shape = [0usize; MAX_DIMS];
    for (to, from) in shape[..n_dims].iter_mut().zip(dims[..n_dims].iter().rev()) {
        *to = usize::try_from(*from).map_err(|_| impossible())?;
    }
    let row = shape[..n_dims].last().copied().unwrap_or(1);
    if !row.is_multiple_of(ty.block_len()) {
        let name = text(name, file);
        return Err(GgufError::PartialBlock { name, row, ty });
    }
    // Zeros are left out of the overflow check: `[0, huge]` is empty, but the product of its other
    // dimensions must not overflow in any order of multiplication.
    let product = |skip_zeros: bool| {
        let sizes = shape[..n_dims].iter().filter(|d| !skip_zeros || **d != 0);
        sizes.copied().try_fold(1usize, usize::checked_mul)
    };
    let fits = product(true).and_then(|n| n.checked_mul(4));
    fits.ok_or_else(impossible)?;
    let n = product(false).ok_or_else(impossible)?;
    let len = ty.bytes_for(n).ok_or_else(impossible)?;
    Ok(Raw { name, shape, n_dims, ty, offset, len })
    // end of exercise
}

/// Turns an offset in the data section into a position in the file.
fn place(raw: Raw, file: &[u8], data_start: usize, alignment: usize) -> Result<Info, GgufError> {
    if !raw.offset.is_multiple_of(alignment as u64) {
        return Err(GgufError::Misaligned {
            name: text(raw.name, file),
            offset: raw.offset,
            alignment,
        });
    }
    // exercise l2.gguf
    let start = usize::try_from(raw.offset).ok().and_then(|offset| offset.checked_add(data_start));
    let data = start
        // A tensor without bytes is nowhere in particular.
        .map(|start| if raw.len == 0 { data_start } else { start })
        .and_then(|start| Span::within(start, raw.len, file.len()))
        .ok_or_else(|| GgufError::PastEnd {
            name: text(raw.name, file),
            start: raw.offset.saturating_add(data_start as u64),
            need: raw.len,
            file: file.len(),
        })?;
    Ok(Info { name: raw.name, shape: raw.shape, n_dims: raw.n_dims, ty: raw.ty, data })
    // end of exercise
}

fn sorted_names(infos: &[Info], file: &[u8]) -> Result<Vec<u32>, GgufError> {
    let name = |i: u32| infos[i as usize].name.of(file);
    let mut by_name: Vec<u32> = (0..infos.len() as u32).collect();
    by_name.sort_unstable_by_key(|i| name(*i));
    match by_name.windows(2).find(|w| name(w[0]) == name(w[1])) {
        Some(twice) => {
            Err(GgufError::DuplicateTensor { name: text(infos[twice[0] as usize].name, file) })
        }
        None => Ok(by_name),
    }
}

fn check_overlaps(infos: &[Info], file: &[u8]) -> Result<(), GgufError> {
    let range = |i: u32| infos[i as usize].data.range();
    let with_data = |i: &u32| !range(*i).is_empty();
    let mut by_start: Vec<u32> = (0..infos.len() as u32).filter(with_data).collect();
    by_start.sort_unstable_by_key(|i| range(*i).start);
    match by_start.windows(2).find(|w| range(w[0]).end > range(w[1]).start) {
        Some(two) => Err(GgufError::Overlap {
            first: text(infos[two[0] as usize].name, file),
            second: text(infos[two[1] as usize].name, file),
        }),
        None => Ok(()),
    }
}

fn text(name: Span, file: &[u8]) -> String {
    String::from_utf8_lossy(name.of(file)).into_owned()
}

/// ggml's numbers for the types that can be read.
fn stored_type(id: u32) -> Option<StoredType> {
    Some(match id {
        0 => StoredType::F32,
        1 => StoredType::F16,
        2 => StoredType::Q4_0,
        3 => StoredType::Q4_1,
        6 => StoredType::Q5_0,
        7 => StoredType::Q5_1,
        8 => StoredType::Q8_0,
        12 => StoredType::Q4_K,
        13 => StoredType::Q5_K,
        14 => StoredType::Q6_K,
        20 => StoredType::IQ4_NL,
        30 => StoredType::BF16,
        39 => StoredType::MXFP4,
        40 => StoredType::NVFP4,
        _ => return None,
    })
}

/// ggml's names for unsupported types, so that the message names the type of the file.
fn ggml_name(id: u32) -> &'static str {
    match id {
        4 | 5 => "Q4_2/Q4_3 (withdrawn)",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        41 => "Q1_0",
        _ => "unknown",
    }
}
