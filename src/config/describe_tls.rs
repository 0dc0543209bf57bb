//! Listeners, and TLS on both sides, in words.

use std::collections::HashMap;
use std::path::Path;

use ipnet::IpNet;

use super::change::Changes;
use super::describe::count_or;
use super::model::{Listener, Upstream};
use crate::proxy_protocol::Version;
use crate::tls::{ClientCertificates, Identity, Roots, ServerSettings, UpstreamSettings};

pub(super) fn listener(old: &Listener, new: &Listener) -> Changes {
    // Listeners are paired by their addresses.
    let Listener { address: _, tls, redirect_to_https, max_connections, proxied_by } = old;
    let mut changes = Changes::default();
    changes.value("protocol", &tls.is_some(), &new.tls.is_some(), |is_tls| if *is_tls { "https" } else { "http" });
    if let (Some(old), Some(new)) = (tls, &new.tls) {
        server(&mut changes, old, new);
    }
    changes.value("redirect_to_https", redirect_to_https, &new.redirect_to_https, |port| {
        port.map_or_else(|| "off".to_owned(), |port| port.to_string())
    });
    changes.value("proxy_protocol", &proxied_by.is_some(), &new.proxied_by.is_some(), |is_required| {
        if *is_required { "required" } else { "off" }
    });
    if let (Some(old), Some(new)) = (proxied_by, &new.proxied_by) {
        let texts = |networks: &[IpNet]| networks.iter().map(IpNet::to_string).collect::<Vec<_>>();
        changes.list("proxy_protocol_from", &texts(old), &texts(new));
    }
    changes.value("max_connections", max_connections, &new.max_connections, |count| count_or(*count, "none"));
    changes
}

pub(super) fn upstream(changes: &mut Changes, old: &Upstream, new: &Upstream) {
    changes.value("protocol", &old.protocol, &new.protocol, |protocol| protocol.word());
    changes.value("proxy_protocol", &old.proxy_protocol, &new.proxy_protocol, |version| match version {
        None => "off",
        Some(Version::V1) => "v1",
        Some(Version::V2) => "v2",
    });
    let verified = |upstream: &Upstream| match &upstream.tls {
        None => "off",
        Some(UpstreamSettings { roots: Some(_), .. }) => "verified",
        Some(UpstreamSettings { roots: None, .. }) => "not verified",
    };
    changes.value("tls", &verified(old), &verified(new), |text| *text);
    if let (Some(old), Some(new)) = (&old.tls, &new.tls) {
        // The protocol, which has a line of its own, decides what is asked for by ALPN.
        let UpstreamSettings { roots: old_roots, server_name, alpn: _ } = old;
        changes.value("server_name", server_name, &new.server_name, |name| {
            name.clone().unwrap_or_else(|| "the server's".to_owned())
        });
        roots(changes, "ca", old_roots.as_ref(), new.roots.as_ref());
    }
}

fn server(changes: &mut Changes, old: &ServerSettings, new: &ServerSettings) {
    let ServerSettings { identities, min_version, clients: old_clients, reject_unknown_sni } = old;
    let files = |identities: &[Identity]| identities.iter().map(file).collect::<Vec<_>>();
    changes.list("certificates", &files(identities), &files(&new.identities));
    let before: HashMap<&Path, &Identity> = identities.iter().map(|identity| (identity.file(), identity)).collect();
    for identity in &new.identities {
        if before.get(identity.file()).is_some_and(|before| *before != identity) {
            changes.note(
                "certificate",
                format!("{} changed, valid until {}", file(identity), identity.validity().until()),
            );
        }
    }
    changes.value("min_version", min_version, &new.min_version, |version| version.word());
    let (was, is) = (clients(old_clients), clients(&new.clients));
    changes.value("client_certificates", &was.0, &is.0, |word| *word);
    roots(changes, "client_ca", was.1, is.1);
    changes.value("reject_unknown_sni", reject_unknown_sni, &new.reject_unknown_sni, bool::to_string);
}

fn clients(clients: &ClientCertificates) -> (&'static str, Option<&Roots>) {
    match clients {
        ClientCertificates::Off => ("off", None),
        ClientCertificates::Optional(roots) => ("optional", Some(roots)),
        ClientCertificates::Required(roots) => ("required", Some(roots)),
    }
}

/// Where they come or go, another line says so.
fn roots(changes: &mut Changes, what: &'static str, old: Option<&Roots>, new: Option<&Roots>) {
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        changes.note(what, "has other certificates".to_owned());
    }
}

fn file(identity: &Identity) -> String {
    identity.file().display().to_string()
}
