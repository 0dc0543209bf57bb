//! Decides who may pass: client, route, key, limiter, in one synchronous call.
//!
//! [`Rules::admit`] reads a request through [`RequestView`] and says what becomes of it. It is pure: no I/O, no clock, no
//! await; what was read is not changed, and the only state it touches is the tables of the limiter, and what schedules
//! remember of the time. It does not know HTTP's framing, does not choose a server and writes no answer.
//!
//! - `client`, `hops`, `networks`: who asks. Forwarding fields count only if the peer is trusted.
//! - `path`, `host`: the one spelling in which paths and hosts are matched, keyed and forwarded.
//! - `pattern`, `route`: which route it takes.
//! - `key`, `identity`, `spelling`: under which keys it is counted, and by what it sticks to a server.
//! - `body`: fields of a request's body.
//! - `cost`: how much it takes of a limit; `response_cost`, `usage`: how much it has taken in the end, as its answer says;
//!   `exempt`: who takes nothing.
//! - `exceptions`, `excepted`: which keys are blocked by hand, or have numbers of their own.
//! - `keyed`: a limit that is asked about a key, without a request; `descriptor`, `hits`: descriptors of a rate limit service.
//! - `plans`, `terms`: which of several sets of numbers a request is held to.
//! - `admit`: the walk through all of them, and what it ends in; `explain`: the same walk in words, without a trace.
//!
//! Invariants:
//!
//! - An [`Admitted`] is made here and nowhere else, and only after every limit of the route said yes.
//! - A [`ClientIp`] is made here and nowhere else, and never from a field that no trusted peer vouches for.
//! - Two spellings of a path that RFC 3986 calls equivalent have the same route and key.
//! - Whoever lacks a key never shares a count with the others who lack it.
//! - Every request costs work in proportion to its own size, not to the number of routes (but expressions).
//! - Nothing is allocated for a request that is admitted at once, if its path came in its one spelling.
//!
//! Its caller is the proxy, once per request; `config` parses its patterns and keys.

#[macro_use]
extern crate sluicegate_words;

mod admit;
mod before_body;
mod believed;
mod body;
mod client;
mod cost;
mod descriptor;
mod excepted;
mod exceptions;
mod exempt;
mod explain;
mod hits;
mod hops;
mod host;
mod identity;
mod jwt_claim;
mod key;
mod keyed;
mod malformed;
mod networks;
mod path;
mod pattern;
mod plans;
mod rate_from;
mod renewal;
mod response_cost;
mod route;
mod spelling;
mod terms;
#[cfg(test)]
mod testing;
mod usage;
mod view;

pub use admit::{Admission, Admitted, Arrival, Places, Progress, Refused, Rules, Waiting};
pub use before_body::BeforeBody;
pub use believed::{is_claim, is_forwarding, is_of_a_proxy, passes_for};
pub use body::{BodyFacts, BodyField, BodyReader, BodyValue};
pub use client::{AddressForm, AddressHeader, AddressHeaderError, ClientIp, ClientRules, Clients, Hop, address_of};
pub use cost::{Cost, CostPlace, StatedCost};
pub use descriptor::{Descriptor, DescriptorPattern, EntryValue, MAX_ENTRIES, REMOTE_ADDRESS};
pub use exceptions::{Block, KeyAction, KeyBook, KeyException, KeyExceptions, Made, OwnNumbers, PendingKeyAction};
pub use exempt::{Exempt, ExemptRules, KeyValueError};
pub use explain::{Decided, ExplainedLimit, Explanation, NotAsked};
pub use hops::address as hop_address;
pub use jwt_claim::{JwtClaim, bearer_token};
pub use key::{KeyError, KeyExpr, KeyPart, MAX_KEY_PARTS, OnMissingKey};
pub use keyed::{KeyedAnswer, KeyedLimit};
pub use malformed::Malformed;
pub use networks::{Networks, canonical};
pub use path::{normal_path, without_escaped_delims};
pub use pattern::{HostError, HostPattern, PathPattern, PathPatternError, RoutePattern};
pub use plans::{DuplicateKey, KeyChanges, KeyPlan, PlanKeys, PlanPlace, PlanTerms, RoutePlans};
pub use rate_from::RateFrom;
pub use renewal::Renewal;
pub use response_cost::{CostSource, MissingUsage, OnAbort, ResponseCost, Stated};
pub use route::{BodyRules, LimitUse, PassedOver, RouteRules, Routed};
pub use spelling::{Missing, loosely_decoded};
pub use usage::{AnswerForm, UsageReader};
pub use view::{PlainRequest, RequestView, is_preflight};
