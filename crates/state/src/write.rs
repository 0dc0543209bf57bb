use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::{END, LIMIT, MAGIC, Mark, Named, RECORDS, VERSION, WALL, identity};
use sluicegate_files::replace_by;
use sluicegate_limiter::Limit;
use sluicegate_time::{Span, Tick, WallState};

/// A wall clock that is nearer to ticks need not be told.
const MATTERS: Span = Span::from_secs(1);

/// The size of a file that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Keys.
    pub keys: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Writes the keys of these limits that count at `now`. The file is there as a whole, with all that was in it synced, or as
/// it was. Only its owner may read it. It is written beside the requests: no shard is held for longer than its copy takes.
///
/// # Errors
/// The directory is not there or not writable, or the disk is full; what was begun is removed.
pub fn write<'l>(
    path: &Path,
    mark: Mark,
    (now, wall): (Tick, &WallState),
    limits: impl IntoIterator<Item = Named<'l>>,
) -> io::Result<Written> {
    replace_by(path, |file| write_all(file, mark, (now, wall), limits, |limit, take| limit.copy_keys(now, take)))
}

/// Sends what [`write`] writes to another process, and follows the limits from then on: what they count after this is to be
/// [sent](super::send_followed) too.
///
/// # Errors
/// The other process does not read any more.
pub fn send<'l>(
    out: impl Write,
    mark: Mark,
    now: Tick,
    limits: impl IntoIterator<Item = Named<'l>>,
) -> io::Result<Written> {
    Ok(write_all(out, mark, (now, &WallState::default()), limits, |limit, take| limit.copy_and_follow(now, take))?.1)
}

/// Takes the records of some keys.
type Take<'t> = &'t mut dyn FnMut(&[u64]) -> io::Result<()>;

fn write_all<'l, W: Write>(
    to: W,
    mark: Mark,
    (now, wall): (Tick, &WallState),
    limits: impl IntoIterator<Item = Named<'l>>,
    copy: impl Fn(&Limit, Take<'_>) -> io::Result<()>,
) -> io::Result<(W, Written)> {
    let mut out = Out::new(to);
    let mut head = Vec::from(MAGIC);
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&now.as_nanos().to_le_bytes());
    head.extend_from_slice(&mark.0.to_le_bytes());
    out.sealed(&head)?;
    let WallState { ahead, highest, highest_for } = wall;
    // Versions before this block can read a file without it.
    if ahead.unsigned_abs() >= MATTERS.as_nanos() || !highest_for.is_zero() {
        let words = [ahead.cast_unsigned(), highest.as_nanos(), highest_for.as_nanos()];
        out.block(WALL, &words.map(u64::to_le_bytes).concat())?;
    }
    for Named { name, limit } in limits {
        let Some(layout) = limit.key_layout() else { continue };
        let mut is_named = false;
        copy(limit, &mut |records| {
            if !std::mem::replace(&mut is_named, true) {
                out.block(LIMIT, &identity(&name, &layout))?;
            }
            out.records(records)?;
            out.written.keys += (records.len() / layout.words) as u64;
            // Whoever waits for this core comes first.
            std::thread::yield_now();
            Ok(())
        })?;
    }
    out.block(END, &out.written.keys.to_le_bytes())?;
    let Out { to, written, .. } = out;
    Ok((to.into_inner().map_err(io::IntoInnerError::into_error)?, written))
}

pub(super) struct Out<W: Write> {
    pub(super) to: BufWriter<W>,
    block: Vec<u8>,
    written: Written,
}

impl<W: Write> Out<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to: BufWriter::with_capacity(1 << 20, to), block: Vec::new(), written: Written::default() }
    }

    fn records(&mut self, records: &[u64]) -> io::Result<()> {
        let mut block = std::mem::take(&mut self.block);
        block.clear();
        block.resize(records.len() * 8, 0);
        for (bytes, word) in block.chunks_exact_mut(8).zip(records) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let result = self.block(RECORDS, &block);
        self.block = block;
        result
    }

    pub(super) fn block(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        let mut head = [kind, 0, 0, 0, 0];
        head[1..].copy_from_slice(&u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&head), bytes);
        for part in [&head[..], bytes, &sum.to_le_bytes()] {
            self.to.write_all(part)?;
            self.written.bytes += part.len() as u64;
        }
        Ok(())
    }

    fn sealed(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.to.write_all(&crc32c::crc32c(bytes).to_le_bytes())?;
        self.written.bytes += bytes.len() as u64 + 4;
        Ok(())
    }
}
