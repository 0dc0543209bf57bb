//! The rooms `http1`, `http2` and `proxy_protocol` and their properties, alone: the gateway's other rooms need not be instrumented.

#[macro_use]
#[path = "../src/words.rs"]
pub mod words;

#[path = "../src/http1/mod.rs"]
pub mod http1;

#[path = "../tests/http1/properties.rs"]
pub mod properties;

#[path = "../src/http2/mod.rs"]
pub mod http2;

#[path = "../tests/http2/properties.rs"]
pub mod http2_properties;

#[path = "../src/proxy_protocol/mod.rs"]
pub mod proxy_protocol;

#[path = "../tests/proxy_protocol/properties.rs"]
pub mod proxy_protocol_properties;

#[path = "../src/time/mod.rs"]
pub mod time;
