//! Keeps lines of the reasons that a flood of another one would push out of the log.
//!
//! When the oldest segment has to make room, lines of it go into a series of segments of their reason, `NODE+REASON-SEQ.jsonl`,
//! if the rest of the log holds less than that reason's share. All shares together are a quarter of the log's bound. The lines
//! are as they were; their files have the time of the segment that they come from, so that they go at their age.
//!
//! A crash while lines are moved may leave some of them twice, with the same id.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use super::reason::Reason;
use super::recovery::recover;
use super::segment::{Disk, Segment, SegmentFile, SegmentName, length_of, modified, torn_path, write_all};
use super::store::{StoreError, remove};
use sluicegate_time::{Span, Tick, WallOffset};

/// Of the log's bound, the shares have this part together.
const PART: u64 = 4;
/// A share is this many segments, of which the oldest goes.
const SEGMENTS: u64 = 4;
/// Stands between the node and the reason: no node's name has it.
pub(super) const MARK: char = '+';
/// Where in a line its reason stands at the latest.
const HEAD: usize = 256;

/// The reason of a line, by which lines are kept apart, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReasonClass(usize);

impl ReasonClass {
    /// Lines without a reason, or with one of a later version.
    pub(super) const OTHER: Self = Self(Reason::ALL.len());
    /// How many there are.
    pub(super) const COUNT: usize = Reason::ALL.len() + 1;

    pub(super) fn of(reason: Reason) -> Self {
        Self(reason as usize)
    }

    /// That of a written line.
    fn of_line(line: &[u8]) -> Self {
        const FIELD: &[u8] = b"\"reason\":\"";
        let head = line.get(..HEAD).unwrap_or(line);
        let reason = memchr::memmem::find(head, FIELD).and_then(|at| head.get(at + FIELD.len()..));
        let reason = reason.and_then(|rest| rest.split(|byte| *byte == b'"').next());
        let known = Reason::ALL.into_iter().find(|known| reason == Some(known.word().as_bytes()));
        known.map_or(Self::OTHER, Self::of)
    }

    fn name(self) -> &'static str {
        Reason::ALL.get(self.0).map_or("other", |reason| reason.word())
    }

    fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }
}

/// Bytes of each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByClass([u64; ReasonClass::COUNT]);

impl ByClass {
    pub(super) fn add(&mut self, class: ReasonClass, bytes: u64) {
        if let Some(own) = self.0.get_mut(class.0) {
            *own = own.saturating_add(bytes);
        }
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        for class in ReasonClass::all() {
            self.add(class, other.of(class));
        }
    }

    fn of(&self, class: ReasonClass) -> u64 {
        self.0.get(class.0).copied().unwrap_or_default()
    }
}

/// The share of one class in a log of at most so many bytes.
fn share(max_total_size: u64) -> u64 {
    max_total_size / PART / ReasonClass::COUNT as u64
}

/// The series of all classes.
pub(super) struct Reserve {
    directory: PathBuf,
    node: String,
    series: [VecDeque<ReserveSegment>; ReasonClass::COUNT],
}

struct ReserveSegment {
    name: SegmentName,
    path: PathBuf,
    bytes: u64,
    last_written: Tick,
}

impl Reserve {
    /// Those of a node among the segments of a directory.
    pub(super) fn find(directory: &Path, node: &str, segments: &[Segment]) -> Self {
        let mut own = Self { directory: directory.to_owned(), node: node.to_owned(), series: Default::default() };
        for class in ReasonClass::all() {
            let node = own.node_of(class);
            let found = segments.iter().filter(|segment| segment.name.node == node).map(|segment| ReserveSegment {
                name: segment.name.clone(),
                path: segment.path.clone(),
                bytes: segment.bytes,
                last_written: WallOffset::of_system().tick(modified(&segment.path)),
            });
            let Some(series) = own.series.get_mut(class.0) else { continue };
            series.extend(found);
            // A crash may have torn the last line. A file that cannot be mended is written on all the same: its readers pass
            // over what is damaged.
            if let Some(last) = series.back_mut()
                && let Ok(recovery) = recover(&last.path)
            {
                last.bytes = recovery.kept;
            }
        }
        own
    }

    pub(super) fn bytes(&self) -> u64 {
        self.series.iter().flatten().map(|kept| kept.bytes).sum()
    }

    /// Takes over what a purge did to the files.
    pub(super) fn look_again(&mut self) {
        for series in &mut self.series {
            series.retain_mut(|kept| {
                kept.bytes = length_of(&kept.path);
                kept.path.exists()
            });
        }
    }

    /// Whether lines of a segment have to be kept before it goes. `holds` is what it holds, if that is known, `rest` what the
    /// others hold at least.
    pub(super) fn wants(holds: Option<&ByClass>, rest: &ByClass, max_total_size: u64) -> bool {
        let share = share(max_total_size);
        ReasonClass::all().any(|class| holds.is_none_or(|holds| holds.of(class) > 0) && rest.of(class) < share)
    }

    /// Takes from the segment at `path`, last written then, the lines of each class of which the others hold less than its share.
    pub(super) fn keep(
        &mut self,
        disk: &dyn Disk,
        (path, last_written): (&Path, Tick),
        rest: &ByClass,
        max_total_size: u64,
    ) -> Result<(), StoreError> {
        let share = share(max_total_size);
        let mut writers: [Option<Box<dyn SegmentFile>>; ReasonClass::COUNT] = Default::default();
        let mut lines = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => BufReader::new(opened.map_err(StoreError::io("open", path))?),
        };
        let mut line = Vec::new();
        loop {
            line.clear();
            lines.read_until(b'\n', &mut line).map_err(StoreError::io("read", path))?;
            if line.last() != Some(&b'\n') {
                break;
            }
            let class = ReasonClass::of_line(&line);
            if rest.of(class) < share && line.len() as u64 <= share {
                self.append(disk, class, &line, (share, last_written), &mut writers)?;
            }
        }
        // Before their source goes. Writers of files that were full are synced where they are let go.
        for (series, writer) in self.series.iter().zip(&mut writers) {
            if let (Some(kept), Some(writer)) = (series.back(), writer) {
                writer.sync().map_err(StoreError::io("sync", &kept.path))?;
                set_modified(&kept.path, kept.last_written);
            }
        }
        Ok(())
    }

    fn append(
        &mut self,
        disk: &dyn Disk,
        class: ReasonClass,
        line: &[u8],
        (share, last_written): (u64, Tick),
        writers: &mut [Option<Box<dyn SegmentFile>>; ReasonClass::COUNT],
    ) -> Result<(), StoreError> {
        let node = self.node_of(class);
        let (Some(series), Some(writer)) = (self.series.get_mut(class.0), writers.get_mut(class.0)) else {
            return Ok(());
        };
        let is_full = series.back().is_none_or(|last| last.bytes + line.len() as u64 > share / SEGMENTS);
        if is_full {
            let sequence = series.back().map_or(1, |last| last.name.sequence + 1);
            let name = SegmentName { node, sequence };
            let path = self.directory.join(name.file_name());
            if let (Some(last), Some(full)) = (series.back(), &mut *writer) {
                full.sync().map_err(StoreError::io("sync", &last.path))?;
                set_modified(&last.path, last.last_written);
            }
            *writer = Some(disk.open(&path, true).map_err(StoreError::io("create", &path))?);
            series.push_back(ReserveSegment { name, path, bytes: 0, last_written });
        }
        let Some(last) = series.back_mut() else { return Ok(()) };
        let file = match writer {
            Some(file) => file,
            None => writer.insert(disk.open(&last.path, false).map_err(StoreError::io("open", &last.path))?),
        };
        write_all(file.as_mut(), line).map_err(|(_, error)| StoreError::io("write", &last.path)(error))?;
        last.bytes += line.len() as u64;
        last.last_written = last.last_written.max(last_written);
        while series.iter().map(|kept| kept.bytes).sum::<u64>() > share && series.len() > 1 {
            remove_first(series)?;
        }
        Ok(())
    }

    /// Removes what is older than that.
    pub(super) fn expire(&mut self, max_age: Span, now: Tick) -> Result<(), StoreError> {
        for series in &mut self.series {
            while series.front().is_some_and(|oldest| now.since(oldest.last_written) > max_age) {
                remove_first(series)?;
            }
        }
        Ok(())
    }

    /// Removes the oldest segment of the class that holds most; false if there is none.
    pub(super) fn shrink(&mut self) -> Result<bool, StoreError> {
        let largest = self.series.iter_mut().max_by_key(|series| series.iter().map(|kept| kept.bytes).sum::<u64>());
        match largest.filter(|series| !series.is_empty()) {
            Some(series) => remove_first(series).map(|()| true),
            None => Ok(false),
        }
    }

    fn node_of(&self, class: ReasonClass) -> String {
        format!("{}{MARK}{}", self.node, class.name())
    }
}

fn remove_first(series: &mut VecDeque<ReserveSegment>) -> Result<(), StoreError> {
    let Some(oldest) = series.front() else { return Ok(()) };
    remove(&oldest.path)?;
    remove(&torn_path(&oldest.path))?;
    series.pop_front();
    Ok(())
}

/// It is a matter of age alone: where it fails, lines stay longer.
fn set_modified(path: &Path, at: Tick) {
    let at = WallOffset::of_system().wall(at);
    let file = File::options().append(true).open(path);
    let _ = file.and_then(|file| file.set_modified(UNIX_EPOCH + Duration::from_nanos(at.as_nanos())));
}
