#![no_main]
//! One head, of a request or a response.

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluicegate_fuzz::properties::head(data));
