#![no_main]
//! One connection of HTTP/2: what its client sends, cut as the input says, and served as it comes.

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluicegate_fuzz::http2_properties::conversation(data));
