//! The changes that an operator makes to messages on their way: fields, paths, answers. Plain data, and what it does to
//! bytes.
//!
//! Its parts: [`Template`], a text with variables; [`FieldEdits`], which fields are set, added and removed;
//! [`Rewrite`], another path for the server; [`PathRegex`], an expression over paths. It knows no request, only
//! [`Values`], which says what a variable stands for; it reads no file and writes no message.
//!
//! Invariants: a template that exists names variables that exist where it is used; what a variable stands for is escaped
//! for the place where it goes, so no client writes markup, fields or path segments by it. Callers: `config` makes these,
//! `proxy` uses them.

mod fields;
mod path_regex;
mod rewrite;
mod template;
mod variable;

pub use fields::{FieldEdits, is_same_field};
pub use path_regex::{Groups, PathRegex, PathRegexError};
pub use rewrite::{Rewrite, RewriteTarget, Rewritten, Spellings};
pub use template::{Escape, Template, TemplateError, TemplateFault, Values};
pub use variable::{Scope, Variable};
