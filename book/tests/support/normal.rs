//! Output without what changes from run to run and from machine to machine.

/// Units of time and of speed: the number before one of them is nobody's promise.
const TIMES: [&str; 6] = ["ns", "us", "µs", "ms", "s", "seconds"];
const RATES: [&str; 7] = ["tokens/s", "MB/s", "GB/s", "GFLOP/s", "TFLOP/s", "Gflop/s", "Tflop/s"];
/// What `STRATA_CPU` may say.
const INSTRUCTION_SETS: [&str; 5] = ["portable", "avx2", "avx512", "avx512bf16", "amx"];
/// Words with which cargo begins a line of its own, right-aligned in twelve columns.
const CARGO: [&str; 14] = [
    "Adding",
    "Blocking",
    "Building",
    "Checking",
    "Compiling",
    "Dirty",
    "Doc-tests",
    "Downloaded",
    "Downloading",
    "Finished",
    "Fresh",
    "Locking",
    "Running",
    "Updating",
];

/// What a command printed, line by line, as it is compared. `paths` are replaced first, in order.
pub fn output(text: &str, paths: &[(String, &str)]) -> Vec<String> {
    let mut text = text.to_string();
    for (from, to) in paths {
        text = text.replace(from.as_str(), to);
    }
    let mut lines: Vec<String> = text.lines().filter(|l| !is_about_building(l)).map(line).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    let blank = lines.iter().take_while(|l| l.is_empty()).count();
    lines.split_off(blank)
}

/// What is said of building, by cargo and by our own tool: there may be nothing to build.
fn is_about_building(line: &str) -> bool {
    if line == "building what changed .." || line.starts_with("building l") {
        return true;
    }
    if line.starts_with("building nano") || line.starts_with("running your engine") {
        return true;
    }
    let (Some(head), Some(rest)) = (line.get(..12), line.get(12..)) else { return false };
    rest.starts_with(' ') && CARGO.contains(&head.trim_start())
}

/// One line.
pub fn line(line: &str) -> String {
    let line = without_names(&without_thread_ids(line.trim_end()));
    let mut out = String::new();
    let mut rest = line.as_str();
    while let Some(c) = rest.chars().next() {
        let boundary = !out.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let (word, replacement) = if !boundary {
            (0, "")
        } else if c.is_ascii_digit() {
            number(rest, &out)
        } else {
            let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
            let known = INSTRUCTION_SETS.contains(&&rest[..end]);
            (if known { end } else { 0 }, "<isa>")
        };
        if word > 0 {
            out.push_str(replacement);
            rest = &rest[word..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// How much of `text` is a number that changes, and what to write for it; 0 if it does not change.
fn number<'a>(text: &str, before: &str) -> (usize, &'a str) {
    let end =
        text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ',')).unwrap_or(text.len());
    let digits = text[..end].trim_end_matches(['.', ',']).len();
    let after = &text[digits..];
    let unit = after.strip_prefix(' ').unwrap_or(after);
    let ends = |unit_and_rest: &str, unit: &str| {
        let rest = unit_and_rest.strip_prefix(unit);
        rest.is_some_and(|r| !r.starts_with(|c: char| c.is_alphanumeric() || c == '/'))
    };
    let of = |units: &[&str]| units.iter().find(|u| ends(unit, u)).map(|u| u.len());
    let space = after.len() - unit.len();
    if let Some(n) = of(&TIMES) {
        (digits + space + n, "<time>")
    } else if let Some(n) = of(&RATES) {
        (digits + space + n, "<rate>")
    } else if of(&["thread", "threads"]).is_some() {
        (digits, "<n>")
    } else if before.ends_with(".rs:") {
        // `file.rs:12:5`, `file.rs:12`, `file.rs:12, 40, 71`.
        let digits_of = |t: &str| t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len());
        let mut end = digits_of(text);
        while let Some(more) = text[end..].strip_prefix(':').or(text[end..].strip_prefix(", "))
            && digits_of(more) > 0
        {
            end = text.len() - more.len() + digits_of(more);
        }
        (end, "<line>")
    } else if before.ends_with("(line ") {
        (digits, "<n>")
    } else {
        (0, "")
    }
}

/// A server's JSON without what it gives every answer anew: its name and the second it came in.
fn without_names(line: &str) -> String {
    let replace = |line: String, key: &str, name: &str, ends: fn(char) -> bool| {
        let Some((before, after)) = line.split_once(key) else { return line };
        let rest = after.find(ends).map_or("", |end| &after[end..]);
        format!("{before}{key}{name}{rest}")
    };
    let line = replace(line.into(), "\"id\":\"", "<id>", |c| c == '"');
    replace(line, "\"created\":", "<time>", |c| !c.is_ascii_digit())
}

/// `thread 'main' (4711) panicked` without the number.
fn without_thread_ids(line: &str) -> String {
    let Some((before, after)) = line.split_once("' (") else { return line.into() };
    let Some((id, rest)) = after.split_once(") panicked") else { return line.into() };
    let is_id = before.starts_with("thread '") && id.chars().all(|c| c.is_ascii_digit());
    if is_id { format!("{before}' panicked{rest}") } else { line.into() }
}

/// What remains of a `cargo test`: of each program that ran a test, the tests in order of their names
/// and the sum; behind that what failing tests said.
pub fn tests(lines: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    let mut tests: Vec<String> = Vec::new();
    let mut said: Vec<String> = Vec::new();
    let mut failures = false;
    for line in lines {
        if let Some(sums) = line.strip_prefix("test result: ") {
            let sums: Vec<&str> = sums.split("; ").take(2).collect();
            if !tests.is_empty() {
                if !kept.is_empty() {
                    kept.push(String::new());
                }
                tests.sort();
                kept.append(&mut tests);
                kept.append(&mut said);
                kept.extend([String::new(), format!("test result: {}", sums.join("; "))]);
            }
            failures = false;
        } else if line.starts_with("test ") && line.contains(" ... ") {
            tests.push(line);
        } else if line == "failures:" {
            // First what they said, then, under a second such line, only their names.
            failures = said.is_empty();
        } else if failures && !line.starts_with("note: run with `RUST_BACKTRACE") {
            said.push(line);
        }
    }
    kept
}
