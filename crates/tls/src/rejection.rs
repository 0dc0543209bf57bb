use std::fmt;

use rustls::{AlertDescription, CertificateError, Error};

use super::validity::Validity;

/// How many names of a certificate are told, and how long each may be: they are a stranger's.
const MAX_NAMES: usize = 5;
const MAX_NAME_CHARS: usize = 100;

/// Why there is no TLS with a server, in words that say what to do about it.
#[derive(Debug)]
pub struct Rejection(pub Error);

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Error::InvalidCertificate(error) => certificate(error, f),
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                f.write_str("the server speaks no protocol that it was asked for (ALPN)")
            }
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                f.write_str("the server asks for a certificate, and the gateway has none to show")
            }
            Error::AlertReceived(AlertDescription::UnrecognisedName) => {
                f.write_str("the server does not know the name that it was asked for; set `server_name`")
            }
            Error::AlertReceived(AlertDescription::ProtocolVersion) => {
                f.write_str("the server speaks neither TLS 1.2 nor TLS 1.3")
            }
            error => write!(f, "{error}"),
        }
    }
}

fn certificate(error: &CertificateError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        // The signature of another authority of the same name, such as one that was made anew.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => f.write_str(
            "no authority that is trusted here has signed the server's certificate; name the file of the one that has, \
             or of the certificate itself, as `ca`",
        ),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let expected = expected.to_str();
            write!(f, "the server's certificate is not for {expected} but for ")?;
            names(presented, f)?;
            f.write_str("; set `server_name` to a name that it is for")
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            let until = Validity::new(0, not_after.as_secs());
            write!(f, "the server's certificate, or an authority's, has expired on {}; renew it", until.until())
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            let from = Validity::new(not_before.as_secs(), u64::MAX);
            write!(f, "the server's certificate, or an authority's, is not valid before {}", from.from())
        }
        // No text but this one tells it from other faults, and it is told by Debug alone.
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => f.write_str(
            "the server's certificate says that it is an authority's; name its file as `ca` to trust it all the same",
        ),
        error => write!(f, "the server's certificate is not valid: {error}"),
    }
}

/// The names as the library tells them: `DnsName("app.example")`, `IpAddress(192.0.2.1)`. The text inside them is not
/// verified.
fn names(presented: &[String], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if presented.is_empty() {
        return f.write_str("no name at all (subjectAltName)");
    }
    for (place, name) in presented.iter().take(MAX_NAMES).enumerate() {
        let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
        let inside: String = inside.trim_matches('"').chars().take(MAX_NAME_CHARS).collect();
        write!(f, "{}{}", if place == 0 { "" } else { ", " }, inside.escape_debug())?;
    }
    match presented.len().saturating_sub(MAX_NAMES) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(expected: &str, presented: &[String]) -> String {
        let expected = rustls::pki_types::ServerName::try_from(expected.to_owned()).unwrap();
        let error = CertificateError::NotValidForNameContext { expected, presented: presented.to_vec() };
        Rejection(error.into()).to_string()
    }

    #[test]
    fn the_names_of_a_certificate_are_told_and_bounded() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            told("a.example", &names(&["DnsName(\"b.example\")", "IpAddress(192.0.2.1)"])),
            "the server's certificate is not for a.example but for b.example, 192.0.2.1; set `server_name` to a name \
             that it is for"
        );
        assert!(told("192.0.2.1", &[]).contains("not for 192.0.2.1 but for no name at all"));
        let hostile = told("a", &names(&["DnsName(\"x\nERROR: \u{1b}[31m\")"]));
        assert!(!hostile.chars().any(char::is_control), "{hostile}");
        assert!(hostile.contains("x\\nERROR"), "{hostile}");
        let many: Vec<_> = (0..1_000).map(|number| format!("DnsName(\"{number}{}\")", "x".repeat(10_000))).collect();
        let text = told("a", &many);
        assert!(text.len() < 1_000 && text.contains(" and 995 more"), "{text}");
    }

    #[test]
    fn what_is_not_known_better_is_told_as_the_library_tells_it() {
        let text = Rejection(Error::General("odd".to_owned())).to_string();
        assert!(text.contains("odd"), "{text}");
        let text = Rejection(CertificateError::BadEncoding.into()).to_string();
        assert!(text.starts_with("the server's certificate is not valid: "), "{text}");
    }
}
