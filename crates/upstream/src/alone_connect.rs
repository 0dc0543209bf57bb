//! How a request gets a connection of HTTP/2 that carries nothing else.

use std::rc::Rc;

use super::alone::MOST_IN_ALL;
use super::connect::{ConnectError, IdleConnection, Leased, ServerConnections, open_stream};
use sluicegate_time::Tick;
use sluicegate_transport::{Stream, open_channel};

impl ServerConnections {
    /// A stream of an HTTP/2 connection that carries nothing else, if one is kept.
    pub fn reuse_alone(self: &Rc<Self>, now: Tick) -> Option<Leased> {
        let mut alone = self.alone.borrow_mut();
        alone.retain(|kept| !kept.channel.is_closed());
        let kept = alone.iter_mut().find(|kept| kept.channel.streams() == 0 && kept.channel.has_room())?;
        kept.used = now;
        let stream = Stream::ToServer(Box::new(kept.channel.open()));
        Some(Leased::new(Rc::clone(self), stream, None, true))
    }

    /// A stream of a new one. `is_last`: it carries nothing after that either.
    pub async fn connect_alone(self: Rc<Self>, is_last: bool) -> Result<Leased, ConnectError> {
        let stream = open_stream(self.endpoint(), self.link(), None).await?;
        let channel = open_channel(stream, self.link().tls.is_some()).await.map_err(ConnectError::Io)?;
        let stream = Stream::ToServer(Box::new(channel.open()));
        if is_last || self.retired.get() || !self.makes_room_alone() {
            channel.close();
        } else {
            self.alone.borrow_mut().push(IdleConnection { channel, used: Tick::MAX });
        }
        Ok(Leased::new(self, stream, None, false))
    }

    /// Whether one more is kept. The one that was idle for longest may be closed for it.
    fn makes_room_alone(&self) -> bool {
        let mut alone = self.alone.borrow_mut();
        let oldest = (0..alone.len()).filter(|at| alone[*at].channel.streams() == 0).min_by_key(|at| alone[*at].used);
        if let Some(oldest) = oldest.filter(|_| alone.len() >= MOST_IN_ALL) {
            alone.swap_remove(oldest);
        }
        alone.len() < MOST_IN_ALL
    }
}
