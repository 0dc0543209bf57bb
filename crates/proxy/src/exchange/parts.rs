//! An exchange taken apart for the code that writes a message of it: the facts about the request to read, and the room
//! to write in, borrowed side by side.

use super::life::{Exchange, ExchangeRecord};
use super::variables::TemplateContext;
use crate::answer::Reply;
use crate::client::{Connection, RequestContext, Vouched, replayed};
use crate::scratch::{Inbound, Outgoing, RequestState, Scratch};
use crate::view::View;
use crate::worker::Worker;
use sluicegate_admission::BodyFacts;
use sluicegate_http1::{Buffer, Request, RequestHead, ResponseHead};
use sluicegate_limiter::Report;

/// The facts about a request.
#[derive(Clone, Copy)]
pub struct RequestFacts<'e> {
    /// The bytes that came in: the head, and what is here of the body behind it.
    pub inbound: &'e Inbound,
    /// The connection that it came over.
    pub connection: &'e Connection,
    /// The configuration that it sees.
    pub view: &'e View,
    /// The record of it so far.
    pub record: &'e ExchangeRecord,
    /// How the limits stand.
    pub report: &'e Report,
    /// The token of the replay that sends it again.
    pub replayed: Option<&'e Vouched>,
    /// The fields that were read of its body.
    pub body: Option<&'e BodyFacts>,
    /// Its id, once it has one.
    pub request_id: &'e [u8],
    head: &'e RequestHead,
}

impl<'e> RequestFacts<'e> {
    /// The request as it came.
    #[inline]
    pub fn request(&self) -> Request<'e> {
        self.head.on(self.inbound.head())
    }

    /// The same as admission sees it, but for tokens: it is asked for fields.
    pub fn context(&self) -> RequestContext<'e> {
        let origin = replayed::origin_of(self.replayed, self.connection.origin());
        let clients = self.view.rules.clients();
        RequestContext { request: self.request(), origin, clients, body: self.body, tokens: None }
    }

    /// The values of variables in an answer with this status; 0 as long as there is none.
    #[inline]
    pub fn template_context(&self, status: u16, retry_after_secs: Option<u64>) -> TemplateContext<'e> {
        let Self { connection, view, record, report, request_id, .. } = *self;
        TemplateContext {
            request: self.request(),
            connection,
            view,
            record,
            report,
            request_id,
            status,
            retry_after_secs,
        }
    }
}

/// The room that messages are written in, and what came of the answer.
pub struct MessageRoom<'e> {
    /// The worker that carries the exchange.
    pub worker: &'e Worker,
    /// The bytes that the server sent.
    pub outbound: &'e Buffer,
    /// The head of its answer.
    pub response: &'e ResponseHead,
    /// The answer of the gateway's own.
    pub reply: &'e mut Reply,
    /// The bytes that go to the client.
    pub to_client: &'e mut Outgoing,
    /// The bytes that go to the server.
    pub to_upstream: &'e mut Outgoing,
    /// The target that the server gets, if it is another one.
    pub target: &'e mut Vec<u8>,
    /// For values that are put together.
    pub text: &'e mut Vec<u8>,
    /// Bytes of the answer's body that went out.
    pub bytes_sent: &'e mut u64,
}

impl Exchange {
    /// Takes it apart.
    #[inline]
    pub fn split(&mut self) -> (RequestFacts<'_>, MessageRoom<'_>) {
        let Self { worker, view, connection, scratch, record, bytes_sent, .. } = self;
        let Scratch {
            inbound,
            outbound,
            request,
            response,
            to_client,
            to_upstream,
            reply,
            report,
            text,
            state: RequestState { target, request_id, body, replayed, .. },
            ..
        } = &mut **scratch;
        let facts = RequestFacts {
            inbound,
            connection,
            view,
            record,
            report,
            body: body.as_deref().map(|body| &body.facts),
            request_id,
            replayed: replayed.as_deref(),
            head: request,
        };
        (facts, MessageRoom { worker, outbound, response, reply, to_client, to_upstream, target, text, bytes_sent })
    }
}
