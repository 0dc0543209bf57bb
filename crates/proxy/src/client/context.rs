//! A request as admission sees it.

use super::tokens::{TokenMeans, visit_claim};
use crate::headers::passed;
use std::net::IpAddr;

use sluicegate_admission::{
    BodyFacts, Clients, JwtClaim, Missing, RequestView, bearer_token, is_of_a_proxy, passes_for,
};
use sluicegate_http1::Request;
use sluicegate_tls::PeerCertificate;

/// The request that a client has sent, and what is known of its connection. Of its fields only those that go further are
/// there: no key, cost, plan, condition or text is made of what no server would see.
#[derive(Clone, Copy)]
pub struct RequestContext<'a> {
    /// The request.
    pub request: Request<'a>,
    /// The connection that it came over.
    pub origin: Origin<'a>,
    /// The rules of who is believed.
    pub clients: &'a Clients,
    /// The fields that were read of its body; `None`: none was read yet.
    pub body: Option<&'a BodyFacts>,
    /// The means to verify tokens; `None`: no key asks for one.
    pub tokens: Option<TokenMeans<'a>>,
}

/// The connection that a request came over, as far as admission asks.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The other end of the connection.
    pub peer: IpAddr,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Whether the word of a proxy in front is believed, of a request that a replay vouches for; `None`: the rules say.
    pub trusts: Option<bool>,
    /// The certificate that the client has shown, and that was verified.
    pub certificate: Option<&'a PeerCertificate>,
}

impl<'a> RequestContext<'a> {
    /// The first value of a field, whose name is in lower case.
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        if name == "host" {
            // Where the target names one, it is that one which goes to the server.
            return self.request.authority().map(str::as_bytes);
        }
        if self.is_address_header(name) {
            let mut first = None;
            self.for_each_address_line(name, &mut |line| first = first.or(Some(line)));
            return first;
        }
        passed::field(&self.request, name.as_bytes()).filter(|_| self.is_believed(name))
    }

    /// Whether `address_header` names it, or what some servers take for it.
    #[inline]
    fn is_address_header(&self, name: &str) -> bool {
        self.clients.named_header().is_some_and(|named| passes_for(name.as_bytes(), named.as_bytes()))
    }

    /// Visits the lines of the field that `address_header` names, of a trusted peer alone. Such a field goes to servers
    /// whatever `Connection` nominates; one that only some servers take for it does not.
    fn for_each_address_line(&self, name: &str, visit: &mut dyn FnMut(&'a [u8])) {
        if self.clients.named_header() == Some(name) && self.is_trusted() {
            passed::address_lines(&self.request, name.as_bytes()).for_each(visit);
        }
    }

    fn is_trusted(&self) -> bool {
        self.origin.trusts.unwrap_or_else(|| self.clients.trusts(self.origin.peer))
    }

    /// The word of a proxy in front is cut where the peer is none.
    fn is_believed(&self, name: &str) -> bool {
        let is_of_a_proxy = || is_of_a_proxy(name.as_bytes());
        match self.origin.trusts {
            None => !is_of_a_proxy() || self.clients.trusts(self.origin.peer),
            // The client is known.
            Some(_) if matches!(name, "forwarded" | "x-forwarded-for" | "x-real-ip") => false,
            Some(trusts) => trusts || !is_of_a_proxy(),
        }
    }
}

impl RequestView for RequestContext<'_> {
    fn method(&self) -> &str {
        self.request.method()
    }

    fn scheme(&self) -> &'static str {
        self.origin.scheme
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
        self.field(name)
    }

    fn for_each_header<'v>(&'v self, name: &str, visit: &mut dyn FnMut(&'v [u8])) {
        if name == "host" {
            self.field(name).into_iter().for_each(visit);
        } else if self.is_address_header(name) {
            self.for_each_address_line(name, visit);
        } else if self.is_believed(name) {
            passed::lines(&self.request, name.as_bytes(), visit);
        }
    }

    fn sole_header(&self, name: &str, same: &dyn Fn(&[u8], &[u8]) -> bool) -> Option<&[u8]> {
        if name == "host" {
            return Some(self.field(name).unwrap_or_default().trim_ascii());
        }
        if self.is_address_header(name) {
            let (mut first, mut is_sole) = (None, true);
            self.for_each_address_line(name, &mut |line| {
                is_sole &= same(first.get_or_insert(line.trim_ascii()), line.trim_ascii());
            });
            return is_sole.then_some(first.unwrap_or_default());
        }
        if !self.is_believed(name) {
            return Some(&[]);
        }
        // Once over all fields: keys are made of them with each request.
        passed::sole(&self.request, name.as_bytes(), same)
    }

    fn body(&self) -> Option<&BodyFacts> {
        self.body
    }

    fn jwt_claim(&self, claim: &JwtClaim, client: u64, visit: &mut dyn FnMut(&str)) -> Result<(), Missing> {
        let field = self.sole_header("authorization", &<[u8]>::eq).ok_or(Missing::Unusable)?;
        let token = bearer_token(field).ok_or(Missing::Absent)?;
        visit_claim(self.tokens, (token, client), claim, visit)
    }

    fn tls_subject(&self) -> Option<&str> {
        self.origin.certificate?.subject.as_deref()
    }

    fn tls_fingerprint(&self) -> Option<&str> {
        self.origin.certificate.map(|certificate| &*certificate.fingerprint)
    }
}
