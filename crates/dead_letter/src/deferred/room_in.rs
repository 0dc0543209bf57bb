//! How the front door tells the gateway itself when a limit has room for a deferred request.
//!
//! The value has a mark of this process, which nobody else gets to see: a server that writes such a field is not believed, else
//! it could have a request sent to it again and again.

use std::sync::LazyLock;

use super::{id_text, writer};
use sluicegate_time::Span;

/// The name of the field, in lower case. Clients never see it.
pub const ROOM_IN: &str = "x-sluicegate-room-in-ms";

/// `None` where the machine has no random bytes: then no value is believed, and a refusal is a try like others.
static MARK: LazyLock<Option<String>> = LazyLock::new(|| writer::random_id().map(id_text));

/// The field's value for a limit that has room after so long.
pub fn room_in(after: Span) -> String {
    format!("{};{}", after.as_millis_ceil(), MARK.as_deref().unwrap_or_default())
}

/// The time that a value tells, in milliseconds, if this process has written it.
pub fn room_in_millis(value: &[u8]) -> Option<u64> {
    let (millis, mark) = std::str::from_utf8(value).ok()?.split_once(';')?;
    (Some(mark) == MARK.as_deref()).then(|| millis.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_believed_if_it_has_the_mark() {
        let value = room_in(Span::from_nanos(1_000_001));
        assert_eq!(room_in_millis(value.as_bytes()), Some(2));
        for other in ["", "2", "2;", "2;00000000000000000000000000000000", &value[1..], "x", &format!("{value}0")] {
            assert_eq!(room_in_millis(other.as_bytes()), None, "{other}");
        }
    }
}
