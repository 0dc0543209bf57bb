//! A listener, as workers accept by it, and the TLS of admin. Both go on with what was built where the settings stay the same.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::admission::Networks;
use crate::config::{DescribedBy, ListenerSpec, Model};
use crate::gateway::error::BuildError;
use crate::proxy::{Listener, Places, QuestionRules};
use crate::tls::{self, ServerSettings, ServerTls, Tickets};

/// A listener upon that of its address in the generation before, if there was one: connections that have a place keep it.
pub(super) fn make(
    spec: &Arc<ListenerSpec>,
    old: Option<&Arc<Listener>>,
    tickets: &Tickets,
) -> Result<Arc<Listener>, BuildError> {
    let taken = || old.and_then(|old| old.places.as_ref()).map_or_else(Arc::<AtomicU64>::default, |own| own.taken());
    let same = old.filter(|old| old.spec.tls == spec.tls).and_then(|old| old.tls.as_ref());
    let tls = match (&spec.tls, same) {
        (Some(_), Some(tls)) => Some(Arc::clone(tls)),
        (Some(settings), None) => {
            let built = tls::server(settings, tickets);
            Some(built.map_err(|source| BuildError::ListenerTls { address: spec.address.clone(), source })?)
        }
        (None, _) => None,
    };
    Ok(Arc::new(Listener {
        places: spec.max_connections.map(|most| Places::new(taken(), most)),
        tls,
        redirect_to_https: spec.redirect_port(),
        decides: spec.decides.map(|kind| {
            Arc::new(QuestionRules {
                kind,
                described_by: spec.described_by.unwrap_or(DescribedBy::Forwarded),
                allow: Networks::new(spec.allow.iter().copied()),
                routes: (!spec.routes.is_empty()).then(|| spec.routes.iter().cloned().collect()),
                deny_status: spec.deny_status,
            })
        }),
        proxied_by: spec.proxied_by().map(|from| Networks::new(from.iter().copied())),
        spec: Arc::clone(spec),
    }))
}

/// The TLS of admin, with the settings that it was built from.
#[derive(Clone, Default)]
pub(in crate::gateway) struct AdminTls(Option<(ServerSettings, Arc<ServerTls>)>);

impl AdminTls {
    /// That of a model, upon what runs.
    pub(in crate::gateway) fn renewed(&self, model: &Model, tickets: &Tickets) -> Result<Self, BuildError> {
        let Some(settings) = model.admin.as_ref().and_then(|admin| admin.tls.as_ref()) else { return Ok(Self(None)) };
        match &self.0 {
            Some((same, _)) if same == settings => Ok(self.clone()),
            _ => {
                let built = tls::server(settings, tickets).map_err(BuildError::AdminTls)?.for_http1();
                Ok(Self(Some((settings.clone(), built))))
            }
        }
    }

    /// It.
    pub(in crate::gateway) fn get(&self) -> Option<Arc<ServerTls>> {
        self.0.as_ref().map(|(_, tls)| Arc::clone(tls))
    }
}
