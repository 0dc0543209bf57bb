//! The callers that may administer the gateway, in lines that two configurations are compared by.

use super::address::ListenAddress;
use super::sections::admin::{Admin, AdminCertificate, begin_of};
use sluicegate_tls::ClientCertificates;

/// Lines of a comparison; what is beyond is counted.
const MAX_LINES: usize = 20;

/// The changes of who may administer the gateway, a line each with `+` or `-`; `None`: there are none.
pub fn changes_of_callers(old: Option<&Admin>, new: Option<&Admin>) -> Option<String> {
    let (before, after) = (lines(old), lines(new));
    let added = after.iter().filter(|line| !before.contains(line)).map(|line| format!("+ {line}"));
    let removed = before.iter().filter(|line| !after.contains(line)).map(|line| format!("- {line}"));
    let mut all: Vec<String> = added.chain(removed).collect();
    let authorities = |admin: Option<&Admin>| match &admin?.tls.as_ref()?.clients {
        ClientCertificates::Off => None,
        ClientCertificates::Optional(roots) | ClientCertificates::Required(roots) => Some(roots.clone()),
    };
    if let (Some(old), Some(new)) = (authorities(old), authorities(new))
        && old != new
    {
        all.push("+ other authorities for certificates of clients (client_ca)".to_owned());
    }
    let more = all.len().saturating_sub(MAX_LINES);
    all.truncate(MAX_LINES);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    (!all.is_empty()).then(|| all.join("\n"))
}

/// One section in lines.
fn lines(admin: Option<&Admin>) -> Vec<String> {
    let Some(admin) = admin else { return vec!["there is no [admin]".to_owned()] };
    let Admin { address, tokens, tls, clients, explain_sha256, rules } = admin;
    let mut lines = vec![format!("address {address}"), format!("rules = \"{}\"", rules.word())];
    lines.extend(tls.as_ref().map(|tls| {
        let asks = match tls.clients {
            ClientCertificates::Off => "off",
            ClientCertificates::Optional(_) => "optional",
            ClientCertificates::Required(_) => "required",
        };
        format!("TLS, client_certificates = \"{asks}\"")
    }));
    lines.extend(tokens.iter().map(|own| format!("token {own}, sha256 {}", begin_of(&own.sha256))));
    lines.extend(clients.iter().map(|own| match &own.certificate {
        AdminCertificate::Subject(subject) => format!("client {own}, subject {subject:?}"),
        AdminCertificate::Fingerprint(print) => format!("client {own}, fingerprint {print}"),
    }));
    lines.extend(explain_sha256.as_ref().map(|hash| format!("explain_sha256 {}", begin_of(hash))));
    if tokens.is_empty() && clients.is_empty() {
        lines.push(match address {
            ListenAddress::Tcp(_) => {
                "without a token: every process of this machine may operate the gateway".to_owned()
            }
            ListenAddress::Unix(_) => "without a token: a process that may open the socket may change rules".to_owned(),
        });
    }
    lines
}
