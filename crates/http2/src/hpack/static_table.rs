//! The static table (RFC 7541, Appendix A), and finding a name in it.

/// How many entries there are. The first one has index 1.
pub(super) const LENGTH: usize = 61;

/// Name and value of each entry.
#[rustfmt::skip]
const ENTRIES: [(&[u8], &[u8]); LENGTH] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// The first entry that is no pseudo-header field.
const FIRST_FIELD: usize = 15;

/// The entry with an index, which begins at 1.
#[inline]
pub(super) fn entry(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    ENTRIES.get(index.wrapping_sub(1)).copied()
}

/// The index of a field's name, which may be in any case: 15 or more, since pseudo-header fields are not
/// found.
#[inline]
pub(super) fn name_index(name: &[u8]) -> Option<u8> {
    let (Some(first), Some(last)) = (name.first(), name.last()) else { return None };
    let index = SLOTS[slot(*first, *last, name.len())];
    let (lower, _) = entry(usize::from(index))?;
    is_name(name, lower).then_some(index)
}

/// The index of the one name that can be in each slot, or 0.
static SLOTS: [u8; 1 << SLOT_BITS] = slots();

const SLOT_BITS: u32 = 7;

/// A multiplier that puts no two names into one slot, found by trying.
const SPREAD: u32 = 0x6ee4_fb33;

/// No two names of the table have the same length, first and last byte.
const fn slot(first: u8, last: u8, length: usize) -> usize {
    let lower = u32::from_le_bytes([first | 0x20, last | 0x20, length as u8, 0]);
    (lower.wrapping_mul(SPREAD) >> (32 - SLOT_BITS)) as usize
}

const fn slots() -> [u8; 1 << SLOT_BITS] {
    let mut slots = [0; 1 << SLOT_BITS];
    let mut index = FIRST_FIELD;
    while index <= LENGTH {
        let name = ENTRIES[index - 1].0;
        let slot = slot(name[0], name[name.len() - 1], name.len());
        assert!(slots[slot] == 0, "two names in one slot");
        slots[slot] = index as u8;
        index += 1;
    }
    slots
}

/// Whether `name` is `lower` in any case. `lower` is letters and hyphens.
#[inline]
fn is_name(name: &[u8], lower: &[u8]) -> bool {
    if name.len() != lower.len() {
        return false;
    }
    // Words that overlap: two cover 8 to 16 bytes, two halves 4 to 8. Longer names have more words in between.
    if let (Some(a), Some(b), Some(c), Some(d)) =
        (name.first_chunk(), lower.first_chunk(), name.last_chunk(), lower.last_chunk())
    {
        let is_same = is_same_word(*a, *b) && is_same_word(*c, *d);
        return is_same && (name.len() <= 16 || is_same_inside(name, lower));
    }
    match (name.first_chunk(), lower.first_chunk(), name.last_chunk(), lower.last_chunk()) {
        (Some(a), Some(b), Some(c), Some(d)) => is_same_half(*a, *b) && is_same_half(*c, *d),
        // `age` and `via`.
        _ => name.iter().zip(lower).all(|(a, b)| a.to_ascii_lowercase() == *b),
    }
}

fn is_same_inside(name: &[u8], lower: &[u8]) -> bool {
    let words = name.as_chunks().0.iter().zip(lower.as_chunks().0);
    words.skip(1).all(|(a, b)| is_same_word(*a, *b))
}

/// Lower case is bit 0x20 of a letter, and letters are the bytes of `lower` with bit 0x40.
fn is_same_word(bytes: [u8; 8], lower: [u8; 8]) -> bool {
    let lower = u64::from_ne_bytes(lower);
    u64::from_ne_bytes(bytes) | (lower & u64::from_ne_bytes([0x40; 8])) >> 1 == lower
}

fn is_same_half(bytes: [u8; 4], lower: [u8; 4]) -> bool {
    let lower = u32::from_ne_bytes(lower);
    u32::from_ne_bytes(bytes) | (lower & u32::from_ne_bytes([0x40; 4])) >> 1 == lower
}
