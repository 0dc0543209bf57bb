use super::template::Template;

/// The changes to the fields of a message: some are removed, then some are set, then some are added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldEdits {
    set: Vec<(Box<str>, Template)>,
    add: Vec<(Box<str>, Template)>,
    remove: Vec<Box<str>>,
}

impl FieldEdits {
    /// Names are in lower case. A field that is set takes the place of all that there are of its name.
    pub fn new(set: Vec<(Box<str>, Template)>, add: Vec<(Box<str>, Template)>, remove: Vec<Box<str>>) -> Self {
        Self { set, add, remove }
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }

    /// No edits.
    pub const fn none() -> Self {
        Self { set: Vec::new(), add: Vec::new(), remove: Vec::new() }
    }

    /// Whether a field that is there is left out. `name` in any case, and with `_` for `-`: servers that put fields into
    /// variables, as CGI does, would take one for the other, and what a client wrote for what is set here.
    pub fn cuts(&self, name: &[u8]) -> bool {
        let is_it = |own: &str| is_same_field(own, name);
        self.remove.iter().any(|own| is_it(own)) || self.set.iter().any(|(own, _)| is_it(own))
    }

    /// The fields that are set, then those that are added.
    pub fn written(&self) -> impl Iterator<Item = (&str, &Template)> {
        self.set.iter().chain(&self.add).map(|(name, value)| (&**name, value))
    }

    /// The fields that are set, as they were given.
    pub fn set(&self) -> &[(Box<str>, Template)] {
        &self.set
    }

    /// The fields that are added, as they were given.
    pub fn add(&self) -> &[(Box<str>, Template)] {
        &self.add
    }

    /// The fields that are removed, as they were given.
    pub fn removed(&self) -> &[Box<str>] {
        &self.remove
    }
}

/// Whether two names are one to a server that puts fields into variables, as CGI does: whatever their case, and with `_`
/// for `-`.
pub fn is_same_field(own: &str, name: &[u8]) -> bool {
    let fold = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    own.len() == name.len() && own.bytes().zip(name).all(|(a, b)| fold(a) == fold(*b))
}
