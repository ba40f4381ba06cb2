//! Shell fences: what is run, where, and what is shown of it.
//!
//! `sh` holds commands; `console` holds commands behind `$ ` and, below each, what it prints. Words
//! behind the kind say where they are run and how they end, as in `console,learner,fails`:
//!
//! * `learner`: in a learner's workspace that was just made, instead of the reference;
//! * `fails`: the last command ends with a failure (all others succeed);
//! * `full`: only in `cargo x test --full`, since it needs the model or a release build;
//! * `norun`: not at all. A comment on the line above says why: `<!-- not run: it is an editor -->`.
//!
//! A `learner` fence may have `<!-- solved: l1.layout l1.lanes -->` above it, or `<!-- solved: before
//! l1.rope -->`: exercises that have their bodies there. `, with mutant 4 of l1` behind these makes
//! that mistake in one of them.

/// The kinds of fences that hold commands.
pub const SHELL: [&str; 2] = ["sh", "console"];

/// A shell fence.
#[derive(Debug, Default)]
pub struct Fence {
    /// Its first line, counted from 1.
    pub line: usize,
    pub learner: bool,
    pub fails: bool,
    pub full: bool,
    pub norun: bool,
    /// What a comment on the line above says must be in place.
    pub solved: Option<String>,
    pub steps: Vec<Step>,
}

/// A command of a fence.
#[derive(Debug)]
pub struct Step {
    pub line: usize,
    pub command: String,
    /// The lines shown below it. Empty: the page does not show what comes.
    pub shown: Vec<String>,
}

/// The shell fences of a page.
///
/// # Errors
/// What is wrong with one, behind its line.
pub fn of(text: &str) -> Result<Vec<Fence>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut fences = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let Some(info) = lines[at].strip_prefix("```") else {
            at += 1;
            continue;
        };
        let end = (at + 1..lines.len()).find(|i| lines[*i].trim_end() == "```");
        let end = end.ok_or(format!("{}: a fence is left open", at + 1))?;
        let kind = info.split(',').next().unwrap_or_default();
        if SHELL.contains(&kind) {
            let above = if at == 0 { "" } else { lines[at - 1] };
            let mut fence = head(info, above).map_err(|e| format!("{}: {e}", at + 1))?;
            fence.line = at + 1;
            fence.steps = steps(kind, &lines[at + 1..end], at + 2)?;
            if fence.steps.is_empty() {
                return Err(format!("{}: there is no command in this fence", at + 1));
            }
            fences.push(fence);
        }
        at = end + 1;
    }
    Ok(fences)
}

fn head(info: &str, above: &str) -> Result<Fence, String> {
    let mut fence = Fence::default();
    for word in info.split(',').skip(1) {
        match word {
            "learner" => fence.learner = true,
            "fails" => fence.fails = true,
            "full" => fence.full = true,
            "norun" => fence.norun = true,
            other => return Err(format!("a shell fence cannot be `{other}`")),
        }
    }
    let comment = |key: &str| {
        let inside = above.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
        Some(inside.trim().strip_prefix(key)?.trim().to_string())
    };
    fence.solved = comment("solved:");
    if fence.solved.is_some() && !fence.learner {
        return Err("exercises are solved in a learner's workspace: `sh,learner`".into());
    }
    let reason = comment("not run:").filter(|r| r.len() > 10);
    match (fence.norun, reason) {
        (true, None) => Err("say on the line above why: `<!-- not run: .. -->`".into()),
        (false, Some(_)) => Err("what is not run is `sh,norun`".into()),
        _ => Ok(fence),
    }
}

fn steps(kind: &str, lines: &[&str], first: usize) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut go_on = false;
    for (n, line) in lines.iter().enumerate().map(|(i, line)| (i + first, line.trim_end())) {
        if go_on {
            let command = &mut steps.last_mut().expect("a command to go on with").command;
            command.truncate(command.len() - 1);
            command.push_str(line.trim_start());
        } else if kind == "sh" {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            steps.push(Step { line: n, command: line.into(), shown: Vec::new() });
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: n, command: command.into(), shown: Vec::new() });
        } else {
            let step = steps.last_mut().ok_or(format!("{n}: output before any `$ command`"))?;
            step.shown.push(line.into());
            continue;
        }
        go_on = line.ends_with('\\');
    }
    for step in &mut steps {
        let blank = step.shown.iter().rev().take_while(|l| l.is_empty()).count();
        step.shown.truncate(step.shown.len() - blank);
    }
    Ok(steps)
}

/// Whether the lines that are shown are those that came, where `...` stands for any number of them.
pub fn shows(shown: &[String], came: &[String]) -> bool {
    match shown.split_first() {
        None => came.is_empty(),
        Some((dots, rest)) if dots.trim() == "..." => {
            (0..=came.len()).any(|skipped| shows(rest, &came[skipped..]))
        }
        Some((line, rest)) => came.first() == Some(line) && shows(rest, &came[1..]),
    }
}
