//! `deferred` of `[dead_letter]`: the room for requests of routes with `on_limit = "defer"`.

use std::fmt;
use std::ops::RangeInclusive;

use crate::findings::Reported;
use crate::kind::{Context, count, duration, size};
use crate::reader::Node;
use crate::section::{Declare, section, table};
use crate::size::show_size;
use sluicegate_time::Span;

section! {
    /// `deferred` of `[dead_letter]`: how many requests are kept to be sent later, and for how long.
    pub struct DeferredRoom, read as DeferredKeys {
        /// Requests that wait at once; above it a request is refused.
        max_requests: u64 = count(REQUESTS).or("100000"),
        /// Bytes of those that wait; the files take at most twice as much, and the answers.
        max_bytes: u64 = size(BYTES).or("256MiB"),
        /// How long a request waits until it is given up, and its outcome is kept after that.
        max_age: Span = duration(AGES).or("1h"),
        /// Bytes of a request's body; a larger one is answered with 413.
        max_body_size: u64 = size(BODIES).or("1MiB"),
    }
}

const EXAMPLE: &str = "{ max_bytes = \"256MiB\" }";
const REQUESTS: RangeInclusive<u64> = 1..=10_000_000;
const BYTES: RangeInclusive<u64> = 64 << 10..=1 << 40;
const AGES: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(30 * 86_400);
/// A worker keeps 16 MiB of bodies at once.
const BODIES: RangeInclusive<u64> = 1..=8 << 20;

impl Default for DeferredRoom {
    fn default() -> Self {
        Self { max_requests: 100_000, max_bytes: 256 << 20, max_age: Span::from_secs(3_600), max_body_size: 1 << 20 }
    }
}

impl fmt::Display for DeferredRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_requests, max_bytes, max_age, max_body_size } = self;
        let (max_bytes, max_body_size) = (show_size(*max_bytes), show_size(*max_body_size));
        write!(f, "[{max_requests} requests, {max_bytes}, {max_age}, bodies {max_body_size}]")
    }
}

pub(super) fn read(node: &Node<'_>, context: &Context<'_>) -> Result<DeferredRoom, Reported> {
    let room = table::<DeferredRoom>(node, EXAMPLE, context)?;
    // A body grows by a third where it is kept, and a client has no more room than it leaves to others.
    if room.max_bytes / 4 < room.max_body_size {
        let (bytes, body) = (show_size(room.max_bytes), show_size(room.max_body_size));
        let message = format!("`deferred` has room for {bytes}, where a body of {body} never fits");
        let help = "raise max_bytes, or lower max_body_size to a quarter of it";
        return Err(node.error(message, help));
    }
    Ok(room)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Certificates, parse};

    fn read(deferred: &str) -> Result<DeferredRoom, String> {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"r\"\nrespond = {{}}\n[dead_letter]\n{deferred}\n"
        );
        let loaded = parse(&text, Path::new("/g.toml"), Certificates::Unread);
        loaded.map(|loaded| loaded.model.dead_letter.unwrap().deferred).map_err(|errors| errors.to_string())
    }

    #[test]
    fn what_is_not_written_is_the_default() {
        assert_eq!(read("").unwrap(), DeferredRoom::default());
        assert_eq!(read("deferred = {}").unwrap(), DeferredRoom::default());
        let all = "deferred = { max_requests = 5, max_bytes = \"1MiB\", max_age = \"2m\", max_body_size = \"256KiB\" }";
        let room = read(all).unwrap();
        assert_eq!(room.to_string(), "[5 requests, 1MiB, 2m, bodies 256KiB]");
    }

    #[test]
    fn a_room_in_which_a_body_never_fits_is_a_mistake() {
        let report = read("deferred = { max_bytes = \"1MiB\" }").unwrap_err();
        assert!(report.contains("`deferred` has room for 1MiB, where a body of 1MiB never fits"), "{report}");
        for bad in
            ["max_requests = 0", "max_bytes = \"1KiB\"", "max_age = \"31d\"", "max_body_size = \"9MiB\"", "size = 1"]
        {
            assert!(read(&format!("deferred = {{ {bad} }}")).is_err(), "{bad}");
        }
    }
}
