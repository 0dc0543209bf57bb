#![no_main]
//! The beginning of a connection on which a PROXY header has to come.

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluicegate_fuzz::proxy_protocol_properties::header(data));
