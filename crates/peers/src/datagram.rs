use std::fmt;

use sluicegate_time::Span;

use crate::CountKey;

/// The version of the form below.
const VERSION: u8 = 1;
/// Version, incarnation, number, an acknowledgement or zeros, the number of entries.
const HEADER: usize = 1 + 8 + 8 + 1 + 24 + 2;
/// Limit, fingerprint, epoch, count, level.
const ENTRY: usize = 8 + 8 + 8 + 8 + 8;

/// One message from a gateway to another: the counts that have changed, and the datagrams that have arrived.
///
/// As bytes it has one form only, all numbers big-endian: version (1 byte), incarnation (8), number (8), 1 or 0 for an
/// acknowledgement (1), its incarnation, highest number and bitmap or zeros (24), the number of entries (2), and of each its
/// limit (8), fingerprint (8), epoch (8), count (8) and level in nanoseconds (8).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Datagram {
    /// The life of the sender.
    pub incarnation: u64,
    /// Its number towards this receiver, from one on.
    pub sequence: u64,
    /// The datagrams of the receiver that the sender has.
    pub acknowledged: Option<Acknowledgement>,
    /// The sender's own counts.
    pub entries: Vec<KeyCount>,
}

/// The datagrams that have arrived from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acknowledgement {
    /// The life of the peer that they are of.
    pub incarnation: u64,
    /// The highest number.
    pub highest: u64,
    /// The 64 before it: bit i is `highest - 1 - i`.
    pub before: u64,
}

/// A gateway's spend of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyCount {
    /// The key.
    pub key: CountKey,
    /// The life of the key at this incarnation, from one on: a count begins with zero in each.
    pub epoch: u64,
    /// The tokens that the gateway has spent in it, all together.
    pub count: u64,
    /// How much of it a bucket would still remember, as the time in which it comes back.
    pub level: Span,
}

/// Why bytes are no datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramError {
    /// It has another version.
    Version,
    /// It is shorter or longer than it says.
    Length,
    /// A number is zero that cannot be, or the flag is neither 0 nor 1.
    Value,
}

impl fmt::Display for DatagramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "the datagram has another version",
            Self::Length => "the datagram is cut or too long",
            Self::Value => "the datagram has a number that cannot be",
        })
    }
}

impl std::error::Error for DatagramError {}

impl Acknowledgement {
    /// Whether it names a number.
    pub fn covers(&self, sequence: u64) -> bool {
        match self.highest.checked_sub(sequence) {
            None => false,
            Some(0) => true,
            Some(behind) => behind <= 64 && self.before >> (behind - 1) & 1 == 1,
        }
    }
}

impl Datagram {
    /// The entries that fit into so many bytes.
    pub fn capacity(max_bytes: usize) -> usize {
        (max_bytes.saturating_sub(HEADER) / ENTRY).min(usize::from(u16::MAX))
    }

    /// Its bytes. Entries beyond 65,535 are left out.
    pub fn encode(&self) -> Vec<u8> {
        let entries = u16::try_from(self.entries.len()).unwrap_or(u16::MAX);
        let mut bytes = Vec::with_capacity(HEADER + usize::from(entries) * ENTRY);
        bytes.push(VERSION);
        bytes.extend(self.incarnation.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.push(u8::from(self.acknowledged.is_some()));
        let ack = self.acknowledged.unwrap_or(Acknowledgement { incarnation: 0, highest: 0, before: 0 });
        for number in [ack.incarnation, ack.highest, ack.before] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(entries.to_be_bytes());
        for entry in self.entries.iter().take(usize::from(entries)) {
            for number in [entry.key.limit, entry.key.fingerprint, entry.epoch, entry.count, entry.level.as_nanos()] {
                bytes.extend(number.to_be_bytes());
            }
        }
        bytes
    }

    /// The datagram of these bytes, which are all of it.
    pub fn decode(bytes: &[u8]) -> Result<Self, DatagramError> {
        let mut rest = bytes;
        let [version] = cut(&mut rest)?;
        if version != VERSION {
            return Err(DatagramError::Version);
        }
        let (incarnation, sequence) = (number(&mut rest)?, number(&mut rest)?);
        let [flag] = cut(&mut rest)?;
        let ack = Acknowledgement {
            incarnation: number(&mut rest)?,
            highest: number(&mut rest)?,
            before: number(&mut rest)?,
        };
        let acknowledged = match flag {
            0 if (ack.incarnation, ack.highest, ack.before) == (0, 0, 0) => None,
            1 if ack.highest > 0 => Some(ack),
            _ => return Err(DatagramError::Value),
        };
        let count = usize::from(u16::from_be_bytes(cut(&mut rest)?));
        if rest.len() != count * ENTRY {
            return Err(DatagramError::Length);
        }
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let key = CountKey { limit: number(&mut rest)?, fingerprint: number(&mut rest)? };
            let (epoch, count) = (number(&mut rest)?, number(&mut rest)?);
            let level = Span::from_nanos(number(&mut rest)?);
            if epoch == 0 || count == 0 {
                return Err(DatagramError::Value);
            }
            entries.push(KeyCount { key, epoch, count, level });
        }
        if sequence == 0 {
            return Err(DatagramError::Value);
        }
        Ok(Self { incarnation, sequence, acknowledged, entries })
    }
}

fn cut<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], DatagramError> {
    let (first, after) = rest.split_first_chunk().ok_or(DatagramError::Length)?;
    *rest = after;
    Ok(*first)
}

fn number(rest: &mut &[u8]) -> Result<u64, DatagramError> {
    cut(rest).map(u64::from_be_bytes)
}
