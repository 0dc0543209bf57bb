//! Files read within a bound and without waiting, and files that are made or replaced as a whole or not at all.
//!
//! It knows no format and logs nothing: an error of the operating system goes to the caller, who has the words for it.

mod regular;
mod replace;

pub use regular::{open_regular, read_regular};
pub use replace::{beside, create, replace, replace_by, sync_directory_of};
