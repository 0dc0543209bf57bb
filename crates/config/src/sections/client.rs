//! `[client]`: how clients are found, and which connections are taken.

use ipnet::IpNet;

use super::rates;
use super::server::CONNECTIONS;
use crate::findings::{Reported, quoted};
use crate::form::{Form, NETWORK, Secrecy};
use crate::kind::{Context, ValueKind, by, count, each, list};
use crate::networks;
use crate::reader::{Node, Reader};
use crate::section::{Declare, Section, section};
use sluicegate_admission::{AddressForm, AddressHeader, AddressHeaderError, ClientRules};
use sluicegate_limiter::{Bound, Rate, TimerWheel};

section! {
    /// `[client]`. A peer that is a trusted proxy is no client.
    pub struct Client, read as ClientKeys {
        /// Peers whose forwarding headers are believed.
        trusted_proxies: Vec<IpNet> = list(Form::List(&NETWORK, 0, usize::MAX), trusted_proxies, IpNet::to_string).or("[]"),
        /// The field that carries the client's address.
        address_header: AddressHeader = by(ADDRESS_HEADER, address_header, |header| header.name().to_owned()).or("x-forwarded-for"),
        /// How many bits of an IPv6 address are the client: by default, what a provider gives to one customer.
        ipv6_prefix: u8 = count(1..=128).or("64"),
        /// Peers whose connections are closed.
        deny: Vec<IpNet> = list(networks::FORM, networks::list, IpNet::to_string).or("[]").secret(Secrecy::Networks),
        /// Peers whose connections are taken; where it is empty, everybody's.
        allow: Vec<IpNet> = list(networks::FORM, networks::list, IpNet::to_string).or("[]").secret(Secrecy::Networks),
        /// Connections of one client that are open at once.
        max_connections: Option<u64> = count(CONNECTIONS).or_word("none").or("none"),
        /// New connections of one client.
        connection_rate: Option<Rate> = by(Form::Rate, connection_rate, Rate::to_string).or_word("none").or("none"),
    }
}

impl Client {
    /// How a client is found.
    pub fn rules(&self) -> ClientRules {
        let Self { trusted_proxies, address_header, ipv6_prefix, .. } = self;
        let (trusted_proxies, address_header, ipv6_prefix) =
            (trusted_proxies.clone(), address_header.clone(), *ipv6_prefix);
        ClientRules { trusted_proxies, address_header, ipv6_prefix }
    }

    /// How clients are told apart by their addresses.
    pub fn address_form(&self) -> AddressForm {
        AddressForm { ipv6_prefix: self.ipv6_prefix }
    }
}

/// Reads the section.
pub(crate) fn read<'t>(reader: Reader<'t>, context: &Context<'_>) -> ClientKeys<'t> {
    let keys = Client::read_keys(reader, context);
    // Halves, such as 0.0.0.0/1 and 128.0.0.0/1, are all together.
    let is_all = |own: &Vec<IpNet>| IpNet::aggregate(own).iter().any(|network| network.prefix_len() == 0);
    let trusts_all = keys.trusted_proxies.get().is_some_and(is_all);
    if let (true, Some(node)) = (trusts_all, &keys.trusted_proxies.node) {
        node.warning(
            "everybody is a trusted proxy: each client chooses the address that it is counted by",
            "name the networks of the proxies in front, such as \"10.0.0.0/8\"",
        );
    }
    if let (Some([]), Some(node)) = (keys.allow.get().map(Vec::as_slice), &keys.allow.node) {
        node.warning("`allow` names nobody, and so everybody is", "name networks, or remove it");
    }
    keys
}

fn trusted_proxies(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<IpNet>, Reported> {
    each(&node.array("[\"10.0.0.0/8\"]")?, |item| networks::network(item, ""))
}

/// The name of a field.
const ADDRESS_HEADER: Form = Form::Text(
    "\"x-forwarded-for\": a list of addresses, each proxy adding its peer at the right; \"forwarded\" (RFC 7239): the \
     `for` parameters, read the same way; \"x-real-ip\": one address, of several lines the last; or the name of any other \
     header, such as \"cf-connecting-ip\": one address, or a list that is read as X-Forwarded-For is",
);

fn address_header(node: &Node<'_>, _: &Context<'_>) -> Result<AddressHeader, Reported> {
    let name = node.string("the name of a header in quotes", "\"x-forwarded-for\"")?;
    AddressHeader::parse(name).map_err(|error| match error {
        AddressHeaderError::Name => node.error(
            format!("no header is called {}", quoted(name)),
            "write the name of the header in which the proxies in front say the client's address, such as \"x-forwarded-for\"",
        ),
        AddressHeaderError::Taken => node.error(
            format!("{} carries no client's address: this header says something else", quoted(name)),
            "write the name of the header in which the proxies in front say the client's address, such as \"x-forwarded-for\"",
        ),
    })
}

fn connection_rate(node: &Node<'_>, _: &Context<'_>) -> Result<Rate, Reported> {
    let text = node.string("a rate in quotes", "\"20/s\"")?;
    let rate = text.parse::<Rate>();
    let fits = rate.as_ref().ok().filter(|rate| TimerWheel::new(&[**rate], None, Bound::Sliding).is_ok());
    fits.copied().ok_or_else(|| {
        let help = match &rate {
            Err(error) => rates::help(text, error),
            Ok(_) => "write a rate such as \"20/s\" or \"600/m\"".to_owned(),
        };
        node.error(format!("invalid connection rate {}", quoted(text)), help)
    })
}
