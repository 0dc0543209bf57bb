#![no_main]
//! One chunked body.

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluicegate_fuzz::properties::chunk(data));
