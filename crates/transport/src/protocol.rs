words! {
    /// The protocol that a server speaks.
    pub enum Protocol default Http1 {
        /// HTTP/1.1.
        Http1 = "http1",
        /// HTTP/2: by ALPN over TLS, else by prior knowledge (RFC 9113, 3.3).
        Http2 = "h2",
    }
}
