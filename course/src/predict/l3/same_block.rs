//! When two prompts share a block.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "same-block",
    about: "whether two prompts share a block",
    chapter: "l3-paged-kv/hashes.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    let block = draw.between(1, 4);
    // The prompts differ in the block, in front of it, behind it, or nowhere.
    let mut differ = match draw.below(5) {
        0 => Some(block * block_size + draw.below(block_size)),
        1 => Some(draw.below(block * block_size)),
        2 | 3 => Some((block + 1) * block_size + draw.below(block_size)),
        _ => None,
    };
    let mut adapters = [None, None];
    let mut salts = [None, None];
    match draw.below(6) {
        0 => adapters = [Some(("sql", "sql-v1")), Some(("sql", "sql-v2"))],
        1 => adapters = [Some(("sql", "sql-v1")); 2],
        2 => salts = [Some("ada"), Some("bob")],
        3 => salts = [Some("ada"); 2],
        _ => {}
    }
    // Of two differences only one would matter.
    if adapters[0] != adapters[1] || salts[0] != salts[1] {
        differ = differ.filter(|at| *at >= (block + 1) * block_size);
    }
    let ends_early = draw.one_in(6);
    let shorter = (block + 1) * block_size - draw.between(1, 3);
    let len = if ends_early { shorter } else { (block + 2) * block_size };
    let differ = differ.filter(|at| *at < len);

    let first = (block * block_size, (block + 1) * block_size);
    let same_keys = adapters[0] == adapters[1] && salts[0] == salts[1];
    let yes = same_keys && differ.is_none_or(|at| at >= first.1) && len >= first.1;
    let both = |said: [Option<&str>; 2], what: &str| match said {
        [Some(a), Some(b)] if a == b => format!("Both have {what} {a}.\n"),
        [Some(a), Some(b)] => format!("The first has {what} {a}, the second {what} {b}.\n"),
        _ => String::new(),
    };
    let paths = adapters.map(|a| a.map(|(name, path)| format!("{name} ({path})")));
    let keys =
        both(paths.each_ref().map(|a| a.as_deref()), "the adapter") + &both(salts, "the salt");
    let tokens = match differ {
        Some(at) => format!("differ at position {at} and nowhere else"),
        None => "have the same tokens".into(),
    };
    let text = format!(
        "Two prompts of {len} tokens {tokens}; blocks of {block_size}.\n{keys}\
         Can the second one use the first's block {block} (counted from 0) from the cache?"
    );
    let why = if adapters[0] != adapters[1] {
        "The adapter is in the hash of every block: its name and its path.".into()
    } else if salts[0] != salts[1] {
        "The salt is in the hash of block 0 only, and that one is in every later hash.".into()
    } else if len < first.1 {
        format!("{len} tokens end inside of block {block}: it is not full and has no hash.")
    } else {
        match differ {
            Some(at) if at < first.0 => format!(
                "Position {at} is in block {}: the hash of block {block} contains that of its\n\
                 parent, and so on to block 0.",
                at / block_size
            ),
            Some(at) if at < first.1 => format!("Position {at} is in the block itself."),
            Some(at) => format!(
                "Position {at} is in block {}, behind it: what follows is in no hash.",
                at / block_size
            ),
            None => "All that is hashed is the same.".into(),
        }
    };
    let explanation = format!(
        "A block's hash covers its parent's hash, its own tokens and the keys; block {block}\n\
         has positions {} to {}.\n{why}",
        first.0,
        first.1 - 1
    );
    let facts = json!({
        "block_size": block_size, "block": block, "len": len, "differ": differ,
        "adapters": adapters, "salts": salts,
    });
    let mistake = if yes {
        "nothing differs that this block's hash covers"
    } else {
        "a hash covers all before it, the adapter and the salt, and only a full block has one"
    };
    Question::new(text, Answer::Yes(yes), explanation, facts).mistake(Answer::Yes(!yes), mistake)
}
