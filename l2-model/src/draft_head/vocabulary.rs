//! The draft vocabulary of an EAGLE-3 head: some of the target's tokens, numbered anew.
//!
//! `d2t` `[V_d]` holds offsets: draft token `d` is token `d + d2t[d]` of the target. `t2d` `[V]` marks the tokens of
//! the target that have a draft token. A head without `d2t` proposes all tokens under their own numbers.

use super::DraftHeadError;
use crate::checkpoint::SafetensorsDir;

/// Reads the target's token of each draft token, `[V_d]`; `None` where the numbers are the same.
pub(super) fn read(
    dir: &SafetensorsDir,
    draft_vocab: usize,
    target_vocab: usize,
) -> crate::Result<Option<Vec<u32>>> {
    let bad = |name, why| DraftHeadError::Table { name, why };
    let Some(offsets) = dir.integers("d2t")? else {
        if draft_vocab == target_vocab {
            return Ok(None);
        }
        let why = format!("it is missing, and the draft vocabulary has {draft_vocab} tokens");
        return Err(bad("d2t", why).into());
    };
    if offsets.len() != draft_vocab {
        let why = format!("{} offsets for {draft_vocab} draft tokens", offsets.len());
        return Err(bad("d2t", why).into());
    }
    let target = |(draft, offset): (usize, &i64)| {
        let id = offset.checked_add(draft as i64).and_then(|id| u32::try_from(id).ok());
        id.filter(|id| (*id as usize) < target_vocab).ok_or_else(|| {
            let why = format!(
                "offset {offset} leads draft token {draft} out of the model's {target_vocab} tokens"
            );
            bad("d2t", why)
        })
    };
    let targets: Vec<u32> = offsets.iter().enumerate().map(target).collect::<Result<_, _>>()?;
    if let Some(marks) = dir.integers("t2d")? {
        check_marks(&marks, &targets, target_vocab).map_err(|why| bad("t2d", why))?;
    }
    Ok(Some(targets))
}

/// Checks that the two tables name the same tokens. Absolute ids in place of offsets are found here.
fn check_marks(marks: &[i64], targets: &[u32], target_vocab: usize) -> Result<(), String> {
    if marks.len() != target_vocab {
        return Err(format!("{} marks for {target_vocab} tokens", marks.len()));
    }
    let marked = marks.iter().filter(|mark| **mark != 0).count();
    if marked != targets.len() {
        return Err(format!("it marks {marked} tokens, and `d2t` has {}", targets.len()));
    }
    match targets.iter().find(|id| marks[**id as usize] == 0) {
        Some(id) => Err(format!("it does not mark token {id}, which `d2t` leads to")),
        None => Ok(()),
    }
}
