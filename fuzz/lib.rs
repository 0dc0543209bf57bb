//! The codecs and their properties, alone: the gateway's other rooms need not be instrumented.

pub use sluicegate_http1 as http1;
pub use sluicegate_http2 as http2;
pub use sluicegate_proxy_protocol as proxy_protocol;
pub use sluicegate_time as time;

#[path = "../crates/http1/tests/http1/properties.rs"]
pub mod properties;

#[path = "../crates/http2/tests/http2/properties.rs"]
pub mod http2_properties;

#[path = "../crates/proxy_protocol/tests/proxy_protocol/properties.rs"]
pub mod proxy_protocol_properties;
