//! The rooms `time` and `limiter` once more, with the words below them, on loom's locks if built with `--cfg loom`: for the models in `tests/`, and
//! for nobody else.

#[macro_use]
#[path = "../../src/words.rs"]
pub mod words;

#[path = "../../src/limiter/mod.rs"]
pub mod limiter;
#[path = "../../src/time/mod.rs"]
pub mod time;
