//! Draws the pictures of `docs/algorithms.md` from its own configuration blocks, and prints its table.
//!
//! `cargo run --example pictures` writes `docs/pictures`. The time in them is made up, so they are always the same.

mod drawing;
mod offered;
mod page;

use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let text = fs::read_to_string(docs.join("algorithms.md"))?;
    let pictures = docs.join("pictures");
    fs::create_dir_all(&pictures)?;
    for rule in page::blocks(&text).into_iter().flat_map(page::limits) {
        let picture = drawing::draw(&rule);
        fs::write(pictures.join(format!("{}.svg", picture.name)), picture.svg)?;
        println!("{}", picture.row);
    }
    Ok(())
}
