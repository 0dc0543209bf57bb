//! The sections that are declared key by key, a file each, with the rules between their keys.

#[cfg(test)]
use super::lower::{action, cors, messages, refusal, rewrite};
#[cfg(test)]
use super::section::{Row, Section};

pub(super) mod admin;
pub(super) mod alert;
pub(super) mod algorithm;
pub(super) mod client;
pub(super) mod cost;
mod count_when;
pub(super) mod dead_letter;
pub(super) mod deferred;
pub(super) mod doubts;
mod exempt;
pub(super) mod fleet;
pub(super) mod limit;
pub(super) mod listener;
pub(super) mod log;
pub(super) mod outages;
mod paths;
mod rates;
pub(super) mod route;
pub(super) mod rules;
pub(super) mod schedule;
pub(super) mod secret_file;
pub(super) mod server;
pub(super) mod sink;
pub(super) mod tls;
pub(super) mod upstream;

/// Every table that is declared, by the keys that lead to it.
#[cfg(test)]
pub(super) fn declared() -> Vec<(&'static [&'static str], Vec<Row>)> {
    vec![
        (&["server"], server::Server::rows()),
        (&["log"], log::Log::rows()),
        (&["client"], client::Client::rows()),
        (&["dead_letter"], dead_letter::DeadLetter::rows()),
        (&["dead_letter", "alerts"], alert::Alert::rows()),
        (&["dead_letter", "sinks"], sink::Sink::rows()),
        (&["admin"], admin::Admin::rows()),
        (&["admin", "tokens"], admin::AdminToken::rows()),
        (&["admin", "clients"], admin::ClientKeys::rows()),
        (&["admin", "tls"], tls::ListenerKeys::rows()),
        (&["admin", "tls", "certificates"], tls::CertificateKeys::rows()),
        (&["fleet"], fleet::Fleet::rows()),
        (&["rules"], rules::Follow::rows()),
        (&["listener"], listener::Listener::rows()),
        (&["listener", "tls"], tls::ListenerKeys::rows()),
        (&["listener", "tls", "certificates"], tls::CertificateKeys::rows()),
        (&["upstream"], upstream::Upstream::rows()),
        (&["upstream", "servers"], upstream::ServerSpec::rows()),
        (&["upstream", "tls"], tls::UpstreamKeys::rows()),
        (&["upstream", "eject"], outages::Eject::rows()),
        (&["upstream", "health"], outages::Health::rows()),
        (&["upstream", "breaker"], outages::BreakerSpec::rows()),
        (&["upstream", "retry"], outages::Retry::rows()),
        (&["route"], [route::RouteKeys::rows(), cost::CostKeys::rows()].concat()),
        (&["route", "messages"], messages::MessageKeys::rows()),
        (&["route", "cors"], cors::CorsKeys::rows()),
        (&["route", "rewrite"], rewrite::RewriteKeys::rows()),
        (&["route", "respond"], action::RespondKeys::rows()),
        (&["route", "redirect"], action::RedirectKeys::rows()),
        (&["route", "active"], schedule::ActiveKeys::rows()),
        (&["route", "refusal"], refusal::RefusalKeys::rows()),
        (&["limit"], limit::rows()),
        (&["limit", "penalty"], limit::PenaltyKeys::rows()),
        (&["limit", "count_when"], count_when::CountWhenKeys::rows()),
        (&["limit", "active"], schedule::ActiveKeys::rows()),
        (&["limit", "refusal"], refusal::RefusalKeys::rows()),
    ]
}
