//! The fates of the records of a replay: `DIRECTORY/replays/NAME.jsonl`, a line of JSON each.
//!
//! The first line says what was asked for: `{"v":1,"replay":NAME,"at":…,"settings":{…}}`. Then one line for each record that has
//! its fate: `{"id":…,"at":…,"state":"sent","status":200,"tries":2}` or `{"id":…,"at":…,"state":"parked","reason":"…","tries":8}`.
//! A replay that came to its end has `{"state":"ended","at":…}` last. A line is written before the next record of its key is
//! sent. A line that a crash has cut counts as none, so its record is sent again, under the same idempotency key.
//!
//! One replay of a directory runs at a time: it holds a lock on `replays/.lock`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use sluicegate_time::Wall;

const FOLDER: &str = "replays";
const LOCK: &str = ".lock";
const EXTENSION: &str = "jsonl";
/// Bytes of a line; a longer one is no line of a journal.
const MAX_LINE: u64 = 64 * 1024;

/// The orders of a replay, so that it can go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Records since then, in nanoseconds since 1970.
    pub since: Option<u64>,
    /// Records before then.
    pub until: u64,
    /// Of this limit.
    pub limit: Option<String>,
    /// Of this route.
    pub route: Option<String>,
    /// Of this reason.
    pub reason: Option<String>,
    /// Whether records of refusals are left out. Journals of earlier versions have all.
    #[serde(default)]
    pub failures_only: bool,
    /// Of this client or network.
    pub client: Option<String>,
    /// Of this status.
    pub status: Option<String>,
    /// Whether they are those of a key, which is not written here.
    pub has_key: bool,
    /// Where they go; `None`: through the gateway.
    pub to: Option<String>,
    /// How many a second.
    pub rate: String,
    /// How many at once.
    pub parallel: u32,
    /// Methods beside the idempotent ones.
    pub methods: Vec<String>,
    /// Tries of one record.
    pub max_tries: u32,
    /// Whether records are sent that were sent before.
    pub again: bool,
    /// Whether redacted fields are left out.
    pub without_redacted: bool,
    /// How long an answer may take, in nanoseconds.
    pub timeout: u64,
}

/// The fate of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordFate {
    /// It was taken, with this status.
    Sent(u16),
    /// It is set aside, for this reason.
    Parked(String),
}

/// A line of a journal that tells of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordEvent {
    /// The record.
    pub id: String,
    /// When.
    pub at: String,
    /// Its fate.
    pub fate: RecordFate,
    /// Tries that it took.
    pub tries: u32,
}

/// A replay of before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// Its name.
    pub name: String,
    /// When it began.
    pub at: String,
    /// Its orders.
    pub settings: Settings,
    /// Records that were sent.
    pub sent: u64,
    /// Records that are parked.
    pub parked: u64,
    /// Whether it came to its end.
    pub has_ended: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JournalLine {
    First {
        v: u32,
        replay: String,
        at: String,
        settings: Box<Settings>,
    },
    Fate {
        id: String,
        at: String,
        state: RecordState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        tries: u32,
    },
    Last {
        state: RecordState,
        at: String,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RecordState {
    Sent,
    Parked,
    Ended,
}

/// Why there is no journal.
#[derive(Debug)]
pub enum JournalError {
    /// Another replay of the directory runs.
    Busy(PathBuf),
    /// It cannot be made, read or written.
    Io(&'static str, PathBuf, io::Error),
    /// There is none of this name.
    NotFound(String, PathBuf),
    /// Nothing was left undone.
    NothingToResume(PathBuf),
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(path) => {
                write!(
                    f,
                    "another replay of this directory is under way ({} is locked): wait until it has ended",
                    path.display()
                )
            }
            Self::Io(verb, path, error) => write!(f, "cannot {verb} {}: {error}", path.display()),
            Self::NotFound(name, folder) => {
                write!(f, "no replay {name:?} in {}: see `sluicegate dead-letters replay ls`", folder.display())
            }
            Self::NothingToResume(folder) => {
                write!(f, "no replay in {} was left undone: give what to send instead of --resume", folder.display())
            }
        }
    }
}

impl std::error::Error for JournalError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, _, error) => Some(error),
            _ => None,
        }
    }
}

fn failed(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |error| JournalError::Io(verb, path, error)
}

/// The right to send records of a directory: the code that has it knows what was sent before.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Takes it.
    ///
    /// # Errors
    /// [`JournalError::Busy`] if another replay has it.
    pub fn take(directory: &Path) -> Result<Self, JournalError> {
        let folder = directory.join(FOLDER);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed("make", &folder))?;
        let path = folder.join(LOCK);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(failed("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(JournalError::Busy(path)),
            Err(TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child that has a copy of the file must not keep it locked.
        let _ = self.0.unlock();
    }
}

/// The journal of a replay that runs.
#[derive(Debug)]
pub struct Journal {
    name: String,
    path: PathBuf,
    file: File,
    /// Records that had their fate here when it was opened.
    done: HashSet<u128>,
    _lock: Lock,
}

impl Journal {
    /// That of a new replay.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn begin(lock: Lock, directory: &Path, settings: &Settings, now: Wall) -> Result<Self, JournalError> {
        let folder = directory.join(FOLDER);
        let (name, path, file) = create(&folder, now)?;
        let mut journal = Self { name, path, file, done: HashSet::new(), _lock: lock };
        let first = JournalLine::First {
            v: 1,
            replay: journal.name.clone(),
            at: stamp(now),
            settings: Box::new(settings.clone()),
        };
        journal.write(&first)?;
        Ok(journal)
    }

    /// That of a replay which goes on: of this name, or the last one that was left undone.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn resume(lock: Lock, directory: &Path, name: Option<&str>) -> Result<(Self, Settings), JournalError> {
        let folder = directory.join(FOLDER);
        let overview = match name {
            Some(name) => overviews(directory)?
                .into_iter()
                .find(|replay| replay.name == name)
                .ok_or_else(|| JournalError::NotFound(name.to_owned(), folder.clone()))?,
            None => overviews(directory)?
                .into_iter()
                .rfind(|replay| !replay.has_ended)
                .ok_or_else(|| JournalError::NothingToResume(folder.clone()))?,
        };
        let path = path_of(&folder, &overview.name);
        let mut done = HashSet::new();
        each_line(&path, |line| {
            if let JournalLine::Fate { id, .. } = line {
                done.insert(number_of(&id));
            }
        })?;
        let mut file = OpenOptions::new().read(true).append(true).open(&path).map_err(failed("open", &path))?;
        mend(&mut file).map_err(failed("mend", &path))?;
        Ok((Self { name: overview.name, path, file, done, _lock: lock }, overview.settings))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The records that had their fate when it was opened.
    pub fn done(&self) -> &HashSet<u128> {
        &self.done
    }

    /// Keeps the fate of a record.
    ///
    /// # Errors
    /// [`JournalError::Io`]: then nothing more may be sent.
    pub fn tell(&mut self, id: &str, fate: &RecordFate, tries: u32, now: Wall) -> Result<(), JournalError> {
        let (state, status, reason) = match fate {
            RecordFate::Sent(status) => (RecordState::Sent, Some(*status), None),
            RecordFate::Parked(reason) => (RecordState::Parked, None, Some(reason.clone())),
        };
        self.write(&JournalLine::Fate { id: id.to_owned(), at: stamp(now), state, status, reason, tries })
    }

    /// It has come to its end.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn end(mut self, now: Wall) -> Result<(), JournalError> {
        self.write(&JournalLine::Last { state: RecordState::Ended, at: stamp(now) })?;
        self.file.sync_all().map_err(failed("sync", &self.path))
    }

    fn write(&mut self, line: &JournalLine) -> Result<(), JournalError> {
        let mut text = serde_json::to_vec(line).map_err(|error| failed("write", &self.path)(error.into()))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(failed("write", &self.path))
    }
}

/// The records that any replay of the directory has sent.
///
/// # Errors
/// [`JournalError::Io`].
pub fn sent(directory: &Path) -> Result<HashSet<u128>, JournalError> {
    let mut sent = HashSet::new();
    for path in journals(&directory.join(FOLDER))? {
        each_line(&path, |line| {
            if let JournalLine::Fate { id, state: RecordState::Sent, .. } = line {
                sent.insert(number_of(&id));
            }
        })?;
    }
    Ok(sent)
}

/// All replays of the directory, the oldest first.
///
/// # Errors
/// [`JournalError::Io`].
pub fn overviews(directory: &Path) -> Result<Vec<Overview>, JournalError> {
    let mut all = Vec::new();
    for path in journals(&directory.join(FOLDER))? {
        let mut found: Option<Overview> = None;
        let mut last: HashMap<u128, bool> = HashMap::new();
        each_line(&path, |line| match (line, &mut found) {
            (JournalLine::First { v: 1, replay: name, at, settings }, none @ None) => {
                *none = Some(Overview { name, at, settings: *settings, sent: 0, parked: 0, has_ended: false });
            }
            (JournalLine::Fate { id, state, .. }, Some(_)) => {
                last.insert(number_of(&id), state == RecordState::Sent);
            }
            (JournalLine::Last { state: RecordState::Ended, .. }, Some(found)) => found.has_ended = true,
            _ => {}
        })?;
        if let Some(mut found) = found {
            found.sent = last.values().filter(|is_sent| **is_sent).count() as u64;
            found.parked = last.len() as u64 - found.sent;
            all.push(found);
        }
    }
    Ok(all)
}

/// The fates of a replay's records, in order; `show` gets each.
///
/// # Errors
/// See [`JournalError`].
pub fn fates(directory: &Path, name: &str, mut show: impl FnMut(RecordEvent)) -> Result<(), JournalError> {
    let folder = directory.join(FOLDER);
    let is_known = journals(&folder)?.iter().any(|path| *path == path_of(&folder, name));
    if !is_known {
        return Err(JournalError::NotFound(name.to_owned(), folder));
    }
    each_line(&path_of(&folder, name), |line| {
        if let JournalLine::Fate { id, at, state, status, reason, tries } = line {
            let fate = match state {
                RecordState::Sent => RecordFate::Sent(status.unwrap_or_default()),
                _ => RecordFate::Parked(reason.unwrap_or_default()),
            };
            show(RecordEvent { id, at, fate, tries });
        }
    })
}

/// A number that stands for a record's id: that of the UUID; of any other text, the head of its SHA-256.
pub fn number_of(id: &str) -> u128 {
    let of_text = || u128::from_be_bytes(Sha256::digest(id)[..16].try_into().unwrap_or_default());
    id.parse::<Uuid>().map_or_else(|_| of_text(), |id| id.as_u128())
}

fn stamp(at: Wall) -> String {
    format!("{:.3}", at.timestamp())
}

fn path_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.{EXTENSION}"))
}

fn create(folder: &Path, now: Wall) -> Result<(String, PathBuf, File), JournalError> {
    let base = now.timestamp().strftime("%Y%m%dT%H%M%SZ").to_string();
    let names = std::iter::once(base.clone()).chain((2..1_000).map(|number| format!("{base}-{number:03}")));
    let mut last = None;
    for name in names {
        let path = path_of(folder, &name);
        match OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return Ok((name, path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = Some((path, error)),
            Err(error) => return Err(failed("make", &path)(error)),
        }
    }
    let (path, error) = last.unwrap_or_else(|| (folder.to_owned(), io::ErrorKind::AlreadyExists.into()));
    Err(failed("make", &path)(error))
}

/// The files of a folder, by name: that is by time.
fn journals(folder: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("read", folder))?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed("read", folder))?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            paths.push(path);
        }
    }
    paths.sort_by(|one, other| one.file_stem().cmp(&other.file_stem()));
    Ok(paths)
}

/// Gives `show` each line that is whole.
fn each_line(path: &Path, mut show: impl FnMut(JournalLine)) -> Result<(), JournalError> {
    let file = File::open(path).map_err(failed("open", path))?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let size = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).map_err(failed("read", path))?;
        if size == 0 {
            return Ok(());
        }
        if line.last() == Some(&b'\n')
            && let Ok(line) = serde_json::from_slice(&line)
        {
            show(line);
        }
    }
}

/// Ends a line that a crash has cut.
fn mend(file: &mut File) -> io::Result<()> {
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(SeekFrom::Start(length - 1))?;
    file.read_exact(&mut last)?;
    if last == *b"\n" { Ok(()) } else { file.write_all(b"\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall::from_nanos(1_767_323_045_678_901_234);

    fn id(number: u128) -> String {
        Uuid::from_u128(number).to_string()
    }

    fn settings() -> Settings {
        Settings { limit: Some("l".to_owned()), rate: "10/s".to_owned(), until: 5, ..Settings::default() }
    }

    fn begun(directory: &Path) -> Journal {
        let mut journal = Journal::begin(Lock::take(directory).unwrap(), directory, &settings(), NOW).unwrap();
        journal.tell(&id(1), &RecordFate::Sent(204), 2, NOW).unwrap();
        journal.tell(&id(2), &RecordFate::Parked("status 404".to_owned()), 1, NOW).unwrap();
        journal
    }

    #[test]
    fn a_replay_that_was_stopped_goes_on_and_one_that_has_ended_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let journal = begun(directory.path());
        assert!(matches!(Lock::take(directory.path()), Err(JournalError::Busy(_))), "it runs");
        drop(journal);
        let (mut journal, resumed) =
            Journal::resume(Lock::take(directory.path()).unwrap(), directory.path(), None).unwrap();
        assert_eq!((journal.name(), resumed), ("20260102T030405Z", settings()));
        assert_eq!(journal.done(), &HashSet::from([1, 2]));
        journal.tell(&id(3), &RecordFate::Sent(200), 1, NOW).unwrap();
        journal.end(NOW).unwrap();
        assert!(matches!(
            Journal::resume(Lock::take(directory.path()).unwrap(), directory.path(), None),
            Err(JournalError::NothingToResume(_))
        ));
        assert!(matches!(
            Journal::resume(Lock::take(directory.path()).unwrap(), directory.path(), Some("x")),
            Err(JournalError::NotFound(..))
        ));
        assert_eq!(sent(directory.path()).unwrap(), HashSet::from([1, 3]));
        let all = overviews(directory.path()).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].sent, all[0].parked, all[0].has_ended), (2, 1, true));
        let mut told = Vec::new();
        fates(directory.path(), "20260102T030405Z", |one| told.push((one.id, one.fate, one.tries))).unwrap();
        assert_eq!(told[1], (id(2), RecordFate::Parked("status 404".to_owned()), 1));
        assert_eq!(told.len(), 3);
    }

    #[test]
    fn replays_of_one_second_have_names_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let names: Vec<_> = (0..3)
            .map(|_| {
                Journal::begin(Lock::take(directory.path()).unwrap(), directory.path(), &settings(), NOW)
                    .unwrap()
                    .name()
                    .to_owned()
            })
            .collect();
        assert_eq!(names, ["20260102T030405Z", "20260102T030405Z-002", "20260102T030405Z-003"]);
    }

    #[test]
    fn a_journal_cut_at_any_byte_has_the_lines_before_and_takes_others_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = begun(directory.path()).path.clone();
        let whole = fs::read(&path).unwrap();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let second = first + whole[first..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for cut in first..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let (mut journal, _) =
                Journal::resume(Lock::take(directory.path()).unwrap(), directory.path(), None).unwrap();
            let known = u64::from(cut >= second) + u64::from(cut == whole.len());
            assert_eq!(journal.done().len() as u64, known, "cut at {cut}");
            journal.tell(&id(9), &RecordFate::Sent(200), 1, NOW).unwrap();
            drop(journal);
            assert!(sent(directory.path()).unwrap().contains(&9), "cut at {cut}");
        }
    }

    #[test]
    fn an_id_that_is_no_uuid_has_a_number_of_its_own() {
        assert_eq!(number_of(&id(7)), 7);
        assert_eq!(number_of("next-1"), number_of("next-1"));
        assert_ne!(number_of("next-1"), number_of("next-2"));
    }

    #[test]
    fn a_directory_without_replays_has_none() {
        let directory = tempfile::tempdir().unwrap();
        assert!(sent(directory.path()).unwrap().is_empty() && overviews(directory.path()).unwrap().is_empty());
        assert!(matches!(fates(directory.path(), "../x", |_| {}), Err(JournalError::NotFound(..))));
    }
}
