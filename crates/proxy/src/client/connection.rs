//! A client's connection: the facts about it, and its state.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use super::context::Origin;
use super::holdings::HoldingId;
use super::ledger::ClientAccount;
use super::private_server::{PrivateServer, PrivateSlot};
use super::reclaim::{Idle, Reclaimable};
use crate::deadlines::{Alarm, Dismissed};
use crate::snapshot::QuestionRules;
use sluicegate_config::ListenAddress;
use sluicegate_proxy_protocol::Header;
use sluicegate_time::Tick;
use sluicegate_tls::PeerCertificate;
use sluicegate_upstream::{PrivateConnection, ServerConnections};

/// The state that the connections of one listener on one worker share.
#[derive(Debug)]
pub struct Listening {
    /// Those that may be closed to make room for others.
    pub reclaimable: Reclaimable<Connection>,
    address: ListenAddress,
    /// The same, in words.
    name: Arc<str>,
    closing: Cell<bool>,
}

impl Listening {
    /// Of the listener that the configuration calls `address`.
    pub fn new(address: ListenAddress) -> Rc<Self> {
        let name = address.to_string().into();
        Rc::new(Self { reclaimable: Reclaimable::default(), address, name, closing: Cell::new(false) })
    }

    /// Its address in the configuration.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// The same, in words.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether it is a Unix socket, whose connections have no addresses.
    pub fn is_unix(&self) -> bool {
        self.address.tcp().is_none()
    }

    /// The listener is gone.
    pub fn close(&self) {
        self.closing.set(true);
    }

    /// Whether the listener is gone.
    pub fn is_closing(&self) -> bool {
        self.closing.get()
    }
}

/// How a client is spoken to, and who its certificate says it is.
#[derive(Clone, Debug, Default)]
pub struct PeerFacts {
    /// Over TLS.
    pub is_tls: bool,
    /// In HTTP/2.
    pub is_h2: bool,
    /// The certificate that it has shown, and that was verified.
    pub certificate: Option<Rc<PeerCertificate>>,
    /// It is the gateway's own, for requests that it has kept: each has to be vouched for.
    pub is_own: bool,
    /// Every request is answered with a redirect to `https`, to this port.
    pub redirect_to_https: Option<u16>,
    /// Each of its requests asks about another one, by these rules. Its peer is a proxy of the operator's, and no client.
    pub asks: Option<Arc<QuestionRules>>,
    /// The PROXY header by which a proxy in front has told for whom the connection is, if there was one.
    pub proxied: Option<Rc<Header>>,
    /// The gateway's end of the socket, where it cannot be asked for it any more.
    pub own_end: Option<Rc<SocketAddr>>,
}

/// A client connection, or one stream of it.
#[derive(Debug)]
pub struct Connection {
    /// A number that no other connection of its worker has or had.
    pub id: u64,
    /// The other end: the client, or a proxy in front that tells by fields for whom it asks. One that tells it in a PROXY
    /// header is not counted.
    pub peer: SocketAddr,
    /// Its address in words, as it is written into forwarding fields.
    pub peer_text: Rc<str>,
    /// How it is spoken to.
    pub facts: PeerFacts,
    /// Rings when something on it may be overdue.
    pub alarm: Rc<Alarm>,
    /// Since when it has waited for a request; [`Tick::MAX`] while it carries one.
    pub idle_since: Cell<Tick>,
    /// Where it is listed to make room for others, if it is.
    pub listed: Cell<Option<HoldingId>>,
    /// Whether that is among those that are silent.
    pub is_silent: Cell<bool>,
    /// Whether it is on its account, as streams of it are not.
    is_entered: bool,
    /// The account of its client, or its own.
    pub account: Rc<ClientAccount>,
    /// How many requests it may still carry.
    left: Cell<u32>,
    /// The server that it has a connection of its own to, if its requests authenticate that.
    private: PrivateSlot,
    /// Where it has come from.
    pub listening: Rc<Listening>,
}

impl Connection {
    /// A connection from `peer`, which is on its account.
    pub fn new(
        id: u64,
        peer: SocketAddr,
        facts: PeerFacts,
        account: Rc<ClientAccount>,
        listening: Rc<Listening>,
        max_requests: u32,
        now: Tick,
    ) -> Rc<Self> {
        let peer_text = peer.ip().to_canonical().to_string().into();
        Rc::new(Self {
            id,
            peer,
            peer_text,
            facts,
            alarm: Rc::default(),
            idle_since: Cell::new(now),
            listed: Cell::default(),
            is_silent: Cell::default(),
            is_entered: true,
            account,
            left: Cell::new(max_requests),
            private: PrivateSlot::default(),
            listening,
        })
    }

    /// One stream of it, with an alarm of its own.
    pub fn stream(&self) -> Rc<Self> {
        Rc::new(self.parts())
    }

    /// The same, now that it turned out to be one of HTTP/2.
    pub fn as_h2(&self, own_end: Option<SocketAddr>) -> Rc<Self> {
        let mut same = self.parts();
        same.facts.is_h2 = true;
        same.facts.own_end = own_end.map(Rc::new);
        same.alarm = Rc::clone(&self.alarm);
        Rc::new(same)
    }

    /// A connection as it is described by a question over this one, with the same alarm and on the same account.
    pub fn described(&self, client: IpAddr, is_https: bool, rules: &Arc<QuestionRules>) -> Rc<Self> {
        let mut same = self.parts();
        same.facts = PeerFacts { asks: Some(Arc::clone(rules)), is_tls: is_https, ..PeerFacts::default() };
        (same.peer, same.peer_text) = (SocketAddr::new(client, 0), client.to_string().into());
        same.alarm = Rc::clone(&self.alarm);
        Rc::new(same)
    }

    fn parts(&self) -> Self {
        Self {
            id: self.id,
            peer: self.peer,
            peer_text: Rc::clone(&self.peer_text),
            facts: self.facts.clone(),
            alarm: Rc::default(),
            idle_since: self.idle_since.clone(),
            listed: Cell::default(),
            is_silent: Cell::default(),
            is_entered: false,
            account: Rc::clone(&self.account),
            left: self.left.clone(),
            private: PrivateSlot::default(),
            listening: Rc::clone(&self.listening),
        }
    }

    /// Counts a request. Whether it is the last one that the connection may carry.
    pub fn count_request(&self) -> bool {
        let left = self.left.get();
        if left < u32::MAX {
            self.left.set(left.saturating_sub(1));
        }
        left == 1
    }

    /// Whether the listener is gone or the connection has carried all that it may, so that each answer is the last one.
    pub fn is_closing(&self) -> bool {
        self.listening.is_closing() || self.left.get() == 0
    }

    /// Keeps a private connection to a server, in the place of the one before. `idle`: the connection, unless it has ended.
    pub fn keep_private(&self, server: &Rc<ServerConnections>, idle: Option<PrivateConnection>) {
        let kept = Box::new(PrivateServer::new(server, idle, &self.account));
        self.private.0.set(Some(kept));
    }

    /// The place among `servers` of the one that its requests go to over a private connection.
    #[inline]
    pub fn private_place(&self, servers: &[Rc<ServerConnections>]) -> Option<usize> {
        let private = self.private.0.take()?;
        let place = servers.iter().position(|server| private.is(server));
        self.private.0.set(Some(private));
        place
    }

    /// Its private connection to this server.
    pub fn take_private(&self, server: &Rc<ServerConnections>) -> Option<PrivateConnection> {
        let mut private = self.private.0.take()?;
        let idle = if private.is(server) { private.take() } else { None };
        self.private.0.set(Some(private));
        idle
    }

    /// The scheme of what it asks for. A proxy in front may have taken TLS off and say so.
    pub fn scheme(&self) -> &'static str {
        let was_tls = || self.facts.proxied.as_ref().is_some_and(|proxied| proxied.tls());
        if self.facts.is_tls || was_tls() { "https" } else { "http" }
    }

    /// The origin of its requests.
    pub fn origin(&self) -> Origin<'_> {
        Origin {
            peer: self.peer.ip(),
            scheme: self.scheme(),
            trusts: None,
            certificate: self.facts.certificate.as_deref(),
        }
    }

    /// Where the client has connected to: to a proxy in front, or to the gateway, whose end `own_end` is where the stream
    /// has a socket.
    pub fn destination(&self, own_end: Option<SocketAddr>) -> SocketAddr {
        let told = self.facts.proxied.as_ref().and_then(|proxied| proxied.endpoints);
        told.map(|ends| ends.destination)
            .or(own_end)
            .or(self.facts.own_end.as_deref().copied())
            .or(self.listening.address().tcp())
            .unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))
    }
}

impl Connection {
    /// No whole request has come yet, or something has come that is none.
    pub fn list_silent(&self, now: Tick) {
        if self.listed.get().is_none() || !self.is_silent.get() {
            self.delist();
            self.is_silent.set(true);
            self.listed.set(Some(self.listening.reclaimable.add_silent(&self.account, &self.alarm, now)));
        }
    }

    /// A request has come.
    pub fn begin_request(&self) {
        self.idle_since.set(Tick::MAX);
        self.alarm.take_dismissal();
        if self.is_silent.get() {
            self.delist();
        }
    }

    /// It waits for the next request.
    pub fn rest(self: &Rc<Self>, now: Tick) {
        self.idle_since.set(now);
        if self.listed.get().is_none() {
            let mut idle = self.listening.reclaimable.idle.borrow_mut();
            self.listed.set(Some(idle.add(&self.account, now, Rc::clone(self))));
        }
    }

    /// It ends.
    pub fn delist(&self) {
        let reclaimable = &self.listening.reclaimable;
        let is_silent = self.is_silent.take();
        match self.listed.take() {
            Some(held) if is_silent => drop(reclaimable.silent.borrow_mut().remove(held)),
            Some(held) => drop(reclaimable.idle.borrow_mut().remove(held)),
            None => {}
        }
    }
}

impl Idle for Connection {
    fn idle_since(&self) -> Tick {
        self.idle_since.get()
    }

    fn account(&self) -> &ClientAccount {
        &self.account
    }

    fn unlisted(&self) {
        self.listed.set(None);
    }

    fn dismiss(&self) {
        self.alarm.dismiss(Dismissed::Idle);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_entered {
            self.account.leave();
        }
    }
}
