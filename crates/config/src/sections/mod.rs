//! The sections that are declared key by key, a file each, with the rules between their keys.

use super::form::Row;
use super::lower::bandwidth;
use super::section::Section;

pub(super) mod actions;
pub(super) mod admin;
pub(super) mod alert;
pub(super) mod algorithm;
pub(super) mod client;
pub(super) mod collapse;
pub(super) mod cost;
mod count_when;
pub(super) mod dead_letter;
pub(super) mod decides;
pub(super) mod deferred;
pub(super) mod doubts;
mod exempt;
pub(super) mod fleet;
pub(super) mod in_flight;
pub(super) mod jwt;
pub(super) mod limit;
pub(super) mod listener;
pub(super) mod log;
pub(super) mod outages;
pub(super) mod overload;
mod paths;
pub(super) mod rate_from;
mod rates;
pub(super) mod renews;
mod response_cost;
pub(super) mod route;
pub(super) mod rules;
pub(super) mod schedule;
pub(super) mod secret_file;
pub(super) mod server;
pub(super) mod sink;
pub(super) mod tls;
pub(super) mod upstream;

/// A section of the file, as it is declared.
pub(super) struct SectionRow {
    pub(super) name: &'static str,
    /// Whether it may be written many times.
    pub(super) is_list: bool,
    pub(super) doc: &'static str,
    /// Its keys.
    pub(super) rows: fn() -> Vec<Row>,
}

/// Every section, in the order of the walk of a request.
pub(super) const FILE: &[SectionRow] = &[
    once(
        "server",
        "The process: its threads, its files, and the timeouts and bounds of connections.",
        server::Server::rows,
    ),
    once("log", "The log, and the access log.", log::Log::rows),
    once("client", "How a client is found, and which connections are taken.", client::Client::rows),
    once("jwt", "The issuer of the tokens that keys `jwt:CLAIM` are read of.", jwt::Jwt::rows),
    many("listener", "Where clients connect. At least one is required.", listener::ListenerSpec::rows),
    many("route", "What becomes of a request. The most specific route that matches it is taken.", route_rows),
    many("limit", "How many requests of one key are admitted.", limit::rows),
    many("bandwidth", "How many bytes of one key pass.", bandwidth::rows),
    many("upstream", "The servers of one service.", upstream::UpstreamSpec::rows),
    once("overload", "Sensors of pressure, and how far adaptive limits are scaled by them.", overload::Overload::rows),
    once(
        "dead_letter",
        "The log of what is refused and of what times out. Without the section there is none.",
        dead_letter::DeadLetter::rows,
    ),
    once(
        "admin",
        "The admin API, the health checks and the metrics. Without the section there are none.",
        admin::Admin::rows,
    ),
    once("fleet", "Gateways that share limits, and the store through which they do.", fleet::Fleet::rows),
    once("rules", "Routes, limits, upstreams and bandwidths come from elsewhere.", rules::Follow::rows),
];

const fn once(name: &'static str, doc: &'static str, rows: fn() -> Vec<Row>) -> SectionRow {
    SectionRow { name, is_list: false, doc, rows }
}

const fn many(name: &'static str, doc: &'static str, rows: fn() -> Vec<Row>) -> SectionRow {
    SectionRow { name, is_list: true, doc, rows }
}

fn route_rows() -> Vec<Row> {
    [route::RouteKeys::rows(), cost::CostKeys::rows()].concat()
}

/// Every table that is declared, by the keys that lead to it.
#[cfg(test)]
pub(super) fn declared() -> Vec<(Vec<&'static str>, Vec<Row>)> {
    fn walk(path: &[&'static str], rows: Vec<Row>, all: &mut Vec<(Vec<&'static str>, Vec<Row>)>) {
        for row in &rows {
            let inner = row.form.rows();
            if !inner.is_empty() {
                walk(&[path, &[row.key]].concat(), inner, all);
            }
        }
        all.push((path.to_vec(), rows));
    }
    let mut all = Vec::new();
    for section in FILE {
        walk(&[section.name], (section.rows)(), &mut all);
    }
    all
}
