//! Writes the pictures of the chapter "One token, end to end": `cargo run -p nano --example pictures`.
//!
//! All numbers in them are those of the tiny model. The argument is a directory, `book/src/img` by default.

use std::path::PathBuf;

use nano::toy::Toy;

mod drawing;

fn main() -> std::io::Result<()> {
    let dir =
        std::env::args_os().nth(1).map_or_else(|| PathBuf::from("book/src/img"), PathBuf::from);
    for (name, svg) in drawing::pictures(&Toy::load()) {
        std::fs::write(dir.join(name), svg)?;
    }
    Ok(())
}
