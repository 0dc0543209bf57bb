//! Request collapsing: of equal requests in flight one is sent, and the others get a copy of its answer (RFC 9111, 4;
//! Varnish calls it request coalescing, nginx `proxy_cache_lock`).
//!
//! The first request of a key leads: it is sent as any other, and its answer is collected. Those that come meanwhile follow:
//! they wait for the answer. It is no cache: an answer is known to those that follow while it comes, and to nobody later.
//!
//! - [`Collapse`]: who leads and who follows, of one route. Of a key whose answer could not be shared nobody follows for
//!   [`APART_FOR`].
//! - [`RequestRules`]: which requests may be collapsed, and the key of one.
//! - [`may_share`]: which answers may be shared. [`SharedAnswer`]: one of them.
//!
//! It knows no sockets and reads no clock: time is an argument. Invariants: a follower gets an answer only if the request that
//! it answers has the same key; each follower is woken for the end of what it follows, whatever the end is; nothing is held of
//! a key that nobody asks for, but its number for [`APART_FOR`], of [`MOST_APART`] keys. The caller is `proxy`.

mod answer;
mod rules;
mod table;

pub use answer::{SharedAnswer, may_share};
pub use rules::RequestRules;
pub use table::{APART_FOR, AnswerFollower, BODY_PATIENCE, Collapse, FollowEnd, Joined, Leader, MOST_APART, MOST_HELD};
