//! Taking the body of an exercise out of a source file, and putting it back.

use crate::marks::{self, Region};
use crate::{Exercise, Language, MarkProblem};

/// What a blank says when it is reached. [`blamed`] finds it again in the output of a test.
pub fn todo_message(exercise: &Exercise) -> String {
    format!("exercise {}, chapter {}", exercise.id, exercise.chapter)
}

/// The exercises whose blanks were reached, according to what a test printed, in order of mention.
pub fn blamed(output: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for after in output.split("not yet implemented: exercise ").skip(1) {
        let id = after.split(',').next().unwrap_or_default();
        if marks::is_id(id) && !found.iter().any(|f| f == id) {
            found.push(id.into());
        }
    }
    found
}

/// The text with every region of these exercises replaced by a [`Language::todo`]. The marks stay.
///
/// # Errors
/// As [`marks::regions`].
pub fn blank(
    text: &str,
    language: Language,
    exercises: &[&Exercise],
) -> Result<String, (usize, MarkProblem)> {
    let lines: Vec<&str> = text.lines().collect();
    replace(text, |region| {
        let exercise = exercises.iter().find(|e| e.id == region.id)?;
        // A todo! that ends a block is its value, whatever type that must have. Elsewhere it is a
        // statement.
        let mut rest = lines[region.end + 1..].iter().map(|l| l.trim());
        let next = rest.find(|l| !l.is_empty() && !l.starts_with("//"));
        let ends = next.is_none_or(|l| l.starts_with('}'));
        let semicolon = if ends && language.has_block_values() { "" } else { ";" };
        let indent = indent_of(lines[region.begin]);
        Some(vec![format!("{indent}{}{semicolon}", language.todo(exercise))])
    })
}

/// The lines between the marks of every region of an exercise, in order.
///
/// # Errors
/// As [`marks::regions`].
pub fn bodies(text: &str, id: &str) -> Result<Vec<String>, (usize, MarkProblem)> {
    let lines: Vec<&str> = text.lines().collect();
    let of_it = |r: &Region| (r.id == id).then(|| lines[r.begin + 1..r.end].join("\n"));
    Ok(marks::regions(text)?.iter().filter_map(of_it).collect())
}

/// The text with the bodies of an exercise put in, one for each of its regions, in order.
/// `None` when there are not as many regions as bodies.
///
/// # Errors
/// As [`marks::regions`].
pub fn splice(
    text: &str,
    id: &str,
    bodies: &[String],
) -> Result<Option<String>, (usize, MarkProblem)> {
    if marks::regions(text)?.iter().filter(|r| r.id == id).count() != bodies.len() {
        return Ok(None);
    }
    let mut bodies = bodies.iter();
    let body_for = |region: &Region| {
        let body = if region.id == id { bodies.next() } else { None };
        body.map(|b| b.lines().map(str::to_string).collect())
    };
    replace(text, body_for).map(Some)
}

/// Replace the lines between the marks of the regions for which there are new ones.
fn replace(
    text: &str,
    mut new: impl FnMut(&Region) -> Option<Vec<String>>,
) -> Result<String, (usize, MarkProblem)> {
    let mut out = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    for region in marks::regions(text)? {
        while let Some((_, line)) = lines.next_if(|(n, _)| *n <= region.begin) {
            out.push(line.to_string());
        }
        if let Some(body) = new(&region) {
            out.extend(body);
            while lines.next_if(|(n, _)| *n < region.end).is_some() {}
        }
    }
    out.extend(lines.map(|(_, line)| line.to_string()));
    let mut joined = out.join("\n");
    if text.ends_with('\n') {
        joined.push('\n');
    }
    Ok(joined)
}

/// The white space a line begins with.
pub(crate) fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
fn a() -> u8 {
    // exercise l1.a
    let one = 1;
    one
    // end of exercise
}
fn b(n: u8) {
    for i in 0..n {
        // exercise l1.b
        print(i);
        // end of exercise
        count();
    }
}
";

    fn exercise(id: &str) -> Exercise {
        Exercise {
            id: id.into(),
            title: "T".into(),
            chapter: "l1/c.md".into(),
            minutes: 1,
            track: None,
            nudges: vec![],
            hints: vec!["h".into()],
            gates: vec![],
        }
    }

    #[test]
    fn a_blank_is_a_value_at_the_end_of_a_block_and_a_statement_elsewhere() {
        let both = [&exercise("l1.a"), &exercise("l1.b")];
        let blanked = blank(SOURCE, Language::Rust, &both).unwrap();
        let expected = "\
fn a() -> u8 {
    // exercise l1.a
    todo!(\"exercise l1.a, chapter l1/c.md\")
    // end of exercise
}
fn b(n: u8) {
    for i in 0..n {
        // exercise l1.b
        todo!(\"exercise l1.b, chapter l1/c.md\");
        // end of exercise
        count();
    }
}
";
        assert_eq!(blanked, expected);
    }

    #[test]
    fn a_blank_in_a_kernel_is_always_a_statement() {
        let source = "__device__ float f() {\n    // exercise l0.a\n    return 1;\n    // end of exercise\n}\n";
        let blanked = blank(source, Language::Cuda, &[&exercise("l0.a")]).unwrap();
        assert!(
            blanked.contains("    STRATA_TODO(\"exercise l0.a, chapter l1/c.md\");\n"),
            "{blanked}"
        );
    }

    #[test]
    fn what_is_taken_out_and_put_back_is_the_source_again() {
        let only_a = blank(SOURCE, Language::Rust, &[&exercise("l1.a")]).unwrap();
        assert!(only_a.contains("print(i)") && !only_a.contains("let one"));
        let bodies = bodies(SOURCE, "l1.a").unwrap();
        assert_eq!(splice(&only_a, "l1.a", &bodies).unwrap().as_deref(), Some(SOURCE));
        assert_eq!(splice(&only_a, "l1.a", &[]).unwrap(), None, "one region, no body");
    }

    #[test]
    fn the_blank_that_a_test_ran_into_is_read_from_its_output() {
        let output = "thread 'x' panicked at src/a.rs:1:2:\n\
            not yet implemented: exercise l1.rms_norm, chapter l1/c.md\nnote: run with\n";
        assert_eq!(blamed(output), ["l1.rms_norm"]);
        assert_eq!(blamed("exercise l1.rms_norm"), Vec::<String>::new());
        assert_eq!(blamed(&output.repeat(2)), ["l1.rms_norm"]);
    }
}
