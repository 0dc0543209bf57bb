use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{END, LIMIT, MAGIC, MAX_BLOCK, Mark, RECORDS, VERSION, WALL, identity};
use sluicegate_files::beside;
use sluicegate_limiter::Limit;
use sluicegate_time::{Span, Tick, Wall, WallState};

/// A file that was written so much later than now was written by another clock: what it counts would count for too long.
const FUTURE: Span = Span::from_secs(60);

/// The keys that were taken over of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredKeys {
    /// Keys that count.
    pub keys: u64,
    /// Keys that do not count any more, or had no room.
    pub left: u64,
    /// Limits whose keys were left out: they are gone, or have other numbers.
    pub unknown: Vec<String>,
    /// When it was written.
    pub at: Tick,
}

/// Why a file was not taken over, or not all of it.
#[derive(Debug)]
pub enum ReadError {
    /// There is none.
    NoFile,
    /// It cannot be opened or read.
    Io(io::Error),
    /// It is something else, or its head is damaged.
    NotOurs,
    /// It was written by another version.
    Version(u32),
    /// Its keys were made with another secret.
    OtherSecret,
    /// It was written in the future.
    Future(Tick),
    /// It is cut off or damaged; what came before was taken.
    Damaged(RestoredKeys),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => write!(f, "there is no file"),
            Self::Io(error) => write!(f, "it cannot be read: {error}"),
            Self::NotOurs => write!(f, "it is no state file, or its head is damaged"),
            Self::Version(version) => write!(f, "it is of version {version}, and this is {VERSION}"),
            Self::OtherSecret => write!(f, "its keys were made with another secret"),
            Self::Future(at) => {
                write!(f, "it was written in the future, at {:.3}", Wall::from_nanos(at.as_nanos()).timestamp())
            }
            Self::Damaged(taken) => {
                write!(f, "it is cut off or damaged; {} keys before that were taken over", taken.keys)
            }
        }
    }
}

impl std::error::Error for ReadError {}

impl ReadError {
    /// Whether the file is to be left aside, so that the next one does not replace what somebody may want to look at.
    pub fn is_bad(&self) -> bool {
        !matches!(self, Self::NoFile | Self::Io(_))
    }
}

/// Takes over what the file at `path` has for the limits that `find` knows by their names. A bad one is renamed to
/// `PATH.bad`.
///
/// # Errors
/// See [`ReadError`]. None is a reason not to start.
pub fn read(
    path: &Path,
    mark: Mark,
    now: Tick,
    find: impl Fn(&str) -> Option<Arc<Limit>>,
) -> Result<RestoredKeys, (ReadError, Option<PathBuf>)> {
    take(path, mark, now, find).map_err(|error| {
        let bad = beside(path, ".bad");
        let is_moved = error.is_bad() && fs::rename(path, &bad).is_ok();
        (error, is_moved.then_some(bad))
    })
}

fn take(
    path: &Path,
    mark: Mark,
    now: Tick,
    find: impl Fn(&str) -> Option<Arc<Limit>>,
) -> Result<RestoredKeys, ReadError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ReadError::NoFile),
        opened => opened.map_err(ReadError::Io)?,
    };
    if !file.metadata().map_err(ReadError::Io)?.is_file() {
        return Err(ReadError::NotOurs);
    }
    receive(&mut BufReader::with_capacity(1 << 20, file), mark, now, find)
}

/// Takes over what another process [sends](super::send), as [`read`] does from a file.
///
/// # Errors
/// See [`ReadError`].
pub fn receive(
    from: &mut impl Read,
    mark: Mark,
    now: Tick,
    find: impl Fn(&str) -> Option<Arc<Limit>>,
) -> Result<RestoredKeys, ReadError> {
    let at = read_head(from, mark, now)?;
    let mut taken = RestoredKeys { at, ..RestoredKeys::default() };
    let mut of: Option<(Arc<Limit>, usize)> = None;
    let (mut block, mut words) = (Vec::new(), Vec::new());
    loop {
        let Some(kind) = next_block(from, &mut block) else { return Err(ReadError::Damaged(taken)) };
        match kind {
            LIMIT => {
                let name = name_of(&block).unwrap_or_default();
                // Under another layout it is another limit.
                of = find(&name).and_then(|limit| {
                    let layout = limit.key_layout().filter(|layout| identity(&name, layout) == block)?;
                    Some((limit, layout.words))
                });
                if of.is_none() {
                    taken.unknown.push(name);
                }
            }
            RECORDS => {
                let Some((limit, stride)) = &of else { continue };
                words.clear();
                words.extend(block.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)));
                let (count, kept) = ((words.len() / stride) as u64, limit.take_over_keys(&words, now));
                taken.keys += kept;
                taken.left += count - kept.min(count);
            }
            WALL => {}
            END => return Ok(taken),
            _ => return Err(ReadError::Damaged(taken)),
        }
    }
}

/// How ticks and the wall clock stand for a process that goes on with the counts of a file, at `now` by the wall clock; `None`:
/// there is no such file, or they were one when it was written.
pub fn wall_of(path: &Path, mark: Mark, now: Wall) -> Option<WallState> {
    let mut file =
        BufReader::new(File::open(path).ok().filter(|file| file.metadata().is_ok_and(|data| data.is_file()))?);
    // By whatever clock.
    let at = read_head(&mut file, mark, Tick::MAX).ok()?;
    let mut block = Vec::new();
    next_block(&mut file, &mut block).filter(|kind| *kind == WALL)?;
    let word = |at: usize| block.get(at * 8..at * 8 + 8)?.try_into().ok().map(u64::from_le_bytes);
    let highest_for = Span::from_nanos(word(2)?);
    let was = WallState { ahead: word(0)?.cast_signed(), highest: Wall::from_nanos(word(1)?), highest_for };
    Some(resumed(was, at, now))
}

/// The same, where they stood so at a tick. The wall clock may have been put right since, while no process ran: then it is
/// ahead no more. Of the two, less time has passed by the true one; and not less than none. A minute is not worth a doubt.
fn resumed(was: WallState, at: Tick, now: Wall) -> WallState {
    let age = |ahead: i64| i128::from(now.as_nanos()) - i128::from(ahead) - i128::from(at.as_nanos());
    let doubt = i128::from(FUTURE.as_nanos());
    let is_right = age(was.ahead) < -doubt || age(0) >= -doubt && age(0) + doubt < age(was.ahead);
    let ahead = if is_right { 0 } else { was.ahead };
    let passed = u64::try_from(age(ahead).max(0)).unwrap_or(u64::MAX);
    let highest_for = Span::from_nanos(was.highest_for.as_nanos().saturating_sub(passed));
    let shown = Wall::from_nanos(at.as_nanos().saturating_add_signed(was.ahead));
    if is_right && shown > now {
        // It was set back, as it would have been under a process that ran.
        return WallState { ahead, highest: shown.max(was.highest), highest_for: Span::MAX };
    }
    WallState { ahead, highest_for, ..was }
}

/// When it was written.
fn read_head(file: &mut impl Read, mark: Mark, now: Tick) -> Result<Tick, ReadError> {
    let mut head = [0; 32];
    file.read_exact(&mut head).map_err(|_| ReadError::NotOurs)?;
    let number =
        |from: usize| head.get(from..from + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    if &head[..8] != MAGIC {
        return Err(ReadError::NotOurs);
    }
    let [version, sum] = [8, 28].map(|from: usize| {
        head.get(from..from + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
    });
    if version != VERSION {
        return Err(ReadError::Version(version));
    }
    if crc32c::crc32c(&head[..28]) != sum {
        return Err(ReadError::NotOurs);
    }
    if Mark(number(20)) != mark {
        return Err(ReadError::OtherSecret);
    }
    let at = Tick::from_nanos(number(12));
    if at > now + FUTURE {
        return Err(ReadError::Future(at));
    }
    Ok(at)
}

/// The kind of the next block, whose bytes are in `block` then; `None`: it is not sound.
pub(super) fn next_block(file: &mut impl Read, block: &mut Vec<u8>) -> Option<u8> {
    let mut head = [0; 5];
    file.read_exact(&mut head).ok()?;
    let length = u32::from_le_bytes(head[1..].try_into().ok()?);
    if length > MAX_BLOCK {
        return None;
    }
    block.clear();
    // It grows as bytes come: what a length says costs nothing.
    file.take(length.into()).read_to_end(block).ok().filter(|read| *read == length as usize)?;
    let mut sum = [0; 4];
    file.read_exact(&mut sum).ok()?;
    let is_sound = crc32c::crc32c_append(crc32c::crc32c(&head), block) == u32::from_le_bytes(sum);
    is_sound.then_some(head[0])
}

pub(super) fn name_of(block: &[u8]) -> Option<String> {
    let length = u32::from_le_bytes(block.get(..4)?.try_into().ok()?) as usize;
    String::from_utf8(block.get(4..4 + length)?.to_vec()).ok()
}
