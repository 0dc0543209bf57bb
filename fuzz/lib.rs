//! The room `http1` and its properties, alone: the gateway's other rooms need not be instrumented.

#[path = "../src/http1/mod.rs"]
pub mod http1;

#[path = "../tests/http1/properties.rs"]
pub mod properties;
