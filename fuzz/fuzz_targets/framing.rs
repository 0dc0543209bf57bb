#![no_main]
//! A whole connection: pipelined requests, or the responses to them.

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluicegate_fuzz::properties::framing_of_a_connection(data));
