//! The pictures of the chapter "One token, end to end" show what the tiny model computes.

use std::path::Path;

use nano::toy::Toy;

#[path = "../examples/drawing/mod.rs"]
mod drawing;

#[test]
fn the_pictures_of_the_book_are_those_of_the_program() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../book/src/img");
    for (name, svg) in drawing::pictures(&Toy::load()) {
        let file = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        // Without the two files in full: they are long.
        assert!(file == svg, "{name} is old: run `cargo run -p nano --example pictures`");
    }
}
