//! The lines of one field that are held back until it is known what becomes of them.

use super::Sink;

/// The values of lines of one name, in order: nearly always one.
#[derive(Debug, Default)]
pub struct FieldValues<'f> {
    first: Option<&'f [u8]>,
    others: Vec<&'f [u8]>,
}

impl<'f> FieldValues<'f> {
    /// Another line. Those before the first that says something are none.
    pub fn add(&mut self, value: &'f [u8]) {
        if self.first.is_some() {
            self.others.push(value);
        } else if !value.is_empty() {
            self.first = Some(value);
        }
    }

    /// Whether nothing was said.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The values of the lines, in order.
    pub fn values(&self) -> impl Iterator<Item = &'f [u8]> {
        self.first.into_iter().chain(self.others.iter().copied())
    }

    /// Writes them as one list, with `last` at its end if there is something of it.
    pub fn put(&self, name: &[u8], last: &[&[u8]], sink: &mut impl Sink) {
        match (self.first, last) {
            (None, [value]) => sink.put(name, value),
            (None, parts) => sink.put_joined(name, parts),
            (Some(first), []) if self.others.is_empty() => sink.put(name, first),
            (Some(first), [last]) if self.others.is_empty() => sink.put_joined(name, &[first, b", ", last]),
            (Some(first), last) => {
                let mut parts = vec![first];
                for other in &self.others {
                    parts.extend([b", ", *other]);
                }
                if !last.is_empty() {
                    parts.push(b", ");
                    parts.extend(last);
                }
                sink.put_joined(name, &parts);
            }
        }
    }
}
