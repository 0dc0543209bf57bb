//! An admitted request on its way to a server and its answer on the way back: [`attempt`] sends it, and is the only place that
//! sends it again; [`collapsing`] has it wait for the answer of an equal one; [`paced`] has it wait for its pace; [`pick`] chooses a server and comes to a connection; [`relay`] carries the
//! bytes of one try; [`retry`] says whether there is another one; [`private`] gives the connection back; [`oversized`] tells
//! requests that no server is blamed for; [`apart`] gives those a connection of HTTP/2 that carries nothing else; [`verdict`]
//! tells of a server what it has answered.

mod apart;
mod attempt;
mod collapsing;
mod halves;
mod oversized;
mod paced;
mod pick;
mod private;
mod relay;
mod relay_head;
mod relay_lead;
mod relay_time;
mod request_head;
mod retry;
mod verdict;

pub use attempt::forward;
pub use collapsing::give_up as give_up_lead;
pub use private::give_back;
pub use relay::{ConnectionFate, RelayEnd};
pub use relay_head::{MAX_DISCARD, can_keep, write_connection};
