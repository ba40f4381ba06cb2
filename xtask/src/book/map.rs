//! The map of the exercises: for each layer a picture of what builds on what, drawn from `course/needs.toml`.
//!
//! Exercises stand below each other in the order of the course. An arc leads from each exercise to those that build on
//! it directly.

use std::path::Path;

use anyhow::{Context, Result};
use course::needs::Needs;
use course::svg::{BLUE, GOLD, Svg};
use course::workspace::Workspace;
use course_marks::{Exercise, Layer};

/// Height of a line, and what stands above the first one.
const LINE: i32 = 32;
const TOP: i32 = 58;
/// Where the boxes begin; arcs are to the left of it.
const LEFT: i32 = 150;
const BOX: i32 = 150;

/// File names and pictures of all layers.
pub fn pictures(workspace: &Workspace) -> Result<Vec<(String, String)>> {
    let needs = Needs::read(&workspace.root)?;
    let layers = workspace.members.iter().map(|member| &member.layer);
    Ok(layers.map(|layer| (format!("map-{}.svg", layer.id), draw(layer, &needs))).collect())
}

/// Writes the pictures into a directory.
pub fn write(workspace: &Workspace, dir: &Path) -> Result<()> {
    for (name, svg) in pictures(workspace)? {
        let path = dir.join(name);
        std::fs::write(&path, svg).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn draw(layer: &Layer, needs: &Needs) -> String {
    let exercises = &layer.exercises;
    let mut svg = Svg::new(TOP + LINE * exercises.len() as i32 + 12);
    svg.legend(LEFT, 16, GOLD, "main track");
    svg.legend(LEFT + 140, 16, BLUE, "side track");
    let middle = |at: usize| TOP + LINE * at as i32 + 13;
    let mut edges = Vec::new();
    for (at, exercise) in exercises.iter().enumerate() {
        let direct = needs.of(&exercise.id).unwrap_or_default();
        for need in &direct {
            let from = exercises.iter().position(|e| e.id == *need).unwrap_or(at);
            edges.push((from, at));
        }
        let fill = if exercise.track.is_some() { BLUE } else { GOLD };
        let y = TOP + LINE * at as i32;
        svg.label([LEFT, y, BOX, 26], fill, &exercise.id);
        svg.text(LEFT + BOX + 12, y + 18, &described(exercise));
    }
    for (from, to) in &edges {
        // The longer an arc, the wider, so that arcs with the same ends do not lie on each other.
        let width = (10 + 7 * (to - from) as i32).min(LEFT - 12);
        svg.arc(LEFT - 1, (middle(*from) + 4, middle(*to) - 4), width);
    }
    let said = exercises.iter().map(|e| {
        let direct = needs.of(&e.id).unwrap_or_default();
        match direct.as_slice() {
            [] => format!("{} needs no other exercise", e.id),
            some => format!("{} builds on {}", e.id, some.join(", ")),
        }
    });
    let description = said.collect::<Vec<_>>().join("; ") + ".";
    svg.finish(&format!("Exercises of {}, and what builds on what", layer.package), &description)
}

/// `Layouts: shapes and strides, 85 min`, and the side track.
fn described(exercise: &Exercise) -> String {
    let Exercise { title, minutes, track, .. } = exercise;
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    match track {
        Some(track) => format!("{title}, {minutes} min ({track})"),
        None => format!("{title}, {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use course::shell::root;

    #[test]
    fn the_pictures_in_the_book_are_those_that_are_drawn() {
        let workspace = Workspace::open().unwrap();
        for (name, svg) in pictures(&workspace).unwrap() {
            let file = root().join("book/src/img").join(&name);
            let there = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(there == svg, "{name} is another one: `cargo x book map` draws it");
        }
    }
}
