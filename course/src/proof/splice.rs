//! Text alone: what is taken out of the source and put back is the source again.
//!
//! For every exercise, and for all of a layer together, the blank is made as `cargo x start` makes it and the bodies
//! are put back as a learner's walk does, in memory. That solving the exercises in order leads to the reference needs
//! no build.

use anyhow::{Context, Result, anyhow, ensure};
use course_marks::sources::SourceFile;
use course_marks::{Exercise, Language, MarkProblem, edit};

use crate::workspace::{Member, Workspace};

/// Takes every exercise out and puts it back. Returns the number of exercises.
///
/// # Errors
/// The first file and exercise where the text is not that of the reference again.
pub fn prove(workspace: &Workspace) -> Result<usize> {
    let mut exercises = 0;
    for member in &workspace.members {
        for file in member.sources()?.files {
            prove_file(member, &file)
                .with_context(|| format!("{}/{}", member.layer.package, file.path))?;
        }
        exercises += member.layer.exercises.len();
    }
    Ok(exercises)
}

fn prove_file(member: &Member, file: &SourceFile) -> Result<()> {
    let language = Language::of(&file.path);
    let all: Vec<&Exercise> = member.layer.exercises.iter().collect();
    let here: Vec<&Exercise> =
        all.iter().copied().filter(|e| file.regions.iter().any(|r| r.id == e.id)).collect();
    for exercise in &here {
        let blank = edit::blank(&file.text, language, &[exercise]).map_err(marks)?;
        ensure!(blank != file.text, "{} is blank already", exercise.id);
        let again = put_back(&blank, &file.text, exercise)?;
        ensure!(again == file.text, "{} is not what it was when it is put back", exercise.id);
    }
    // As a learner goes: from the starter, in the order of the course.
    let mut text = edit::blank(&file.text, language, &all).map_err(marks)?;
    for exercise in &here {
        text = put_back(&text, &file.text, exercise)?;
    }
    ensure!(text == file.text, "with all exercises put back it is not what it was");
    Ok(())
}

fn put_back(text: &str, reference: &str, exercise: &Exercise) -> Result<String> {
    let bodies = edit::bodies(reference, &exercise.id).map_err(marks)?;
    let spliced = edit::splice(text, &exercise.id, &bodies).map_err(marks)?;
    spliced.with_context(|| format!("{}: the marks are not those of the reference", exercise.id))
}

fn marks((line, problem): (usize, MarkProblem)) -> anyhow::Error {
    anyhow!("line {}: {problem}", line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exercise_of_the_course_is_put_back_byte_for_byte() {
        let workspace = Workspace::open().unwrap();
        let exercises = prove(&workspace).unwrap();
        assert!(exercises > 50, "only {exercises} exercises: is this test reading them?");
    }

    #[test]
    fn a_text_that_is_not_put_back_is_found() {
        let workspace = Workspace::open().unwrap();
        let member = &workspace.members[0];
        let file = member.sources().unwrap().files.remove(0);
        // Lines are what is put back: other line ends get lost.
        let text = file.text.replace('\n', "\r\n");
        let error = prove_file(member, &SourceFile { text, ..file }).unwrap_err();
        assert!(error.to_string().contains("not what it was"), "{error:#}");
    }
}
