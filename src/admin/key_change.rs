//! Changes of single keys: what is asked of the gateway, and why it does not do it.

/// The thing to be done with a key of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange<'b> {
    /// Its counts are forgotten.
    Reset,
    /// It is refused. The body says until when, and why.
    Block(&'b [u8]),
    /// It is refused no more.
    Unblock,
    /// It has numbers of its own. The body says which.
    Override(&'b [u8]),
    /// It has the limit's numbers again.
    NoOverride,
}

/// Why a key is not changed, or not shown, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unchanged {
    /// There is no such limit, that is no value of its key, or there is nothing to take away.
    Unknown(String),
    /// A mark stands for several keys.
    Ambiguous(String),
    /// The body is no JSON.
    Unreadable(String),
    /// The body says something that cannot be.
    Wrong(String),
    /// There are as many exceptions as there may be.
    Full(String),
    /// Another process has taken over.
    Ended(String),
}
