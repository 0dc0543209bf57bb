use redis::Value;

use sluicegate_redact::is_terminal_control;
use sluicegate_time::{Span, Tick};

/// A member says that it lives about so often.
pub const HEARTBEAT: Span = Span::from_secs(1);
/// A member that says nothing for so long is gone.
pub const STAYS: Span = Span::from_secs(3);
/// The most names that a [`Members`] has.
pub const MAX_NAMES: usize = 64;
/// Characters of a name that are shown; our own are shorter.
const MAX_NAME: usize = 128;

/// The gateways that live, as the store knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// How many they are.
    pub count: u64,
    /// The names of some, at most [`MAX_NAMES`].
    pub names: Vec<String>,
    /// The store's clock, in microseconds since 1970.
    pub clock: u64,
}

/// How many gateways live, as this one believes. It rises at once and falls late: too low a number would let each spend more
/// than its part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Living {
    count: u32,
    /// Since when the store has named fewer.
    fewer_since: Option<Tick>,
}

impl Default for Living {
    fn default() -> Self {
        Self { count: 1, fewer_since: None }
    }
}

impl Living {
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The store has named so many, at `now`, and has heard of this gateway without a break since `since`: after a break, or
    /// in a store that has lost its members, the others come back one by one.
    pub(super) fn see(&mut self, members: u64, (now, since): (Tick, Tick)) {
        let members = u32::try_from(members).unwrap_or(u32::MAX).max(1);
        if members >= self.count {
            *self = Self { count: members, fewer_since: None };
            return;
        }
        let fewer_since = self.fewer_since.unwrap_or(now).max(since);
        self.fewer_since = Some(fewer_since);
        if now.since(fewer_since) >= STAYS {
            *self = Self { count: members, fewer_since: None };
        }
    }
}

/// The name of a gateway among the members: its node, and a random number of the process, so that several on one host are
/// several.
pub fn member_name(node: &str, random: u32) -> String {
    format!("{node}-{random:08x}")
}

/// The key of the set of members.
pub fn members_key(prefix: &str) -> String {
    format!("{prefix}:members")
}

/// A key that says only whether the server of a cluster that has it takes writes.
pub(super) fn probe_key(prefix: &str, number: u32) -> String {
    format!("{prefix}:probe:{number}")
}

impl Members {
    /// Reads the reply of the script.
    pub(super) fn read(reply: &Value) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        let [Value::Int(count), Value::Array(names), Value::Int(clock)] = parts.as_slice() else { return None };
        let name = |value: &Value| match value {
            Value::BulkString(bytes) => Some(plain(bytes)),
            _ => None,
        };
        let names = names.iter().take(MAX_NAMES).map(name).collect::<Option<_>>()?;
        Some(Self { count: u64::try_from(*count).ok()?, names, clock: u64::try_from(*clock).ok()? })
    }
}

/// A name as it may be shown: others may write to the store, and a name could steer a terminal.
fn plain(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars().take(MAX_NAME).map(|own| if is_terminal_control(own) { '?' } else { own }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_host_are_several_members() {
        assert_eq!(member_name("gw-1", 0xbeef), "gw-1-0000beef");
        assert_eq!(members_key("sluicegate"), "sluicegate:members");
    }

    #[test]
    fn a_name_that_another_wrote_steers_no_terminal() {
        let names = [b"\x1b[2Jgw\n".to_vec(), vec![b'x'; 9_000]].map(Value::BulkString).to_vec();
        let read = Members::read(&Value::Array(vec![Value::Int(2), Value::Array(names), Value::Int(9)])).unwrap();
        assert_eq!((read.names[0].as_str(), read.names[1].len()), ("?[2Jgw?", 128));
    }

    #[test]
    fn the_number_of_gateways_rises_at_once_and_falls_after_three_seconds() {
        let at = |seconds| Tick::ZERO + Span::from_secs(seconds);
        let mut living = Living::default();
        let mut see = |members, now, since| {
            living.see(members, (at(now), at(since)));
            living.count()
        };
        assert_eq!(see(3, 1, 1), 3);
        assert_eq!([see(1, 2, 1), see(3, 3, 1)], [3, 3], "the members were lost, and are back");
        assert_eq!([see(2, 4, 1), see(2, 5, 1), see(2, 6, 1), see(2, 7, 1)], [3, 3, 3, 2], "one was killed");
        assert_eq!(see(4, 8, 1), 4);
        assert_eq!([see(1, 9, 1), see(1, 20, 20), see(2, 22, 20)], [4, 4, 4], "after an outage nobody is there yet");
        assert_eq!([see(2, 23, 20), see(0, 24, 20), see(0, 27, 20)], [2, 2, 1]);
    }

    #[test]
    fn a_reply_of_another_shape_names_nobody() {
        let names = |count| Value::Array(vec![Value::BulkString(b"a".to_vec()); count]);
        let read = Members::read(&Value::Array(vec![Value::Int(70), names(70), Value::Int(9)])).unwrap();
        assert_eq!((read.count, read.names.len(), read.clock), (70, MAX_NAMES, 9));
        for reply in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1), names(1)]),
            Value::Array(vec![Value::Int(-1), names(1), Value::Int(9)]),
            Value::Array(vec![Value::Int(1), names(1), Value::Int(-9)]),
            Value::Array(vec![Value::Int(1), Value::Array(vec![Value::Int(1)]), Value::Int(9)]),
        ] {
            assert_eq!(Members::read(&reply), None, "{reply:?}");
        }
    }
}
