//! TLS settings -> what shakes hands, kept across reloads where the settings stay the same.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::build::BuildError;
use crate::config::Model;
use crate::tls::{self, ServerSettings, ServerTls, Tickets, UpstreamSettings, UpstreamTls};

/// The TLS configurations that were built, with the settings that they were built from.
///
/// Connections to an upstream go on only if its [`UpstreamTls`] is the very same: so it is built anew only where
/// something in it has changed.
#[derive(Default)]
pub struct Secured {
    listeners: HashMap<SocketAddr, (ServerSettings, Arc<ServerTls>)>,
    admin: Option<(ServerSettings, Arc<ServerTls>)>,
    upstreams: HashMap<Arc<str>, (UpstreamSettings, Arc<UpstreamTls>)>,
}

impl Secured {
    /// Builds what the model says; `self` is what runs.
    pub fn renew(&self, model: &Model, tickets: &Tickets) -> Result<Self, BuildError> {
        let mut next = Self::default();
        for listener in &model.listeners {
            let Some(settings) = &listener.tls else { continue };
            let address = listener.address;
            let config = match self.listeners.get(&address) {
                Some((same, config)) if same == settings => Arc::clone(config),
                _ => tls::server(settings, tickets).map_err(|source| BuildError::ListenerTls { address, source })?,
            };
            next.listeners.insert(address, (settings.clone(), config));
        }
        if let Some(settings) = model.admin.as_ref().and_then(|admin| admin.tls.as_ref()) {
            let config = match &self.admin {
                Some((same, config)) if same == settings => Arc::clone(config),
                _ => tls::server(settings, tickets).map_err(BuildError::AdminTls)?.for_http1(),
            };
            next.admin = Some((settings.clone(), config));
        }
        for upstream in &model.upstreams {
            let Some(settings) = &upstream.tls else { continue };
            let name = Arc::clone(&upstream.name);
            let built = match self.upstreams.get(&name) {
                Some((same, built)) if same == settings => Arc::clone(built),
                _ => match tls::upstream(settings) {
                    Ok(built) => Arc::new(built),
                    Err(source) => return Err(BuildError::UpstreamTls { name, source }),
                },
            };
            next.upstreams.insert(name, (settings.clone(), built));
        }
        Ok(next)
    }

    /// Of the listener with this address in the file.
    pub fn listener(&self, address: &SocketAddr) -> Option<Arc<ServerTls>> {
        self.listeners.get(address).map(|(_, config)| Arc::clone(config))
    }

    /// Of admin.
    pub fn admin(&self) -> Option<Arc<ServerTls>> {
        self.admin.as_ref().map(|(_, config)| Arc::clone(config))
    }

    /// Of the upstream with this name.
    pub fn upstream(&self, name: &str) -> Option<Arc<UpstreamTls>> {
        self.upstreams.get(name).map(|(_, built)| Arc::clone(built))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::config::{self, Certificates};
    use crate::time::Wall;

    fn write_pair(directory: &Path, name: &str) {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(directory.join(format!("{name}.pem")), cert.pem()).unwrap();
        std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    #[test]
    fn only_what_has_changed_is_built_anew() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["one", "two", "ca"] {
            write_pair(directory.path(), name);
        }
        let text = |more: &str| {
            let listener = |port, name| {
                format!(
                    "[[listener]]\naddress = \"127.0.0.1:{port}\"\nprotocol = \"https\"\n\
                     tls = {{ certificates = [{{ cert = \"{name}.pem\", key = \"{name}.key\" }}] }}\n"
                )
            };
            format!(
                "{}{}[[listener]]\naddress = \"127.0.0.1:80\"\n\
                 [[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:1\"]\ntls = {{ ca = \"ca.pem\" }}\n{more}\
                 [[upstream]]\nname = \"plain\"\nservers = [\"127.0.0.1:1\"]\n\
                 [[route]]\nname = \"all\"\nrespond = {{}}\n",
                listener(441, "one"),
                listener(442, "two")
            )
        };
        let model = |more: &str| {
            let now = Wall::from_secs(1_780_272_000);
            let file = directory.path().join("gateway.toml");
            config::parse(&text(more), &file, Certificates::Strict(now))
                .unwrap_or_else(|errors| panic!("{errors}"))
                .model
        };
        let tickets = Tickets::new();
        let address = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let first = Secured::default().renew(&model(""), &tickets).unwrap();
        let same = |next: &Secured, port| {
            Arc::ptr_eq(&first.listener(&address(port)).unwrap(), &next.listener(&address(port)).unwrap())
        };
        let same_upstream =
            |next: &Secured| Arc::ptr_eq(&first.upstream("app").unwrap(), &next.upstream("app").unwrap());
        assert!(first.listener(&address(80)).is_none() && first.upstream("plain").is_none());

        let next = first.renew(&model("connect_timeout = \"1s\"\n"), &tickets).unwrap();
        assert!(same(&next, 441) && same(&next, 442) && same_upstream(&next));
        write_pair(directory.path(), "two");
        let next = first.renew(&model(""), &tickets).unwrap();
        assert!(same(&next, 441) && !same(&next, 442) && same_upstream(&next));
        write_pair(directory.path(), "ca");
        assert!(!same_upstream(&first.renew(&model(""), &tickets).unwrap()));
        let next = first.renew(&model("protocol = \"h2\"\n"), &tickets).unwrap();
        assert!(!same_upstream(&next), "other protocols are asked for");
    }
}
