//! The `Date` of responses that come without one, written once a second (RFC 9110, 6.6.1).

use std::cell::{Cell, RefCell};
use std::io::Write as _;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

use crate::headers::Sink;
use sluicegate_time::Wall;

/// The last date that was written.
#[derive(Debug, Default)]
pub struct DateCell {
    second: Cell<u64>,
    text: RefCell<Vec<u8>>,
}

impl DateCell {
    /// Adds the field.
    pub fn write(&self, now: Wall, sink: &mut impl Sink) {
        let second = now.as_secs();
        if second != self.second.get() || self.text.borrow().is_empty() {
            self.second.set(second);
            let mut text = self.text.borrow_mut();
            text.clear();
            let date = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
            let written = date.and_then(|date| DateTimePrinter::new().timestamp_to_rfc9110_string(&date).ok());
            // Writing into a vector cannot fail; a clock beyond the year 9999 gives no date.
            let _ = text.write_all(written.unwrap_or_default().as_bytes());
        }
        let text = self.text.borrow();
        if !text.is_empty() {
            sink.put(b"date", &text);
        }
    }
}
