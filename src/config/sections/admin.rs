//! `[admin]`

use std::net::SocketAddr;

use crate::config::address;
use crate::config::kind::by;
use crate::config::section::{Declare, section};

section! {
    /// `[admin]`
    pub struct Admin, read as AdminKeys {
        /// Where it listens.
        address: SocketAddr = by(|node, _| address::listening(node, "127.0.0.1:9900"), SocketAddr::to_string)
            .required("\"127.0.0.1:9900\""),
    }
}
