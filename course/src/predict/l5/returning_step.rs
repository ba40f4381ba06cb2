//! What the next step of a job computes, when another request has had the pool meanwhile.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "returning-step",
    about: "blocks that a returning step computes and loads",
    chapter: "l5-scheduler/retention.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let policy = draw.pick(&["fcfs", "continuum", "lmcache", "fcfs", "lmcache"]);
    let (pool, left) = (draw.between(12, 20), draw.between(3, 6));
    let prompt = left + draw.between(2, 5);
    // Under `continuum` nothing else runs, so a request that needs more would end the lease.
    let other = match policy {
        "continuum" => draw.between(2, pool - left),
        _ => draw.between(pool - left - 1, pool - 1),
    };
    let lost =
        if policy == "continuum" { 0 } else { left.min((other + left).saturating_sub(pool)) };
    let loaded = if policy == "lmcache" { lost } else { 0 };
    let computed = prompt - (left - lost) - loaded;

    let what = match policy {
        "fcfs" => "the blocks that it left are free",
        "continuum" => "the blocks that it left are leased",
        _ => "the blocks that it left are copied to DRAM, and then free",
    };
    let text = wrapped(&format!(
        "A pool of {pool} blocks, all free and never used. A step of a job leaves {left} full blocks; \
         under `{policy}`, {what}. Then another request takes {other} blocks, finishes, and frees \
         them. The job's next step has a prompt of {prompt} full blocks, which begins with the \
         {left}. How many blocks does it compute, and how many does it load?"
    ));
    let beside = pool - left;
    let explanation = wrapped(&match policy {
        "continuum" => format!(
            "The lease holds the {left} blocks, and the other request has none of them: there are \
             {beside} beside. All {left} are hit: {prompt} - {left} = {computed} are computed."
        ),
        _ => format!(
            "There are {beside} blocks beside the {left}. They are handed out first; then the \
             {left}, the last of them first, so the beginning lives longest. The other request has \
             taken {lost} of them, and {} are hit. {} {computed} blocks are computed.",
            left - lost,
            match policy {
                "lmcache" => format!("The tier has all {left}: {loaded} are loaded."),
                _ => "There is no tier to load from.".to_owned(),
            }
        ),
    });
    let facts = json!({
        "policy": policy, "pool": pool, "left": left, "other": other, "prompt": prompt,
    });
    let list = |computed: usize, loaded: usize| Answer::List(vec![computed as i64, loaded as i64]);
    Question::new(text, list(computed, loaded), explanation, facts)
        .mistake(list(prompt - left, 0), "the other request has taken some of the blocks")
        .mistake(list(prompt, 0), "the blocks that are still in the pool are hit")
        .mistake(list(prompt - left, left), "what is in the pool is hit, and not loaded")
        .mistake(
            list(prompt - (left - lost), loaded),
            "a block that is loaded need not be computed",
        )
}
