//! One request for the rules, and its answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, USER_AGENT,
};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use tokio::runtime::Builder;

use crate::config::{Follow, MAX_FOLLOWED_BYTES};
use crate::http_client::{ClientResponse, ConnectTarget, Destination, HttpClient, HttpVersion};
use crate::tls::{self, Alpn, UpstreamSettings};

/// How long an answer may take, connecting and its body included.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a tag. A longer one is none.
const MAX_TAG_BYTES: usize = 1_024;

const AGENT: &str = concat!("sluicegate/", env!("CARGO_PKG_VERSION"));

/// Asks for rules.
pub struct Fetcher {
    client: HttpClient,
    follow: Follow,
}

/// An answer that is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// The text still has the tag that was sent.
    Same,
    /// The text.
    Text {
        /// All of it.
        text: String,
        /// Its tag.
        etag: Option<String>,
    },
}

impl Fetcher {
    /// One that asks at this address.
    ///
    /// # Errors
    /// In words: TLS cannot be set up.
    pub fn new(follow: &Follow) -> Result<Self, String> {
        let tls = follow.ca.as_ref().map(|roots| {
            let settings = UpstreamSettings { roots: Some(roots.clone()), server_name: None, alpn: Alpn::Nothing };
            tls::upstream(&settings).map(Arc::new).map_err(|error| error.to_string())
        });
        // Each request has a connection of its own: nobody looks after one between two of them.
        let destination =
            Destination { way: ConnectTarget::AsNamed, speaks: HttpVersion::Http1, tls: tls.transpose()? };
        let client = HttpClient::new(&destination, MAX_FOLLOWED_BYTES).map_err(|error| error.to_string())?;
        Ok(Self { client, follow: follow.clone() })
    }

    /// Asks for the text, unless it has this tag. Blocks until the answer is here, or is late.
    ///
    /// # Errors
    /// In words, without secrets: there is no answer, or none that is a text.
    pub fn fetch(&self, etag: Option<&str>) -> Result<Fetched, String> {
        let etag = etag.and_then(|etag| HeaderValue::from_str(etag).ok());
        let has_tag = etag.is_some();
        let request = self.request(etag)?;
        // It ends with the answer, and with it the connection. A name server that does not answer is not waited for.
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let answer = runtime.block_on(self.client.send(request, TIMEOUT)).map_err(|error| error.to_string());
        runtime.shutdown_background();
        read(answer?, has_tag)
    }

    fn request(&self, etag: Option<HeaderValue>) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::get(self.follow.follow.uri().clone())
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, "application/toml, text/plain;q=0.9, */*;q=0.1")
            .header(CONNECTION, "close");
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        if let Some(token) = self.follow.token()? {
            let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| "the token is none")?;
            bearer.set_sensitive(true);
            request = request.header(AUTHORIZATION, bearer);
        }
        request.body(Full::default()).map_err(|error| error.to_string())
    }
}

fn read(answer: ClientResponse, has_tag: bool) -> Result<Fetched, String> {
    match answer.status {
        StatusCode::NOT_MODIFIED if has_tag => return Ok(Fetched::Same),
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(format!("status {}: see token_file of [rules]", answer.status.as_u16()));
        }
        status if status.is_redirection() && status != StatusCode::NOT_MODIFIED => {
            let status = status.as_u16();
            return Err(format!("status {status}: redirects are not followed; write the address that has the text"));
        }
        status => return Err(format!("status {} instead of 200", status.as_u16())),
    }
    if !answer.is_whole {
        let is_full = answer.body.len() >= MAX_FOLLOWED_BYTES;
        return Err(
            if is_full { "the text is larger than 1 MiB" } else { "the text broke off, or was too slow" }.into()
        );
    }
    if answer.headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return Err("the text is compressed, which was not asked for".into());
    }
    let media = answer.headers.get(CONTENT_TYPE).and_then(|media| media.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case("text/html") || media.to_ascii_lowercase().ends_with("json") {
        return Err(format!("the answer is {media}, no TOML; another gateway has its text at /api/v1/config/text"));
    }
    let etag = answer.headers.get(ETAG).and_then(|etag| etag.to_str().ok());
    let etag = etag.filter(|etag| (1..=MAX_TAG_BYTES).contains(&etag.len())).map(str::to_owned);
    let text = String::from_utf8(answer.body.into()).map_err(|_| "the text is not UTF-8")?;
    Ok(Fetched::Text { text, etag })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, fields: &[(&'static str, &'static str)], body: &'static [u8]) -> ClientResponse {
        let mut headers = http::HeaderMap::new();
        for (name, value) in fields {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        let status = StatusCode::from_u16(status).unwrap();
        ClientResponse { status, headers, body: Bytes::from_static(body), is_whole: true }
    }

    #[test]
    fn an_answer_is_a_text_or_says_why_it_is_none() {
        let text = |etag: Option<&str>| Ok(Fetched::Text { text: "a".into(), etag: etag.map(str::to_owned) });
        assert_eq!(read(answer(200, &[("etag", "\"1\"")], b"a"), false), text(Some("\"1\"")));
        assert_eq!(read(answer(200, &[], b"a"), true), text(None));
        assert_eq!(read(answer(200, &[("etag", "")], b"a"), true), text(None));
        assert_eq!(read(answer(304, &[], b""), true), Ok(Fetched::Same));
        let broken = ClientResponse { is_whole: false, ..answer(200, &[], b"a") };
        let full = Bytes::from(vec![b'a'; MAX_FOLLOWED_BYTES]);
        let larger = ClientResponse { is_whole: false, body: full, ..answer(200, &[], b"") };
        for (answer, said) in [
            (answer(304, &[], b""), "status 304 instead of 200"),
            (answer(401, &[], b""), "status 401: see token_file of [rules]"),
            (answer(403, &[], b""), "status 403: see token_file of [rules]"),
            (
                answer(302, &[("location", "/s3cret")], b""),
                "status 302: redirects are not followed; write the address that has the text",
            ),
            (answer(206, &[], b"a"), "status 206 instead of 200"),
            (answer(503, &[], b""), "status 503 instead of 200"),
            (
                answer(200, &[("content-type", "application/json; charset=utf-8")], b"{}"),
                "the answer is application/json, no TOML; another gateway has its text at /api/v1/config/text",
            ),
            (
                answer(200, &[("content-type", "text/html")], b"<p>"),
                "the answer is text/html, no TOML; another gateway has its text at /api/v1/config/text",
            ),
            (answer(200, &[("content-encoding", "gzip")], b"a"), "the text is compressed, which was not asked for"),
            (answer(200, &[], b"\xff"), "the text is not UTF-8"),
            (broken, "the text broke off, or was too slow"),
            (larger, "the text is larger than 1 MiB"),
        ] {
            assert_eq!(read(answer, false), Err(said.to_owned()));
        }
    }
}
