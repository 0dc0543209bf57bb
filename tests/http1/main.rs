//! The codec beside independent parsers, and its properties on what the fuzzers found worth keeping.

use sluicegate::http1;

mod corpus;
mod differential;
mod properties;
