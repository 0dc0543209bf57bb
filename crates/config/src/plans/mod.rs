//! A plans file: which key has which plan. Its head, which says what the plans are, is TOML like any other and is kept
//! as text; [`lower`](super::lower) makes sense of it. Its last table, `[keys]`, may have millions of lines: it is read as
//! it streams by, into a table of fingerprints, and none of its text is kept.
//!
//! A book outlives configurations: while its file stays what it was, a reload takes it over.

mod line;
mod source;

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use toml::de::DeTable;

use self::line::PlanLine;
pub use self::line::{NoLine, PlansEntry, entry, is_header};
use self::source::{LineSource, ReadLimits};
use super::findings::{Finding, Findings};
use super::nearest::nearest;
use super::report::{self, Diagnostic, Place};
use super::syntax;
use sluicegate_admission::{AddressForm, KeyExpr, KeyPlan, KeyValueError, PlanKeys};
use sluicegate_files::open_regular;
use sluicegate_limiter::{Fingerprint, KeyHasher};
use sluicegate_time::{Span, Wall};

/// The largest file, the longest line, and the most keys.
const MAX_FILE_BYTES: u64 = 256 << 20;
const MAX_LINE_BYTES: usize = 64 << 10;
const MAX_KEYS: usize = 10_000_000;
/// The longest key.
const MAX_KEY_BYTES: usize = 1_024;
/// Errors in the keys that are told; the reading ends with the last of them.
const MAX_ERRORS: usize = 20;
/// A file that was written so shortly before it was read may be written again within the same tick of its clock.
const SETTLED: Span = Span::from_secs(2);

/// The content of a plans file.
pub struct PlanBook {
    path: PathBuf,
    shown: PathBuf,
    addresses: AddressForm,
    digest: [u8; 32],
    head: Box<str>,
    has_keys: bool,
    names: Vec<Arc<str>>,
    default: u16,
    keys: Arc<PlanKeys>,
    /// How the file looked when it was read; `None` if that does not say whether it has changed since.
    stamp: Mutex<Option<Stamp>>,
}

/// The books that there are, to be taken over where their files have not changed.
#[derive(Clone, Default)]
pub struct KnownPlans(Vec<Arc<PlanBook>>);

/// The table that a route needs.
pub(super) struct WantedTable<'w> {
    /// The file.
    pub(super) path: &'w Path,
    /// The same as messages name it.
    pub(super) shown: &'w Path,
    /// The key whose values the file has.
    pub(super) key: &'w KeyExpr,
    /// Bits of an IPv6 address that make one client.
    pub(super) addresses: AddressForm,
}

/// The reader of the reports, and the time.
#[derive(Clone, Copy)]
pub(super) struct ReadContext {
    /// Whether a line with a mistake may be shown, key and all: to who asked for a check, not to a log.
    pub(super) shows_keys: bool,
    /// The machine's time.
    pub(super) now: Wall,
}

/// Why there is no book.
pub(super) enum BookFault {
    /// The file cannot be read; what is the matter.
    Read(String),
    /// A part of its content is wrong.
    Says(Vec<Diagnostic>),
}

/// The marks that change with every write.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl PlanBook {
    /// SHA-256 of the file.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The fingerprint of a key as the file has it; or why it is none, without repeating it.
    pub fn fingerprint(&self, key: &str) -> Result<Fingerprint, String> {
        if key.len() > MAX_KEY_BYTES {
            return Err(format!("This key is longer than {MAX_KEY_BYTES} bytes."));
        }
        let expression = self.keys.key();
        let print = expression.fingerprint_of_value(key, self.addresses, self.keys.hasher());
        print.map_err(|error| format!("This is no value of the key {expression}: {}.", remedy(&error)))
    }

    /// The file, as messages name it.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// The names of the plans, sorted; the numbers in [`keys`](Self::keys) are indexes into these.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// The plan of who has no key, or an unknown one; an index into [`names`](Self::names).
    pub fn default(&self) -> u16 {
        self.default
    }

    /// The plan of each key.
    pub fn keys(&self) -> &Arc<PlanKeys> {
        &self.keys
    }

    /// Whether both are of the same file and key.
    pub fn is_same(&self, other: &Self) -> bool {
        self.path == other.path && self.keys.key() == other.keys.key()
    }

    /// The part before `[keys]`. It can be parsed.
    pub(super) fn head(&self) -> &str {
        &self.head
    }

    /// Whether the file has `[keys]`.
    pub(super) fn has_keys(&self) -> bool {
        self.has_keys
    }
}

impl fmt::Debug for PlanBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanBook").field("path", &self.path).field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl KnownPlans {
    /// Those of a configuration's routes.
    pub(super) fn new(books: Vec<Arc<PlanBook>>) -> Self {
        Self(books)
    }

    /// The book that is wanted: one of these, or read anew.
    pub(super) fn read(&self, wanted: &WantedTable<'_>, reading: ReadContext) -> Result<Arc<PlanBook>, BookFault> {
        let same = |book: &&Arc<PlanBook>| book.path == wanted.path && book.keys.key() == wanted.key;
        let near = self.0.iter().find(same);
        let known = near.filter(|book| book.addresses == wanted.addresses);
        let opened = open(wanted.path).map_err(|error| BookFault::Read(reason(&error)))?;
        let stamp = Stamp::of(&opened.1);
        if let Some(book) = known
            && *book.stamp() == Some(stamp)
        {
            return Ok(Arc::clone(book));
        }
        // With the same secret as before, two tables can be compared.
        let hasher = near.map_or_else(KeyHasher::random, |book| book.keys.hasher().clone());
        let read = PlanReader { wanted, reading, hasher }.read(opened)?;
        match known {
            Some(book) if book.digest == read.digest => {
                *book.stamp() = *read.stamp();
                Ok(Arc::clone(book))
            }
            _ => Ok(Arc::new(read)),
        }
    }
}

impl PlanBook {
    fn stamp(&self) -> std::sync::MutexGuard<'_, Option<Stamp>> {
        self.stamp.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }

    /// Whether the last write was long enough before `now` that another one is sure to show.
    fn is_settled(&self, now: Wall) -> bool {
        let (secs, nanos) = self.modified.max(self.changed);
        let secs = u64::try_from(secs).unwrap_or(0);
        let last = secs.saturating_mul(1_000_000_000).saturating_add(u64::try_from(nanos).unwrap_or(0));
        now.since(Wall::from_nanos(last)) > SETTLED
    }
}

fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let file = open_regular(path)?;
    let metadata = file.metadata()?;
    if metadata.len() > MAX_FILE_BYTES {
        return Err(io::Error::other("it is larger than 256 MiB"));
    }
    Ok((file, metadata))
}

fn source(file: File) -> LineSource<File> {
    LineSource::new(file, ReadLimits { file: MAX_FILE_BYTES, line: MAX_LINE_BYTES })
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not read it".to_owned(),
        io::ErrorKind::Other => error.to_string(),
        _ => format!("it cannot be read: {error}"),
    }
}

/// One reading of a file.
struct PlanReader<'w> {
    wanted: &'w WantedTable<'w>,
    reading: ReadContext,
    hasher: KeyHasher,
}

/// A key that was read.
struct ReadKey {
    print: Fingerprint,
    line: u32,
    plan: KeyPlan,
}

impl PlanReader<'_> {
    fn read(self, (file, before): (File, Metadata)) -> Result<PlanBook, BookFault> {
        let failed = |error: io::Error| BookFault::Read(reason(&error));
        let mut source = source(file);
        let (head, has_keys) = self.head(&mut source)?;
        let (names, default) = outline(&head);
        let (read, mut wrong) = self.entries(&mut source, &names).map_err(failed)?;
        let mut keys = PlanKeys::with_room(read.len(), self.wanted.key.clone(), self.hasher.clone());
        let mut twice = Vec::new();
        for entry in &read {
            if keys.insert(entry.print, entry.plan).is_err() && twice.len() + wrong.len() < MAX_ERRORS {
                // So few that each may be looked for.
                let first = read.iter().find(|other| other.print == entry.print);
                twice.push((entry.line, first.map_or(entry.line, |first| first.line)));
            }
        }
        if !twice.is_empty() {
            wrong.extend(self.explain_twice(&twice));
            wrong.sort_by_key(|found| found.place);
        }
        if !wrong.is_empty() {
            return Err(BookFault::Says(wrong));
        }
        let stamp = Stamp::of(&before);
        let after = source.metadata().map_err(failed)?;
        let is_whole = Stamp::of(&after) == stamp && stamp.is_settled(self.reading.now);
        Ok(PlanBook {
            path: self.wanted.path.to_owned(),
            shown: self.wanted.shown.to_owned(),
            addresses: self.wanted.addresses,
            digest: source.digest(),
            head: head.into(),
            has_keys,
            names,
            default,
            keys: Arc::new(keys),
            stamp: Mutex::new(is_whole.then_some(stamp)),
        })
    }

    /// The part before `[keys]`, and whether there is such a header. It is TOML.
    fn head(&self, source: &mut LineSource<File>) -> Result<(String, bool), BookFault> {
        const MAX_HEAD_BYTES: usize = 1 << 20;
        let shown = self.wanted.shown;
        let wrong = |text: &str, finding: Finding| {
            let findings = Findings::default();
            findings.push(finding);
            BookFault::Says(report::elsewhere(shown, text, findings))
        };
        let mut head = Vec::new();
        let mut has_keys = false;
        while let Some(line) = source.line().map_err(|error| BookFault::Read(reason(&error)))? {
            if line::is_header(line.bytes) {
                has_keys = true;
                break;
            }
            if line.is_cut || head.len() + line.bytes.len() > MAX_HEAD_BYTES {
                let message = "the plans take more than 1 MiB before [keys]";
                return Err(wrong("", Finding::syntax(None, message).help("name a plans file, with [keys] in it")));
            }
            head.extend_from_slice(line.bytes);
            head.push(b'\n');
        }
        let head = String::from_utf8(head).map_err(|error| {
            let text = String::from_utf8_lossy(error.as_bytes());
            let at = error.utf8_error().valid_up_to();
            let finding = Finding::syntax(Some(at..at + '\u{fffd}'.len_utf8()), "this is not UTF-8");
            wrong(&text, finding.help("save it as UTF-8"))
        })?;
        let head = head.strip_prefix('\u{feff}').map_or_else(|| head.clone(), str::to_owned);
        let (_, broken) = DeTable::parse_recoverable(&head);
        if !broken.is_empty() {
            let findings = Findings::from_syntax(&head, syntax::explain(&head, broken));
            return Err(BookFault::Says(report::elsewhere(shown, &head, findings)));
        }
        Ok((head, has_keys))
    }

    /// The keys, and what is wrong with them.
    fn entries(
        &self,
        source: &mut LineSource<File>,
        names: &[Arc<str>],
    ) -> io::Result<(Vec<ReadKey>, Vec<Diagnostic>)> {
        let (mut read, mut wrong) = (Vec::new(), Vec::new());
        let WantedTable { shown, .. } = *self.wanted;
        while let Some(line) = source.line()? {
            let number = line.number;
            let Ok(text) = std::str::from_utf8(line.bytes) else {
                let finding = Finding::syntax(Some(0..0), "this is not UTF-8").help("save it as UTF-8");
                wrong.push(report::in_line(shown, (number, ""), false, &finding));
                break;
            };
            let entry = if line.is_cut {
                let message = format!("the line is longer than {} KiB", MAX_LINE_BYTES >> 10);
                Err(Finding::syntax(Some(0..0), message).help("a key has at most 1024 bytes"))
            } else {
                line::read(text).and_then(|line| self.entry(line, number, names))
            };
            match entry {
                Ok(None) => {}
                Ok(Some(_)) if read.len() >= MAX_KEYS => {
                    let message = format!("more than {MAX_KEYS} keys");
                    let finding = Finding::syntax(Some(0..0), message).help("give most of them the default plan");
                    wrong.push(report::in_line(shown, (number, text), false, &finding));
                    break;
                }
                Ok(Some(entry)) => read.push(entry),
                Err(finding) => {
                    wrong.push(report::in_line(shown, (number, text), self.reading.shows_keys, &finding));
                    if wrong.len() >= MAX_ERRORS {
                        break;
                    }
                }
            }
        }
        Ok((read, wrong))
    }

    fn entry(&self, line: PlanLine<'_>, number: usize, names: &[Arc<str>]) -> Result<Option<ReadKey>, Finding> {
        let PlanLine::Entry(PlansEntry { key, key_span, plan, plan_span, renews, .. }) = line else { return Ok(None) };
        if key.len() > MAX_KEY_BYTES {
            let message = format!("a key of {} bytes", key.len());
            return Err(Finding::error(key_span, message).help(format!("it has at most {MAX_KEY_BYTES}")));
        }
        let WantedTable { key: expression, addresses, .. } = *self.wanted;
        let print = expression.fingerprint_of_value(&key, addresses, &self.hasher).map_err(|error| {
            Finding::error(key_span, format!("this is no value of the key {expression}")).help(remedy(&error))
        })?;
        let Ok(place) = names.binary_search_by(|name| (**name).cmp(&*plan)) else {
            // Without any plan that is what has to be said.
            if names.is_empty() {
                return Ok(None);
            }
            // The name is not repeated: whoever writes it the wrong way round has put a key there.
            let finding = Finding::error(plan_span, "there is no such plan");
            return Err(finding.help(nearest_plan(&plan, names)));
        };
        let plan = KeyPlan { plan: u16::try_from(place).unwrap_or_default(), renews };
        Ok(Some(ReadKey { print, line: u32::try_from(number).unwrap_or(u32::MAX), plan }))
    }

    /// Looks the lines up again whose keys were there before.
    fn explain_twice(&self, twice: &[(u32, u32)]) -> Vec<Diagnostic> {
        let mut found: Vec<Diagnostic> = Vec::new();
        let Ok((file, _)) = open(self.wanted.path) else { return found };
        let mut source = source(file);
        let mut waiting = twice.iter().peekable();
        while let (Some((second, first)), Ok(Some(line))) = (waiting.peek(), source.line()) {
            if line.number != *second as usize {
                continue;
            }
            let text = std::str::from_utf8(line.bytes).unwrap_or_default();
            let at = match line::read(text) {
                Ok(PlanLine::Entry(entry)) => entry.key_span,
                // It has been changed meanwhile.
                _ => 0..0,
            };
            let finding = Finding::error(at, "this key is in [keys] twice").help("remove one: a key has one plan");
            let mut told = report::in_line(self.wanted.shown, (line.number, text), self.reading.shows_keys, &finding);
            told.related = Some(("the first is at", Place { line: *first as usize, column: 1 }));
            found.push(told);
            waiting.next();
        }
        found
    }
}

/// The names of the plans in a head, sorted, and the place of the default one. The caller that lowers
/// them reports their errors.
fn outline(head: &str) -> (Vec<Arc<str>>, u16) {
    let (root, _) = DeTable::parse_recoverable(head);
    let plans = root.get_ref().get("plan").and_then(|plans| plans.get_ref().as_table());
    let mut names: Vec<Arc<str>> =
        plans.into_iter().flat_map(|plans| plans.keys()).map(|name| Arc::from(&**name.get_ref())).collect();
    names.sort_unstable();
    let default = root.get_ref().get("default").and_then(|default| default.get_ref().as_str());
    let place = names.iter().position(|name| Some(&**name) == default);
    (names, place.and_then(|place| u16::try_from(place).ok()).unwrap_or(0))
}

/// The remedy for a plan that is not there.
pub(super) fn nearest_plan(written: &str, names: &[Arc<str>]) -> String {
    const MAX_LISTED: usize = 8;
    if let Some(near) = nearest(written, names.iter().map(|name| &**name)) {
        return format!("did you mean \"{near}\"?");
    }
    let listed: Vec<&str> = names.iter().take(MAX_LISTED).map(|name| &**name).collect();
    let more = if names.len() > MAX_LISTED { ", ..." } else { "" };
    format!("plans of the file: {}{more}", listed.join(", "))
}

/// The remedy for a text that is no value of the key. The text itself is not repeated.
fn remedy(error: &KeyValueError) -> String {
    match error {
        KeyValueError::Address(_) => "client-ip is an address, such as 192.0.2.7".to_owned(),
        KeyValueError::Host(_) => "host is a name, such as api.example.com".to_owned(),
        KeyValueError::Path(_) => "path begins with a slash".to_owned(),
        KeyValueError::Fingerprint(_) => {
            "openssl x509 -in cert.pem -noout -fingerprint -sha256 prints a fingerprint".to_owned()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_young_for_two_seconds_after_its_last_write() {
        let stamp = |modified, changed| Stamp { device: 1, inode: 1, length: 1, modified, changed };
        let at = |nanos| Wall::from_nanos(nanos);
        for stamp in [stamp((100, 5), (90, 0)), stamp((0, 0), (100, 5)), stamp((100, 5), (100, 5))] {
            assert!(!stamp.is_settled(at(102_000_000_005)) && stamp.is_settled(at(102_000_000_006)));
        }
        assert!(!stamp((i64::MAX, 0), (0, 0)).is_settled(at(u64::MAX)), "a clock that is ahead proves nothing");
    }

    #[test]
    fn a_settled_file_that_looks_as_it_did_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plans.toml");
        std::fs::write(&path, "default = \"a\"\n[plan.a]\n[keys]\n").unwrap();
        let key = KeyExpr::parse(&["header:k"]).unwrap();
        let wanted = WantedTable { path: &path, shown: &path, key: &key, addresses: AddressForm::default() };
        let read = |known: &KnownPlans, now| {
            known.read(&wanted, ReadContext { shows_keys: false, now }).ok().expect("there is nothing wrong with it")
        };
        // A digest that is not the file's shows whether it has been read.
        for (now, is_taken_over) in [(Wall::MAX, true), (Wall::EPOCH, false)] {
            let mut book = Arc::into_inner(read(&KnownPlans::default(), now)).unwrap();
            book.digest = [0; 32];
            let book = Arc::new(book);
            let again = read(&KnownPlans(vec![Arc::clone(&book)]), Wall::MAX);
            assert_eq!(Arc::ptr_eq(&book, &again), is_taken_over, "{now:?}");
        }
    }
}
