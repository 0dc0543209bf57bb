//! The rooms `time` and `limiter` once more, on loom's locks if built with `--cfg loom`: for the models in `tests/`, and
//! for nobody else.

#[path = "../../src/limiter/mod.rs"]
pub mod limiter;
#[path = "../../src/time/mod.rs"]
pub mod time;
