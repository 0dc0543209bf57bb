//! The codec beside independent parsers, and its properties on what the fuzzers found worth keeping.

use sluicegate_http1 as http1;

mod corpus;
mod differential;
mod properties;
