//! A value that JSON and TOML share. From JSON it is read strictly: TOML has no null, and its integers have 64 bits.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use toml_edit::Item;

/// Tables and lists inside each other in a value from JSON. No section of the configuration has so many.
const MAX_DEPTH: usize = 16;

/// A value.
#[derive(Clone, Debug)]
pub enum Value {
    /// A text; a TOML date is one too, as it is written.
    Text(String),
    /// An integer.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// True or false.
    Flag(bool),
    /// An array.
    List(Vec<Value>),
    /// A table.
    Table(ValueTable),
}

/// Keys and their values, in the order in which they were written. The order counts for nothing where two are compared.
#[derive(Clone, Debug, Default)]
pub struct ValueTable(Vec<(String, Value)>);

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(own), Self::Text(other)) => own == other,
            (Self::Integer(own), Self::Integer(other)) => own == other,
            // A value that is no number is equal to itself, too.
            (Self::Float(own), Self::Float(other)) => own.to_bits() == other.to_bits(),
            (Self::Flag(own), Self::Flag(other)) => own == other,
            (Self::List(own), Self::List(other)) => own == other,
            (Self::Table(own), Self::Table(other)) => own == other,
            _ => false,
        }
    }
}

impl PartialEq for ValueTable {
    fn eq(&self, other: &Self) -> bool {
        let sorted = |table: &Self| {
            let mut keys: Vec<usize> = (0..table.0.len()).collect();
            keys.sort_by(|one, two| table.0[*one].0.cmp(&table.0[*two].0));
            keys
        };
        self.0.len() == other.0.len()
            && sorted(self).into_iter().zip(sorted(other)).all(|(own, theirs)| self.0[own] == other.0[theirs])
    }
}

impl ValueTable {
    /// Reads the JSON object that `json` is.
    ///
    /// # Errors
    /// It is no JSON, no object, has a key twice, or a value that TOML does not have. The message names the line and column,
    /// and repeats no value.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let mut reader = serde_json::Deserializer::from_slice(json);
        let value = Seed { depth: 0 }.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
        match value.map_err(|error| error.to_string())? {
            Value::Table(table) => Ok(table),
            _ => Err("this is no JSON object".to_owned()),
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(own, _)| own == key).map(|(_, value)| value)
    }

    /// Keys and values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives a key another value, in its place; a new key comes last.
    pub fn set(&mut self, key: &str, value: Value) {
        match self.0.iter_mut().find(|(own, _)| own == key) {
            Some((_, own)) => *own = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Takes a key away; its value.
    pub fn take(&mut self, key: &str) -> Option<Value> {
        let at = self.0.iter().position(|(own, _)| own == key)?;
        Some(self.0.remove(at).1)
    }

    /// The same with one key before all others.
    pub(super) fn with_first(mut self, key: &str, value: Value) -> Self {
        self.take(key);
        self.0.insert(0, (key.to_owned(), value));
        self
    }

    /// A table of TOML.
    pub(super) fn of(table: &toml_edit::Table) -> Self {
        Self(table.iter().map(|(key, item)| (key.to_owned(), Value::of(item))).collect())
    }
}

impl Value {
    /// An item of TOML.
    pub(super) fn of(item: &Item) -> Self {
        match item {
            // The parser makes none of these.
            Item::None => Self::Table(ValueTable::default()),
            Item::Value(value) => Self::of_value(value),
            Item::Table(table) => Self::Table(ValueTable::of(table)),
            Item::ArrayOfTables(tables) => {
                Self::List(tables.iter().map(|table| Self::Table(ValueTable::of(table))).collect())
            }
        }
    }

    /// A value as a file has it; `None`: this is none.
    pub fn from_toml(text: &str) -> Option<Self> {
        text.parse().ok().as_ref().map(Self::of_value)
    }

    fn of_value(value: &toml_edit::Value) -> Self {
        match value {
            toml_edit::Value::String(text) => Self::Text(text.value().clone()),
            toml_edit::Value::Integer(number) => Self::Integer(*number.value()),
            toml_edit::Value::Float(number) => Self::Float(*number.value()),
            toml_edit::Value::Boolean(flag) => Self::Flag(*flag.value()),
            toml_edit::Value::Datetime(moment) => Self::Text(moment.value().to_string()),
            toml_edit::Value::Array(list) => Self::List(list.iter().map(Self::of_value).collect()),
            toml_edit::Value::InlineTable(table) => Self::Table(ValueTable(
                table.iter().map(|(key, value)| (key.to_owned(), Self::of_value(value))).collect(),
            )),
        }
    }

    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Integer(number) => serializer.serialize_i64(*number),
            // JSON has no such numbers; the configuration takes none either.
            Self::Float(number) if !number.is_finite() => serializer.serialize_str(&number.to_string()),
            Self::Float(number) => serializer.serialize_f64(*number),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::List(list) => serializer.collect_seq(list),
            Self::Table(table) => table.serialize(serializer),
        }
    }
}

impl Serialize for ValueTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// Reads a value of JSON that lies so deep.
struct Seed {
    depth: usize,
}

impl Seed {
    fn below<E: Error>(&self) -> Result<Self, E> {
        let depth = self.depth + 1;
        if depth > MAX_DEPTH {
            return Err(E::custom(format!("more than {MAX_DEPTH} arrays and objects inside each other")));
        }
        Ok(Self { depth })
    }
}

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Integer(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        i64::try_from(number).map(Value::Integer).map_err(|_| E::custom(TOO_LARGE))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        // An integer that has no room in 64 bits comes as such a number.
        if number.abs() >= 9.2e18 { Err(E::custom(TOO_LARGE)) } else { Ok(Value::Float(number)) }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Err(E::custom("null is no value of TOML; leave the key out"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.below()?)? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let (mut table, mut keys) = (Vec::new(), HashSet::new());
        while let Some(key) = entries.next_key::<String>()? {
            if !keys.insert(key.clone()) {
                return Err(A::Error::custom("a key is there twice"));
            }
            table.push((key, entries.next_value_seed(self.below()?)?));
        }
        Ok(Value::Table(ValueTable(table)))
    }
}

const TOO_LARGE: &str = "the number has no room in 64 bits";

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Result<String, String> {
        ValueTable::from_json(text.as_bytes()).map(|table| serde_json::to_string(&table).unwrap())
    }

    #[test]
    fn json_is_read_strictly_and_keeps_its_order() {
        let text = r#"{"name":"a","rate":["1/s",2],"b":{"z":true,"a":-1.5},"n":-9223372036854775808}"#;
        assert_eq!(json(text).as_deref(), Ok(text));
        for (text, message) in [
            (r#"{"a":null}"#, "null is no value of TOML; leave the key out at line 1 column 9"),
            (r#"{"a":[1,null]}"#, "null is no value of TOML; leave the key out at line 1 column 12"),
            (r#"{"a":9223372036854775808}"#, "the number has no room in 64 bits at line 1 column 24"),
            (r#"{"a":100000000000000000000}"#, "the number has no room in 64 bits at line 1 column 26"),
            (r#"{"secret":1,"secret":2}"#, "a key is there twice at line 1 column 20"),
            ("[1]", "this is no JSON object"),
            ("\"secret\"", "this is no JSON object"),
            ("{} x", "trailing characters at line 1 column 4"),
            ("", "EOF while parsing a value at line 1 column 0"),
        ] {
            assert_eq!(json(text), Err(message.to_owned()), "{text}");
        }
    }

    #[test]
    fn values_inside_each_other_are_bounded() {
        let nested = |depth: usize| format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(json(&nested(MAX_DEPTH - 1)).is_ok());
        assert!(json(&nested(MAX_DEPTH)).unwrap_err().starts_with("more than 16 arrays"));
        assert!(json(&nested(10_000)).is_err());
    }

    #[test]
    fn the_order_of_keys_counts_for_nothing() {
        let of = |text: &str| ValueTable::from_json(text.as_bytes()).unwrap();
        assert_eq!(of(r#"{"a":1,"b":2}"#), of(r#"{"b":2,"a":1}"#));
        assert_ne!(of(r#"{"a":1,"b":2}"#), of(r#"{"a":1,"b":3}"#));
        assert_ne!(of(r#"{"a":1}"#), of(r#"{"a":1.0}"#));
        assert_ne!(of(r#"{"a":[1,2]}"#), of(r#"{"a":[2,1]}"#));
    }
}
