//! One request for the keys of an issuer, and its answer.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, USER_AGENT};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::Full;
use tokio::runtime::Builder;

use crate::http_client::{ClientResponse, ConnectTarget, Destination, HttpClient, HttpVersion};
use crate::jwt::{KeySet, MAX_JWKS_BYTES};
use crate::time::Span;

/// How long an answer may take, connecting and its body included.
const TIMEOUT: Duration = Duration::from_secs(5);

const AGENT: &str = concat!("sluicegate/", env!("CARGO_PKG_VERSION"));

/// Keys, and how long they hold if the answer says it.
pub(super) type FetchedKeys = (KeySet, Option<Span>);

/// Asks for keys.
pub(super) struct KeyFetcher {
    client: HttpClient,
    uri: Uri,
}

impl KeyFetcher {
    /// One that asks at this address.
    ///
    /// # Errors
    /// In words: TLS cannot be set up.
    pub(super) fn new(uri: &Uri) -> Result<Self, String> {
        // Each request has a connection of its own: it is long until the next.
        let destination = Destination { way: ConnectTarget::AsNamed, speaks: HttpVersion::Http1, tls: None };
        let client = HttpClient::new(&destination, MAX_JWKS_BYTES).map_err(|error| error.to_string())?;
        Ok(Self { client, uri: uri.clone() })
    }

    /// Asks for the keys. Blocks until the answer is here, or is late.
    ///
    /// # Errors
    /// In words: there is no answer, or none that is a set of keys.
    pub(super) fn fetch(&self) -> Result<FetchedKeys, String> {
        let request = Request::get(self.uri.clone())
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, "application/jwk-set+json, application/json;q=0.9")
            .header(CONNECTION, "close")
            .body(Full::<Bytes>::default())
            .map_err(|error| error.to_string())?;
        // It ends with the answer, and with it the connection. A name server that does not answer is not waited for.
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let answer = runtime.block_on(self.client.send(request, TIMEOUT)).map_err(|error| error.to_string());
        runtime.shutdown_background();
        read(&answer?)
    }
}

fn read(answer: &ClientResponse) -> Result<FetchedKeys, String> {
    let status = answer.status;
    if status.is_redirection() {
        return Err(format!(
            "status {}: redirects are not followed; write the address that has the keys",
            status.as_u16()
        ));
    }
    if status != StatusCode::OK {
        return Err(format!("status {} instead of 200", status.as_u16()));
    }
    if !answer.is_whole {
        let is_full = answer.body.len() >= MAX_JWKS_BYTES;
        return Err(if is_full {
            "the answer is larger than 256 KiB"
        } else {
            "the answer broke off, or was too slow"
        }
        .into());
    }
    if answer.headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return Err("the answer is compressed, which was not asked for".into());
    }
    let keys = KeySet::parse(&answer.body).map_err(|error| format!("the answer is no set of keys: {error}"))?;
    Ok((keys, max_age(&answer.headers)))
}

/// How long the answer holds: RFC 9111, 5.2.2.1.
fn max_age(headers: &HeaderMap) -> Option<Span> {
    let lines = headers.get_all(CACHE_CONTROL).into_iter().filter_map(|line| line.to_str().ok());
    let mut directives = lines.flat_map(|line| line.split(',')).map(str::trim);
    let secs = directives.find_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        let value = value.trim_matches('"');
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        (name.eq_ignore_ascii_case("max-age") && is_number).then(|| value.parse().unwrap_or(u64::MAX))
    });
    // More than a century is as good as that.
    secs.map(|secs: u64| Span::from_secs(secs.min(1 << 32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str =
        "{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}";

    fn answer(status: u16, fields: &[(&'static str, &'static str)], body: &str) -> ClientResponse {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, http::HeaderValue::from_static(value));
        }
        let (status, body) = (StatusCode::from_u16(status).unwrap(), Bytes::copy_from_slice(body.as_bytes()));
        ClientResponse { status, headers, body, is_whole: true }
    }

    #[test]
    fn an_answer_is_a_set_of_keys_or_says_why_it_is_none() {
        let good = read(&answer(200, &[], KEYS)).unwrap();
        assert_eq!((good.0.len(), good.1), (1, None));
        let broken = ClientResponse { is_whole: false, ..answer(200, &[], KEYS) };
        let larger = ClientResponse { is_whole: false, ..answer(200, &[], &" ".repeat(MAX_JWKS_BYTES)) };
        for (answer, said) in [
            (
                answer(302, &[("location", "/keys")], ""),
                "status 302: redirects are not followed; write the address that has the keys",
            ),
            (answer(304, &[], ""), "status 304: redirects are not followed; write the address that has the keys"),
            (answer(206, &[], KEYS), "status 206 instead of 200"),
            (answer(500, &[], KEYS), "status 500 instead of 200"),
            (answer(200, &[("content-encoding", "gzip")], KEYS), "the answer is compressed, which was not asked for"),
            (answer(200, &[], "<html>"), "the answer is no set of keys: it is no JSON"),
            (answer(200, &[], "{\"keys\":[]}"), "the answer is no set of keys: it has no key"),
            (broken, "the answer broke off, or was too slow"),
            (larger, "the answer is larger than 256 KiB"),
        ] {
            assert_eq!(read(&answer).unwrap_err(), said);
        }
    }

    #[test]
    fn an_answer_says_how_long_it_holds() {
        for (fields, secs) in [
            (&[("cache-control", "public, max-age=600")][..], Some(600)),
            (&[("cache-control", "MAX-AGE=\"7\"")], Some(7)),
            (&[("cache-control", "no-store"), ("cache-control", "max-age=9")], Some(9)),
            (&[("cache-control", "max-age=99999999999999999999999")], Some(1 << 32)),
            (&[("cache-control", "max-age=")], None),
            (&[("cache-control", "max-age=-1, s-maxage=5")], None),
            (&[("cache-control", "max-age")], None),
            (&[], None),
        ] {
            let holds = read(&answer(200, fields, KEYS)).unwrap().1;
            assert_eq!(holds, secs.map(Span::from_secs), "{fields:?}");
        }
    }
}
