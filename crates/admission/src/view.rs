use super::body::BodyFacts;
use super::jwt_claim::JwtClaim;
use super::spelling::Missing;

/// The parts of a request that admission reads: one implementation per protocol, in the proxy.
///
/// Nothing here is normalised: admission does that. Implementations answer from the bytes they hold; they allocate
/// nothing.
pub trait RequestView {
    /// The method as received; methods are case-sensitive.
    fn method(&self) -> &str;
    /// `http` or `https`.
    fn scheme(&self) -> &str;
    /// `host[:port]` as received, from the target if it names one, else from `Host` or `:authority`. `None` only where
    /// the request has none: one that is no text is `Some` of something that is no host, such as `"?"`.
    fn authority(&self) -> Option<&str>;
    /// The path as received, without the query; `/` where the target has none, `*` for the asterisk form.
    fn path(&self) -> &str;
    /// The part of the target behind its first `?`.
    fn query(&self) -> Option<&str>;
    /// The value of the first field line called `name`, which is lower case.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// Calls `visit` with the value of every field line called `name`, which is lower case, in order. It may keep them.
    fn for_each_header<'v>(&'v self, name: &str, visit: &mut dyn FnMut(&'v [u8]));
    /// The value, without spaces around it, that all field lines called `name` have, which is lower case: empty if there is
    /// none, `None` if they do not all have the `same`.
    fn sole_header(&self, name: &str, same: &dyn Fn(&[u8], &[u8]) -> bool) -> Option<&[u8]> {
        let first = self.header(name).unwrap_or_default().trim_ascii();
        let mut is_sole = true;
        self.for_each_header(name, &mut |line| is_sole &= same(first, line.trim_ascii()));
        is_sole.then_some(first)
    }
    /// The fields that were read of its body; `None`: none was read yet.
    fn body(&self) -> Option<&BodyFacts> {
        None
    }
    /// The subject of the certificate that the client has shown in its handshake, and that was verified.
    fn tls_subject(&self) -> Option<&str> {
        None
    }
    /// The SHA-256 fingerprint of that certificate, in lower case hex.
    fn tls_fingerprint(&self) -> Option<&str> {
        None
    }
    /// Calls `visit` with a claim of the token that the client of this number has sent, if it has one that may be believed.
    fn jwt_claim(&self, _: &JwtClaim, _client: u64, _visit: &mut dyn FnMut(&str)) -> Result<(), Missing> {
        Err(Missing::Absent)
    }
}

/// Whether it is the question that a browser asks before a request to another origin (Fetch standard, 3.3).
pub fn is_preflight<V: RequestView + ?Sized>(view: &V) -> bool {
    let has = |name| view.header(name).is_some();
    view.method() == "OPTIONS" && has("origin") && has("access-control-request-method")
}

/// A request made of owned parts, for what is not traffic: explaining a decision, simulating a log, tests, benches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainRequest {
    method: String,
    authority: Option<String>,
    path: String,
    query: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
    /// Subject and fingerprint.
    certificate: Option<(String, String)>,
    body: BodyFacts,
    /// Claims by the sources of keys.
    claims: Vec<(String, String)>,
}

impl PlainRequest {
    /// `target` is a path with or without a query: `/x?k=v`.
    pub fn new(method: &str, target: &str) -> Self {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (target, None),
        };
        Self {
            method: method.to_owned(),
            authority: None,
            path: path.to_owned(),
            query,
            headers: Vec::new(),
            certificate: None,
            body: BodyFacts::default(),
            claims: Vec::new(),
        }
    }

    /// With this authority, as a client would write it.
    pub fn host(mut self, authority: &str) -> Self {
        self.authority = Some(authority.to_owned());
        self
    }

    /// With the certificate of this subject and fingerprint, as [`RequestView`] has them.
    pub fn certificate(mut self, subject: &str, fingerprint: &str) -> Self {
        self.certificate = Some((subject.to_owned(), fingerprint.to_owned()));
        self
    }

    /// With these fields of a body.
    pub fn body(mut self, body: BodyFacts) -> Self {
        self.body = body;
        self
    }

    /// With a claim by the source of its key, such as `jwt:sub`, for which somebody vouches.
    pub fn claim(mut self, source: &str, value: &str) -> Self {
        self.claims.push((source.to_owned(), value.to_owned()));
        self
    }

    /// With one more field line.
    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_ascii_lowercase(), value.as_ref().to_owned()));
        self
    }
}

impl RequestView for PlainRequest {
    fn method(&self) -> &str {
        &self.method
    }

    fn scheme(&self) -> &'static str {
        "http"
    }

    fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_slice())
    }

    fn body(&self) -> Option<&BodyFacts> {
        Some(&self.body)
    }

    fn tls_subject(&self) -> Option<&str> {
        self.certificate.as_ref().map(|(subject, _)| subject.as_str())
    }

    fn tls_fingerprint(&self) -> Option<&str> {
        self.certificate.as_ref().map(|(_, fingerprint)| fingerprint.as_str())
    }

    fn jwt_claim(&self, claim: &JwtClaim, _: u64, visit: &mut dyn FnMut(&str)) -> Result<(), Missing> {
        let (_, value) = self.claims.iter().find(|(source, _)| source == claim.source()).ok_or(Missing::Absent)?;
        visit(value);
        Ok(())
    }

    fn for_each_header<'v>(&'v self, name: &str, visit: &mut dyn FnMut(&'v [u8])) {
        for (_, value) in self.headers.iter().filter(|(own, _)| own == name) {
            visit(value);
        }
    }
}
