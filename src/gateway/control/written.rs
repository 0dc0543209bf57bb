//! Whether the configuration's writer may be half done: a file that is written in place is seen as it grows, and its first half
//! may be right by itself, without the routes and limits of the second.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::Control;
use crate::config::{self, Loaded, Model};
use crate::time::{Span, Tick};

/// How long a file that was written in place, and lacks what it had, has to stay as it is before the watcher takes it over.
const STANDS: Span = Span::from_secs(3);

/// Where another file is found, what tells that it was created may still be on its way.
const SETTLES: Duration = Duration::from_millis(100);

impl Control {
    /// Takes note of whether the file that was found `now`, and read, was created under its name. A link is not: what it leads
    /// to was there before.
    pub(super) fn note_creation(&self, now: &FileStamp) {
        if self.state().written.file != now.file && !self.created.load(Ordering::Relaxed) {
            thread::sleep(SETTLES);
        }
        let is_file = || std::fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.is_file());
        if self.created.swap(false, Ordering::Relaxed) && is_file() {
            self.state().written.note_created();
            if FileStamp::at(&self.path).file != now.file {
                // It was created behind this look, and is another file to the next one, too.
                self.created.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// How the file was found when it was looked at last.
#[derive(Debug)]
pub(super) struct FileStamp {
    /// The file that the path led to: device and inode. A rename or the swap of a link changes it.
    file: Option<(u64, u64)>,
    /// Whether it has got its name before its content, since it was looked at: it is written in place, though it is another file.
    was_created: bool,
    /// The text that is taken over once it has stood: its digest, and since when it stands.
    half_done: Option<([u8; 32], Tick)>,
}

impl FileStamp {
    /// As it is now, whole.
    pub(super) fn at(path: &Path) -> Self {
        let file = std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        Self { file, was_created: false, half_done: None }
    }

    /// Takes note that a file of that name was created, and not renamed to it.
    pub(super) fn note_created(&mut self) {
        self.was_created = true;
    }

    /// How long what the file says has still to stand, if it may be half done.
    pub(super) fn stands_in(&self, now: Tick) -> Option<Span> {
        self.half_done.map(|(_, since)| (since + STANDS).since(now))
    }

    /// Whether what was read may be half done: it was written in place since the `last` look, lacks a route or limit of what
    /// `runs`, and has not stood for long. It is remembered, so that the next look knows for how long.
    pub(super) fn may_be_half_done(&mut self, last: &Self, runs: &Model, read: &Loaded, now: Tick) -> bool {
        if self.file != last.file && !last.was_created {
            return false;
        }
        let Some(gone) = config::removed(runs, &read.model) else { return false };
        let since = last.half_done.filter(|(known, _)| *known == read.digest).map_or(now, |(_, since)| since);
        if since == now {
            tracing::warn!(
                "the configuration was written in place and has no {gone} any more: its writer may be half done, so it is taken \
                 over when it has stood for {STANDS}; SIGHUP takes it over at once"
            );
        }
        self.half_done = (now.since(since) < STANDS).then_some((read.digest, since));
        self.half_done.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Certificates;

    const WHOLE: &str = "[[listener]]\naddress = \"127.0.0.1:8080\"\n[[route]]\nname = \"one\"\nrespond = {}\n\
                         [[route]]\nname = \"two\"\npath = \"/two\"\nrespond = {}\n";

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn what_lacks_a_route_and_was_written_in_place_has_to_stand() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.toml");
        let mut last = FileStamp::at(&path);
        let mut looks = |text: &str, millis: u64, by_rename: bool| {
            if by_rename {
                std::fs::write(directory.path().join("next"), text).unwrap();
                std::fs::rename(directory.path().join("next"), &path).unwrap();
            } else {
                std::fs::write(&path, text).unwrap();
            }
            let read = config::load(&path, Certificates::Lenient(crate::time::Wall::EPOCH)).unwrap();
            let runs = config::parse(WHOLE, &path, Certificates::Unread).unwrap().model;
            let mut now = FileStamp::at(&path);
            let is_half_done = now.may_be_half_done(&last, &runs, &read, at(millis));
            last = now;
            (is_half_done, last.stands_in(at(millis)))
        };
        let half = WHOLE.split_at(WHOLE.rfind("[[route]]").unwrap()).0;
        let waits = |millis| (true, Some(Span::from_millis(millis)));
        assert_eq!(looks(half, 0, true), (false, None), "a rename is whole");
        assert_eq!(looks(half, 1_000, false), waits(3_000));
        assert_eq!(looks(half, 2_000, false), waits(2_000));
        assert_eq!(looks(&format!("{half}# more\n"), 3_000, false), waits(3_000), "it grows");
        assert_eq!(looks(&format!("{half}# more\n"), 5_999, false), waits(1));
        assert_eq!(looks(&format!("{half}# more\n"), 6_000, false), (false, None));
        assert_eq!(looks(half, 7_000, false), waits(3_000));
        assert_eq!(looks(WHOLE, 8_000, false), (false, None), "nothing is gone");
        assert_eq!(looks(half, 9_000, false), waits(3_000));
        assert_eq!(looks(half, 9_500, true), (false, None));
    }
}
