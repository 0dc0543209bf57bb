//! The control group of this process in the second hierarchy of Linux, and those above it. A limit of any of them
//! binds.
//!
//! It reads files and keeps no state but their folders. Its caller is [`sensors`](crate::sensors).

use std::path::{Component, Path, PathBuf};

use crate::kernel_file::{KernelFile, SensorError};

/// So many groups on the way to the root are looked at.
const DEEPEST: usize = 32;

/// The folders of the control group of this process and of those above it, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupPath {
    folders: Vec<PathBuf>,
}

/// CPU time of one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupUsage {
    /// Microseconds of CPU time since the group was made.
    pub(crate) micros: u64,
    /// How many CPUs it may use; `None`: no limit of its own.
    pub(crate) cpus: Option<f64>,
}

impl CgroupPath {
    /// Finds the group of this process below `root`, which is `/` but in tests. `None`: there is no such hierarchy.
    pub(crate) fn find(root: &Path) -> Result<Option<Self>, SensorError> {
        let Some(file) = KernelFile::read_if_there(&root.join("proc/self/cgroup"))? else { return Ok(None) };
        let Some(path) = file.text().lines().find_map(|line| line.strip_prefix("0::")) else { return Ok(None) };
        let mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"].map(|mount| root.join(mount));
        let Some(mount) = mounts.into_iter().find(|mount| mount.join("cgroup.controllers").exists()) else {
            return Ok(None);
        };
        Ok(Some(Self::below(&mount, path)))
    }

    /// CPU time of all groups that have such a file.
    pub(crate) fn usage(&self) -> Result<Vec<GroupUsage>, SensorError> {
        let mut usage = Vec::new();
        for folder in &self.folders {
            let Some(stat) = KernelFile::read_if_there(&folder.join("cpu.stat"))? else { continue };
            let micros = stat.number_of("usage_usec")?;
            let max = KernelFile::read_if_there(&folder.join("cpu.max"))?;
            let cpus = max.map(|file| cpus_of(&file)).transpose()?.flatten();
            usage.push(GroupUsage { micros, cpus });
        }
        Ok(usage)
    }

    /// The largest share of its memory limit that a group uses; `None`: there is no limit, or none below `machine`
    /// bytes.
    pub(crate) fn memory(&self, machine: Option<u64>) -> Result<Option<f64>, SensorError> {
        let mut largest = None;
        for folder in &self.folders {
            let Some(max) = KernelFile::read_if_there(&folder.join("memory.max"))? else { continue };
            if max.text() == "max" {
                continue;
            }
            let max: u64 = max.text().parse().map_err(|_| max.malformed("number of bytes"))?;
            // A limit above the machine's memory limits nothing.
            if machine.is_some_and(|machine| max >= machine) {
                continue;
            }
            let current = KernelFile::read(&folder.join("memory.current"))?;
            let current: u64 = current.text().parse().map_err(|_| current.malformed("number of bytes"))?;
            let inactive = KernelFile::read(&folder.join("memory.stat"))?.number_of("inactive_file")?;
            let share = current.saturating_sub(inactive) as f64 / max.max(1) as f64;
            largest = Some(largest.map_or(share, |largest: f64| largest.max(share)));
        }
        Ok(largest)
    }

    /// The innermost group's file of CPU pressure.
    pub(crate) fn pressure_file(&self) -> Option<PathBuf> {
        self.folders.first().map(|folder| folder.join("cpu.pressure"))
    }

    /// A process in a namespace of groups may see a path above its root (`/../..`), and one in a container without such
    /// a namespace a path that its mount does not have. Then what there is of the path is taken: at least the mount.
    fn below(mount: &Path, path: &str) -> Self {
        let mut folder = mount.to_owned();
        let mut folders = vec![folder.clone()];
        let is_outside = Path::new(path).components().any(|part| part == Component::ParentDir);
        for part in Path::new(path).components() {
            let Component::Normal(name) = part else { continue };
            folder.push(name);
            if is_outside || !folder.is_dir() {
                break;
            }
            folders.push(folder.clone());
        }
        folders.reverse();
        folders.truncate(DEEPEST);
        Self { folders }
    }
}

/// Reads `quota period` in microseconds; a quota of `max` is none.
fn cpus_of(file: &KernelFile) -> Result<Option<f64>, SensorError> {
    let malformed = || file.malformed("quota and period");
    let (quota, period) = file.text().split_once(' ').ok_or_else(malformed)?;
    let period: u64 = period.parse().ok().filter(|period| *period > 0).ok_or_else(malformed)?;
    if quota == "max" {
        return Ok(None);
    }
    let quota: u64 = quota.parse().ok().filter(|quota| *quota > 0).ok_or_else(malformed)?;
    Ok(Some(quota as f64 / period as f64))
}
