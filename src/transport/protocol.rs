words! {
    /// The protocol that a server speaks.
    pub enum Protocol {
        /// HTTP/1.1.
        Http1 = "http1",
        /// HTTP/2: by ALPN over TLS, else by prior knowledge (RFC 9113, 3.3).
        Http2 = "h2",
    }
}

#[allow(clippy::derivable_impls, reason = "a variant of words! has no attribute")]
impl Default for Protocol {
    fn default() -> Self {
        Self::Http1
    }
}
