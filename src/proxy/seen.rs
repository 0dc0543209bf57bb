//! A request as admission sees it.

use super::connection::Connection;
use crate::admission::RequestView;
use crate::http1::Request;

/// What a client has sent, and what is known of its connection.
pub struct Seen<'a> {
    /// The request.
    pub request: Request<'a>,
    /// What it came over.
    pub connection: &'a Connection,
}

impl RequestView for Seen<'_> {
    fn method(&self) -> &str {
        self.request.method()
    }

    fn scheme(&self) -> &'static str {
        self.connection.scheme()
    }

    fn authority(&self) -> Option<&str> {
        self.request.authority()
    }

    fn path(&self) -> &str {
        self.request.path()
    }

    fn query(&self) -> Option<&str> {
        self.request.query()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.request.field(name.as_bytes())
    }

    fn for_each_header<'v>(&'v self, name: &str, visit: &mut dyn FnMut(&'v [u8])) {
        for (known, value) in self.request.fields() {
            if known.eq_ignore_ascii_case(name.as_bytes()) {
                visit(value);
            }
        }
    }

    fn tls_subject(&self) -> Option<&str> {
        self.connection.facts.certificate.as_ref()?.subject.as_deref()
    }

    fn tls_fingerprint(&self) -> Option<&str> {
        self.connection.facts.certificate.as_ref().map(|certificate| &*certificate.fingerprint)
    }
}
