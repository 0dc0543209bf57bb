use redis::Value;

use crate::time::Span;

/// A member says that it lives about so often.
pub const HEARTBEAT: Span = Span::from_secs(1);
/// A member that says nothing for so long is gone.
pub const STAYS: Span = Span::from_secs(3);
/// The most names that a [`Members`] has.
pub const MAX_NAMES: usize = 64;

/// The gateways that live, as the store knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// How many they are.
    pub count: u64,
    /// The names of some, at most [`MAX_NAMES`].
    pub names: Vec<String>,
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

impl Members {
    /// Reads the reply of the script.
    pub(super) fn read(reply: &Value) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        let [Value::Int(count), Value::Array(names)] = parts.as_slice() else { return None };
        let name = |value: &Value| match value {
            Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        };
        let names = names.iter().take(MAX_NAMES).map(name).collect::<Option<_>>()?;
        Some(Self { count: u64::try_from(*count).ok()?, names })
    }
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
    fn a_reply_of_another_shape_names_nobody() {
        let names = |count| Value::Array(vec![Value::BulkString(b"a".to_vec()); count]);
        let read = Members::read(&Value::Array(vec![Value::Int(70), names(70)])).unwrap();
        assert_eq!((read.count, read.names.len()), (70, MAX_NAMES));
        for reply in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(-1), names(1)]),
            Value::Array(vec![Value::Int(1), Value::Array(vec![Value::Int(1)])]),
        ] {
            assert_eq!(Members::read(&reply), None, "{reply:?}");
        }
    }
}
