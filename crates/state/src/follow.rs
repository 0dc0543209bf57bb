use std::io::{self, Read, Write};
use std::num::NonZeroU8;

use super::read::{name_of, next_block};
use super::write::Out;
use super::{FOLLOWED, MAX_BLOCK};
use sluicegate_limiter::{Fingerprint, Followed};
use sluicegate_time::Tick;

/// Bytes of one of them: key, cost and instant.
const RECORD: usize = 24;
/// Bits of a cost. Above them is a day, 0 for none: versions before it have sent nothing there.
const COST_BITS: u32 = 59;
const MOST_COST: u64 = (1 << COST_BITS) - 1;
/// Of one block, which is well below the largest.
const MOST: usize = 100_000;
const _: () = assert!(MOST * RECORD * 2 < MAX_BLOCK as usize);

/// Sends what the limit of this name has counted since its keys were [sent](super::send).
///
/// # Errors
/// The other process does not read any more.
pub fn send_followed(to: impl Write, name: &str, followed: &[Followed]) -> io::Result<()> {
    let mut out = Out::new(to);
    for some in followed.chunks(MOST) {
        let mut block = Vec::with_capacity(4 + name.len() + some.len() * RECORD);
        block.extend_from_slice(&(name.len() as u32).to_le_bytes());
        block.extend_from_slice(name.as_bytes());
        for Followed { key, cost, at, renews } in some {
            let day = renews.map_or(0, |day| u64::from(day.get()));
            for word in [key.bits(), (*cost).min(MOST_COST) | day << COST_BITS, at.as_nanos()] {
                block.extend_from_slice(&word.to_le_bytes());
            }
        }
        out.block(FOLLOWED, &block)?;
    }
    out.to.flush()
}

/// The next of what [`send_followed`] sent; `None` at the end, and where it is not sound.
pub fn receive_followed(from: &mut impl Read) -> Option<(String, Vec<Followed>)> {
    let mut block = Vec::new();
    if next_block(from, &mut block)? != FOLLOWED {
        return None;
    }
    let name = name_of(&block)?;
    let records = block.get(4 + name.len()..)?;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let followed = records.chunks_exact(RECORD).filter_map(|record| {
        let (key, rest) = record.split_at(8);
        let (cost, at) = rest.split_at(8);
        let (key, cost, at) = (Fingerprint::known(word(key))?, word(cost), Tick::from_nanos(word(at)));
        let renews = NonZeroU8::new((cost >> COST_BITS) as u8);
        Some(Followed { key, cost: cost & MOST_COST, at, renews })
    });
    Some((name, followed.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_and_days_come_as_they_were_sent() {
        let key = Fingerprint::known(7).unwrap();
        let of = |cost, day| Followed { key, cost, at: Tick::from_nanos(9), renews: NonZeroU8::new(day) };
        let sent = [of(1, 0), of(0, 31), of(MOST_COST, 1), of(MOST_COST, 0)];
        let mut block = Vec::new();
        send_followed(&mut block, "l", &sent).unwrap();
        let (name, followed) = receive_followed(&mut block.as_slice()).unwrap();
        assert_eq!((name.as_str(), followed.as_slice()), ("l", &sent[..]));
    }
}
