use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Buf, BufMut};
use foca::{Codec, Header, Identity, Member, Message, State};

use sluicegate_time::{Span, Wall};

/// Bytes of a node's name.
const MAX_NODE_BYTES: usize = 64;

/// A gateway, as its peers know it: where it is, and which of its lives this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerIdentity {
    pub(super) address: SocketAddr,
    /// Of two lives at one address the one with the higher number is the later one: the microsecond since 1970 in which it began,
    /// as its own clock said, or more.
    pub(super) rank: u64,
    /// A random number of the process.
    pub(super) incarnation: u64,
    /// Its name.
    pub(super) node: Arc<str>,
}

/// The first step of a rank that is not accepted; each further one goes some three times as far.
const FIRST_STEP: Span = Span::from_secs(10);

impl PeerIdentity {
    pub(super) fn new(address: SocketAddr, node: &Arc<str>, incarnation: u64, now: Wall) -> Self {
        Self { address, rank: micros(now), incarnation, node: Arc::clone(node) }
    }

    /// A gateway of which nothing is known but its address.
    pub(super) fn unknown(address: SocketAddr) -> Self {
        Self { address, rank: 0, incarnation: 0, node: "".into() }
    }

    /// The same process once more, after the others have called it dead. Its rank is that of now. Where it is refused again and
    /// again, since the process before it began by a clock that was ahead, it steps further ahead each time.
    pub(super) fn again(&self, now: Wall) -> Self {
        let (now, step) = (micros(now), FIRST_STEP.as_nanos() / 1_000);
        let ahead = self.rank.saturating_add(step).saturating_sub(now);
        let rank = if ahead == 0 { now } else { self.rank.saturating_add(ahead.saturating_mul(2).max(step)) };
        Self { rank: rank.max(self.rank.saturating_add(1)), ..self.clone() }
    }
}

fn micros(now: Wall) -> u64 {
    now.as_nanos() / 1_000
}

impl Identity for PeerIdentity {
    type Addr = SocketAddr;

    /// The runner makes the next one: it has a clock.
    fn renew(&self) -> Option<Self> {
        None
    }

    fn addr(&self) -> SocketAddr {
        self.address
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        (self.rank, self.incarnation) > (other.rank, other.incarnation)
    }
}

/// Why bytes are no message about members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodecError {
    /// There is no more room in the datagram.
    Full,
    /// It is none.
    Malformed,
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the datagram is full",
            Self::Malformed => "this is no message about members",
        })
    }
}

impl std::error::Error for CodecError {}

/// The form of messages about members, all numbers big-endian. An identity is 4 or 6, the address (4 or 16 bytes), the port (2), the
/// rank (8), the incarnation (8), and the name behind its length (1). A member is an identity, the number of its state (2), and 0
/// alive, 1 suspect or 2 down. A header is the sender's identity, its number (2), the receiver's identity and the message: a byte
/// each as below, and behind it a probe's number (1) and an identity where the message has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberCodec;

const PING: u8 = 0;
const ACK: u8 = 1;
const PING_REQ: u8 = 2;
const INDIRECT_PING: u8 = 3;
const INDIRECT_ACK: u8 = 4;
const FORWARDED_ACK: u8 = 5;
const ANNOUNCE: u8 = 6;
const FEED: u8 = 7;
const GOSSIP: u8 = 8;
const BROADCAST: u8 = 9;
const TURN_UNDEAD: u8 = 10;

impl Codec<PeerIdentity> for MemberCodec {
    type Error = CodecError;

    fn encode_header(&mut self, header: &Header<PeerIdentity>, buf: impl BufMut) -> Result<(), CodecError> {
        let mut bytes = Vec::new();
        put_identity(&mut bytes, &header.src);
        bytes.put_u16(header.src_incarnation);
        put_identity(&mut bytes, &header.dst);
        let (tag, probe, of) = match &header.message {
            Message::Ping(probe) => (PING, Some(*probe), None),
            Message::Ack(probe) => (ACK, Some(*probe), None),
            Message::PingReq { target, probe_number } => (PING_REQ, Some(*probe_number), Some(target)),
            Message::IndirectPing { origin, probe_number } => (INDIRECT_PING, Some(*probe_number), Some(origin)),
            Message::IndirectAck { target, probe_number } => (INDIRECT_ACK, Some(*probe_number), Some(target)),
            Message::ForwardedAck { origin, probe_number } => (FORWARDED_ACK, Some(*probe_number), Some(origin)),
            Message::Announce => (ANNOUNCE, None, None),
            Message::Feed => (FEED, None, None),
            Message::Gossip => (GOSSIP, None, None),
            Message::Broadcast => (BROADCAST, None, None),
            Message::TurnUndead => (TURN_UNDEAD, None, None),
        };
        bytes.push(tag);
        bytes.extend(probe);
        if let Some(identity) = of {
            put_identity(&mut bytes, identity);
        }
        put(&bytes, buf)
    }

    fn decode_header(&mut self, buf: impl Buf) -> Result<Header<PeerIdentity>, CodecError> {
        take(buf, |rest| {
            let src = identity(rest)?;
            let src_incarnation = u16::from_be_bytes(cut(rest)?);
            let dst = identity(rest)?;
            let [tag] = cut(rest)?;
            let mut probe_number = || cut(rest).map(|[number]| number);
            let message = match tag {
                PING => Message::Ping(probe_number()?),
                ACK => Message::Ack(probe_number()?),
                PING_REQ => Message::PingReq { probe_number: probe_number()?, target: identity(rest)? },
                INDIRECT_PING => Message::IndirectPing { probe_number: probe_number()?, origin: identity(rest)? },
                INDIRECT_ACK => Message::IndirectAck { probe_number: probe_number()?, target: identity(rest)? },
                FORWARDED_ACK => Message::ForwardedAck { probe_number: probe_number()?, origin: identity(rest)? },
                ANNOUNCE => Message::Announce,
                FEED => Message::Feed,
                GOSSIP => Message::Gossip,
                BROADCAST => Message::Broadcast,
                TURN_UNDEAD => Message::TurnUndead,
                _ => return Err(CodecError::Malformed),
            };
            Ok(Header { src, src_incarnation, dst, message })
        })
    }

    fn encode_member(&mut self, member: &Member<PeerIdentity>, buf: impl BufMut) -> Result<(), CodecError> {
        let mut bytes = Vec::new();
        put_identity(&mut bytes, member.id());
        bytes.put_u16(member.incarnation());
        bytes.push(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        put(&bytes, buf)
    }

    fn decode_member(&mut self, buf: impl Buf) -> Result<Member<PeerIdentity>, CodecError> {
        take(buf, |rest| {
            let (id, number, [state]) = (identity(rest)?, u16::from_be_bytes(cut(rest)?), cut(rest)?);
            let state = match state {
                0 => State::Alive,
                1 => State::Suspect,
                2 => State::Down,
                _ => return Err(CodecError::Malformed),
            };
            Ok(Member::new(id, number, state))
        })
    }
}

/// All of it or nothing.
fn put(bytes: &[u8], mut buf: impl BufMut) -> Result<(), CodecError> {
    if buf.remaining_mut() < bytes.len() {
        return Err(CodecError::Full);
    }
    buf.put_slice(bytes);
    Ok(())
}

/// Reads one thing from the front of a buffer that is one piece.
fn take<T>(mut buf: impl Buf, read: impl FnOnce(&mut &[u8]) -> Result<T, CodecError>) -> Result<T, CodecError> {
    let mut rest = buf.chunk();
    let before = rest.len();
    let value = read(&mut rest)?;
    let read = before - rest.len();
    buf.advance(read);
    Ok(value)
}

fn put_identity(bytes: &mut Vec<u8>, identity: &PeerIdentity) {
    match identity.address.ip() {
        IpAddr::V4(ip) => {
            bytes.push(4);
            bytes.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(6);
            bytes.extend(ip.octets());
        }
    }
    bytes.put_u16(identity.address.port());
    bytes.put_u64(identity.rank);
    bytes.put_u64(identity.incarnation);
    // A name is at most so long.
    let node = &identity.node.as_bytes()[..identity.node.len().min(MAX_NODE_BYTES)];
    bytes.push(node.len() as u8);
    bytes.extend(node);
}

fn identity(rest: &mut &[u8]) -> Result<PeerIdentity, CodecError> {
    let ip = match cut(rest)? {
        [4] => IpAddr::V4(Ipv4Addr::from(cut::<4>(rest)?)),
        [6] => IpAddr::V6(Ipv6Addr::from(cut::<16>(rest)?)),
        _ => return Err(CodecError::Malformed),
    };
    let address = SocketAddr::new(ip, u16::from_be_bytes(cut(rest)?));
    let (rank, incarnation) = (u64::from_be_bytes(cut(rest)?), u64::from_be_bytes(cut(rest)?));
    let [length] = cut(rest)?;
    let (node, after) = rest.split_at_checked(length.into()).ok_or(CodecError::Malformed)?;
    let is_name =
        node.len() <= MAX_NODE_BYTES && node.iter().all(|own| own.is_ascii_alphanumeric() || b"._-".contains(own));
    let node = str::from_utf8(node).ok().filter(|_| is_name).ok_or(CodecError::Malformed)?;
    *rest = after;
    Ok(PeerIdentity { address, rank, incarnation, node: node.into() })
}

fn cut<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], CodecError> {
    let (first, after) = rest.split_first_chunk().ok_or(CodecError::Malformed)?;
    *rest = after;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;

    fn identities() -> impl Strategy<Value = PeerIdentity> {
        let address = (any::<bool>(), any::<u128>(), any::<u16>()).prop_map(|(is_four, ip, port)| {
            let ip = if is_four { IpAddr::V4((ip as u32).into()) } else { IpAddr::V6(ip.into()) };
            SocketAddr::new(ip, port)
        });
        (address, any::<u64>(), any::<u64>(), "[a-zA-Z0-9._-]{0,64}").prop_map(|(address, rank, incarnation, node)| {
            PeerIdentity { address, rank, incarnation, node: node.into() }
        })
    }

    fn message(tag: u8, probe_number: u8, other: PeerIdentity) -> Message<PeerIdentity> {
        match tag {
            0 => Message::Ping(probe_number),
            1 => Message::Ack(probe_number),
            2 => Message::PingReq { target: other, probe_number },
            3 => Message::IndirectPing { origin: other, probe_number },
            4 => Message::IndirectAck { target: other, probe_number },
            5 => Message::ForwardedAck { origin: other, probe_number },
            6 => Message::Announce,
            7 => Message::Feed,
            8 => Message::Gossip,
            9 => Message::Broadcast,
            _ => Message::TurnUndead,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_what_is_cut_is_refused(
            (src, dst, other) in (identities(), identities(), identities()),
            (tag, number, probe) in (0_u8..11, any::<u16>(), any::<u8>()),
            room in 0_usize..300,
        ) {
            let header = Header { src, src_incarnation: number, dst, message: message(tag, probe, other.clone()) };
            let mut bytes = BytesMut::new();
            MemberCodec.encode_header(&header, &mut bytes).unwrap();
            let whole = bytes.clone().freeze();
            prop_assert_eq!(MemberCodec.decode_header(&mut bytes).unwrap(), header.clone());
            prop_assert!(bytes.is_empty(), "all of it, and no more");
            for end in 0..whole.len() {
                prop_assert_eq!(MemberCodec.decode_header(&whole[..end]), Err(CodecError::Malformed));
            }
            let mut small = BytesMut::new().limit(room);
            let written = MemberCodec.encode_header(&header, &mut small);
            prop_assert_eq!(written.is_ok(), room >= whole.len());
            prop_assert!(written.is_ok() || small.get_ref().is_empty());
            for state in [State::Alive, State::Suspect, State::Down] {
                let member = Member::new(other.clone(), number, state);
                let mut bytes = BytesMut::new();
                MemberCodec.encode_member(&member, &mut bytes).unwrap();
                prop_assert_eq!(MemberCodec.decode_member(&mut bytes).unwrap(), member);
            }
        }

        #[test]
        fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = MemberCodec.decode_header(&bytes[..]);
            let _ = MemberCodec.decode_member(&bytes[..]);
        }
    }

    #[test]
    fn a_rank_is_the_time_and_steps_further_while_it_is_refused() {
        let (address, at) =
            (SocketAddr::from(([10, 0, 0, 1], 7946)), |secs: u64| Wall::from_nanos(secs * 1_000_000_000));
        let first = PeerIdentity::new(address, &"gw".into(), 7, at(1_000));
        assert_eq!(first.rank, 1_000_000_000);
        assert_eq!(first.again(at(2_000)).rank, 2_000_000_000, "long after");
        // By a clock that was a day ahead another process was here before: refused again and again, it gets there soon.
        let before = PeerIdentity::new(address, &"gw".into(), 6, at(1_000 + 86_400));
        let (mut now, mut own, mut times) = (1_000, first, 0);
        while before.win_addr_conflict(&own) {
            let next = own.again(at(now));
            assert!(next.win_addr_conflict(&own));
            (own, now, times) = (next, now + 1, times + 1);
        }
        assert_eq!(times, 9);
    }
}
