//! Sensors of the machine, read from files of Linux: CPU time, memory and CPU pressure.
//!
//! The root folder is an argument, so that tests have files of their own. A sensor that cannot be read is an error that
//! says which file and why: never a panic, and never a zero. Its caller is the task that reads all sensors once a
//! second.
//!
//! * **CPU** is the higher of two shares. One is the CPU time of this process over that of its workers: two workers on
//!   eight cores never use 85% of the machine, yet they may be busy. The other is the CPU time of its control group
//!   over the quota of that group, or of one above it. Where no group has a quota it is that of the innermost group
//!   over all CPUs of the machine.
//! * **Memory** is the working set of the control group (what it has less inactive files) over its limit: the fullest
//!   of all groups up to the root, since any of them may be the one that limits. Without such a limit it is that of the
//!   machine.
//! * **CPU pressure** is the share of the last 10 s in which some task of the control group waited for a CPU (PSI,
//!   `some avg10`); without that file it is that of the machine.
//!
//! Not read: the first hierarchy of control groups (`cpu,cpuacct`, `memory`), and `memory.high`.

use std::path::{Path, PathBuf};

use sluicegate_time::{Span, Tick};

use crate::cgroup::CgroupPath;
use crate::kernel_file::{KernelFile, SensorError};

/// Ticks a second of the times in `/proc/self/stat`: `USER_HZ`, which is 100 on all architectures that Rust knows.
const USER_HZ: u64 = 100;

/// Two reads of the CPU times that are closer than this say nothing: a tick is 10 ms.
const CLOSEST: Span = Span::from_millis(100);

/// The sensors of the machine.
#[derive(Debug)]
pub struct MachineSensors {
    root: PathBuf,
    workers: u32,
    cgroup: Option<CgroupPath>,
    last: Option<CpuTimes>,
}

/// CPU times at one instant.
#[derive(Debug)]
struct CpuTimes {
    at: Tick,
    own_micros: u64,
    groups: Vec<crate::cgroup::GroupUsage>,
}

impl MachineSensors {
    /// Makes sensors over a root folder: `/`. `workers` is the number of threads that serve requests.
    pub fn new(root: &Path, workers: u32) -> Result<Self, SensorError> {
        Ok(Self { root: root.to_owned(), workers: workers.max(1), cgroup: CgroupPath::find(root)?, last: None })
    }

    /// Returns the share of the CPU time that this process may use that was used since the last call; `None`: there was
    /// no last call, or only just.
    pub fn cpu(&mut self, now: Tick) -> Result<Option<f64>, SensorError> {
        if self.last.as_ref().is_some_and(|last| now.since(last.at) < CLOSEST) {
            return Ok(None);
        }
        let groups = self.cgroup.as_ref().map(CgroupPath::usage).transpose()?.unwrap_or_default();
        let next = CpuTimes { at: now, own_micros: self.own_micros()?, groups };
        let Some(last) = self.last.take() else {
            self.last = Some(next);
            return Ok(None);
        };
        let micros = now.since(last.at).as_nanos() as f64 / 1_000.0;
        let own = used(last.own_micros, next.own_micros).map(|used| used / (micros * f64::from(self.workers)));
        let group = self.group_share(&last, &next, micros)?;
        self.last = Some(next);
        Ok(own.into_iter().chain(group).max_by(f64::total_cmp))
    }

    /// Returns the share of the memory that this process may use that is used.
    pub fn memory(&self) -> Result<f64, SensorError> {
        let machine = KernelFile::read(&self.root.join("proc/meminfo"));
        let total = machine.as_ref().ok().and_then(|file| file.number_of("MemTotal:").ok());
        if let Some(cgroup) = &self.cgroup
            && let Some(share) = cgroup.memory(total.map(|kibibytes| kibibytes.saturating_mul(1024)))?
        {
            return Ok(share);
        }
        let machine = machine?;
        let total = machine.number_of("MemTotal:")?;
        let available = machine.number_of("MemAvailable:")?;
        if total == 0 {
            return Err(machine.malformed("MemTotal: above zero"));
        }
        Ok(1.0 - available.min(total) as f64 / total as f64)
    }

    /// Returns the share of the last 10 s in which some task waited for a CPU.
    pub fn cpu_pressure(&self) -> Result<f64, SensorError> {
        // Where pressure is switched off for a group, its file may be there and not be readable.
        let group = self.cgroup.as_ref().and_then(CgroupPath::pressure_file);
        if let Some(file) = group.and_then(|path| KernelFile::read(&path).ok()) {
            return pressure_of(&file);
        }
        pressure_of(&KernelFile::read(&self.root.join("proc/pressure/cpu"))?)
    }

    /// The largest share of its CPUs that a control group used.
    fn group_share(&self, last: &CpuTimes, next: &CpuTimes, micros: f64) -> Result<Option<f64>, SensorError> {
        if last.groups.len() != next.groups.len() {
            return Ok(None);
        }
        let pairs = last.groups.iter().zip(&next.groups);
        let shares = pairs.filter_map(|(last, next)| Some(used(last.micros, next.micros)? / (micros * next.cpus?)));
        let largest = shares.max_by(f64::total_cmp);
        let (None, Some(last), Some(next)) = (largest, last.groups.first(), next.groups.first()) else {
            return Ok(largest);
        };
        let cpus = f64::from(self.machine_cpus()?);
        Ok(used(last.micros, next.micros).map(|used| used / (micros * cpus)))
    }

    /// User and system time of this process in microseconds.
    fn own_micros(&self) -> Result<u64, SensorError> {
        let file = KernelFile::read(&self.root.join("proc/self/stat"))?;
        // The second field is the name in parentheses, and may have spaces and parentheses itself.
        let fields = file.text().rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut fields = fields.split_ascii_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
        let (Some(Some(user)), Some(Some(system))) = (fields.next(), fields.next()) else {
            return Err(file.malformed("utime and stime"));
        };
        Ok(user.saturating_add(system).saturating_mul(1_000_000 / USER_HZ))
    }

    fn machine_cpus(&self) -> Result<u32, SensorError> {
        // Not from /proc/stat: on a large machine that is longer than what is read of a file.
        let file = KernelFile::read(&self.root.join("sys/devices/system/cpu/online"))?;
        cpu_count(file.text()).ok_or_else(|| file.malformed("list of CPUs"))
    }
}

/// Counts the CPUs in a list like `0-3,8`.
fn cpu_count(list: &str) -> Option<u32> {
    let mut count = 0u32;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Returns the difference of two counts. `None`: the count went back, since it is that of another group now.
fn used(last: u64, next: u64) -> Option<f64> {
    next.checked_sub(last).map(|used| used as f64)
}

fn pressure_of(file: &KernelFile) -> Result<f64, SensorError> {
    let some = file.text().lines().find_map(|line| line.strip_prefix("some "));
    let value = some.and_then(|line| line.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10=")));
    let percent = value.and_then(|value| value.parse::<f64>().ok()).filter(|value| (0.0..=100.0).contains(value));
    percent.map(|percent| percent / 100.0).ok_or_else(|| file.malformed("some avg10="))
}

#[cfg(test)]
mod tests;
