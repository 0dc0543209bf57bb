use std::fs;

use super::*;

/// A root folder with files.
struct FixtureRoot(tempfile::TempDir);

impl FixtureRoot {
    fn new(files: &[(&str, &str)]) -> Self {
        let root = Self(tempfile::tempdir().unwrap());
        root.write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:        10 kB\nMemAvailable:   400 kB\n");
        root.write("proc/pressure/cpu", "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=0.00\n");
        root.write("sys/devices/system/cpu/online", "0-3\n");
        root.own(0, 0);
        for (path, text) in files {
            root.write(path, text);
        }
        root
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.path().join(path)).unwrap();
    }

    /// Sets the times of this process, in ticks of 10 ms.
    fn own(&self, user: u64, system: u64) {
        let text = format!("42 (a) b (c) R 1 42 42 0 -1 4194560 1 2 3 4 {user} {system} 0 0 20 0 3 0 100 0 0\n");
        self.write("proc/self/stat", &text);
    }

    fn sensors(&self) -> MachineSensors {
        MachineSensors::new(self.0.path(), 2).unwrap()
    }

    /// The error without the folder of the test.
    fn message(&self, error: &SensorError) -> String {
        error.to_string().replace(&format!("{}/", self.0.path().display()), "/")
    }
}

fn at(millis: u64) -> Tick {
    Tick::ZERO + Span::from_millis(millis)
}

/// The share in thousandths.
fn thousandths(share: f64) -> i64 {
    (share * 1_000.0).round() as i64
}

const CONTROLLERS: (&str, &str) = ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");

/// A process in `/a/b`, with files of these groups.
fn in_groups(files: &[(&str, &str)]) -> FixtureRoot {
    let root = FixtureRoot::new(&[CONTROLLERS, ("proc/self/cgroup", "1:cpu:/other\n0::/a/b\n")]);
    fs::create_dir_all(root.0.path().join("sys/fs/cgroup/a/b")).unwrap();
    for (path, text) in files {
        root.write(&format!("sys/fs/cgroup/{path}"), text);
    }
    root
}

fn cpu_after_a_second(root: &FixtureRoot, change: impl FnOnce(&FixtureRoot)) -> Result<Option<i64>, String> {
    let mut sensors = root.sensors();
    assert_eq!(sensors.cpu(at(0)).map_err(|error| root.message(&error))?, None, "there was no last call");
    change(root);
    sensors.cpu(at(1_000)).map(|share| share.map(thousandths)).map_err(|error| root.message(&error))
}

#[test]
fn own_cpu_time_is_shared_by_workers() {
    let root = FixtureRoot::new(&[]);
    // 1.3 s of two workers in a second.
    assert_eq!(cpu_after_a_second(&root, |root| root.own(100, 30)), Ok(Some(650)));
}

#[test]
fn cpu_is_over_the_time_between_two_calls() {
    let root = FixtureRoot::new(&[]);
    let mut sensors = root.sensors();
    assert_eq!(sensors.cpu(at(0)).unwrap(), None);
    root.own(50, 0);
    assert_eq!(sensors.cpu(at(99)).unwrap(), None, "too close");
    assert_eq!(sensors.cpu(at(500)).unwrap().map(thousandths), Some(500));
    assert_eq!(sensors.cpu(at(2_500)).unwrap().map(thousandths), Some(0));
    root.own(10, 0);
    assert_eq!(sensors.cpu(at(3_500)).unwrap(), None, "a count that goes back says nothing");
    root.own(110, 0);
    assert_eq!(sensors.cpu(at(4_500)).unwrap().map(thousandths), Some(500));
}

#[test]
fn a_quota_of_a_group_or_of_one_above_binds() {
    let root = in_groups(&[
        ("a/b/cpu.stat", "usage_usec 5\nuser_usec 5\n"),
        ("a/b/cpu.max", "200000 100000\n"),
        ("a/cpu.stat", "usage_usec 7\n"),
        ("a/cpu.max", "50000 100000\n"),
        ("cpu.stat", "usage_usec 0\n"),
    ]);
    let share = cpu_after_a_second(&root, |root| {
        root.write("sys/fs/cgroup/a/b/cpu.stat", "usage_usec 400005\n");
        root.write("sys/fs/cgroup/a/cpu.stat", "usage_usec 450007\n");
        root.write("sys/fs/cgroup/cpu.stat", "usage_usec 4000000\n");
    });
    // 0.4 s of 2 CPUs, and 0.45 s of half a CPU. The root has no quota.
    assert_eq!(share, Ok(Some(900)));
}

#[test]
fn without_a_quota_a_group_has_all_cpus_of_the_machine() {
    let root = in_groups(&[("a/b/cpu.stat", "usage_usec 0\n"), ("a/b/cpu.max", "max 100000\n")]);
    let share = cpu_after_a_second(&root, |root| root.write("sys/fs/cgroup/a/b/cpu.stat", "usage_usec 3000000\n"));
    assert_eq!(share, Ok(Some(750)));
    let share = cpu_after_a_second(&root, |root| {
        root.write("sys/fs/cgroup/a/b/cpu.stat", "usage_usec 3000001\n");
        root.own(190, 0);
    });
    assert_eq!(share, Ok(Some(950)), "own time is higher");
}

#[test]
fn cpu_that_cannot_be_read_is_an_error() {
    let error = |root: &FixtureRoot| cpu_after_a_second(root, |_| ()).unwrap_err();
    let root = FixtureRoot::new(&[("proc/self/stat", "42 (a) R 1 2\n")]);
    assert_eq!(error(&root), "/proc/self/stat has no utime and stime");
    root.write("proc/self/stat", "42 (a) R 1 42 42 0 -1 4194560 1 2 3 4 x 5 0 0\n");
    assert_eq!(error(&root), "/proc/self/stat has no utime and stime");
    root.write("proc/self/stat", "");
    assert_eq!(error(&root), "/proc/self/stat has no utime and stime");
    root.remove("proc/self/stat");
    assert!(error(&root).starts_with("/proc/self/stat cannot be read: "));
    for (max, expected) in [("", 0), ("max", 0), ("0 100000", 0), ("5 0", 0), ("-1 100000", 0), ("a b", 0), ("5 5", 1)]
    {
        let root = in_groups(&[("a/b/cpu.stat", "usage_usec 0\n"), ("a/b/cpu.max", max)]);
        let result = cpu_after_a_second(&root, |_| ());
        let malformed = Err("/sys/fs/cgroup/a/b/cpu.max has no quota and period".to_owned());
        assert_eq!(result, if expected == 1 { Ok(Some(0)) } else { malformed }, "{max:?}");
    }
    let root = in_groups(&[("a/b/cpu.stat", "user_usec 0\n")]);
    assert_eq!(error(&root), "/sys/fs/cgroup/a/b/cpu.stat has no usage_usec");
    let root = in_groups(&[("a/b/cpu.stat", "usage_usec 0\n")]);
    root.write("sys/devices/system/cpu/online", "3-0\n");
    assert_eq!(error(&root), "/sys/devices/system/cpu/online has no list of CPUs");
}

#[test]
fn counts_lists_of_cpus() {
    for (list, count) in [("0", Some(1)), ("0-3", Some(4)), ("0-3,8,10-11", Some(7)), ("", None), ("0-", None)] {
        assert_eq!(cpu_count(list), count, "{list}");
    }
    assert_eq!(cpu_count("0-4294967295"), None);
}

#[test]
fn memory_is_that_of_the_fullest_limit() {
    let root = in_groups(&[
        ("a/b/memory.max", "500000\n"),
        ("a/b/memory.current", "200000\n"),
        ("a/b/memory.stat", "anon 1\ninactive_file 50000\n"),
        ("a/memory.max", "800000\n"),
        ("a/memory.current", "700000\n"),
        ("a/memory.stat", "inactive_file 60000\n"),
    ]);
    assert_eq!(root.sensors().memory().map(thousandths).unwrap(), 800);
    root.write("sys/fs/cgroup/a/memory.stat", "inactive_file 900000\n");
    assert_eq!(root.sensors().memory().map(thousandths).unwrap(), 300, "more inactive than there is");
}

#[test]
fn memory_without_a_limit_is_that_of_the_machine() {
    assert_eq!(FixtureRoot::new(&[]).sensors().memory().map(thousandths).unwrap(), 600);
    let root = in_groups(&[("a/b/memory.max", "max\n"), ("a/memory.max", "max\n")]);
    assert_eq!(root.sensors().memory().map(thousandths).unwrap(), 600);
    root.write("sys/fs/cgroup/a/memory.max", "1024000\n");
    assert_eq!(root.sensors().memory().map(thousandths).unwrap(), 600, "a limit of all memory limits nothing");
}

#[test]
fn memory_that_cannot_be_read_is_an_error() {
    let error = |root: &FixtureRoot| root.message(&root.sensors().memory().unwrap_err());
    let root = in_groups(&[("a/b/memory.max", "5 MB\n")]);
    assert_eq!(error(&root), "/sys/fs/cgroup/a/b/memory.max has no number of bytes");
    root.write("sys/fs/cgroup/a/b/memory.max", "500000\n");
    assert!(error(&root).starts_with("/sys/fs/cgroup/a/b/memory.current cannot be read: "));
    root.write("sys/fs/cgroup/a/b/memory.current", "lots\n");
    assert_eq!(error(&root), "/sys/fs/cgroup/a/b/memory.current has no number of bytes");
    root.write("sys/fs/cgroup/a/b/memory.current", "1\n");
    root.write("sys/fs/cgroup/a/b/memory.stat", "anon 1\n");
    assert_eq!(error(&root), "/sys/fs/cgroup/a/b/memory.stat has no inactive_file");
    let root = FixtureRoot::new(&[("proc/meminfo", "MemTotal: 5 kB\n")]);
    assert_eq!(error(&root), "/proc/meminfo has no MemAvailable:");
    root.write("proc/meminfo", "MemTotal: 0 kB\nMemAvailable: 0 kB\n");
    assert_eq!(error(&root), "/proc/meminfo has no MemTotal: above zero");
    root.remove("proc/meminfo");
    assert!(error(&root).starts_with("/proc/meminfo cannot be read: "));
}

#[test]
fn a_machine_file_is_not_needed_where_a_group_has_a_limit() {
    let root = in_groups(&[
        ("a/b/memory.max", "500000\n"),
        ("a/b/memory.current", "200000\n"),
        ("a/b/memory.stat", "inactive_file 0\n"),
    ]);
    root.remove("proc/meminfo");
    assert_eq!(root.sensors().memory().map(thousandths).unwrap(), 400);
}

#[test]
fn pressure_is_that_of_the_group_or_of_the_machine() {
    let root = in_groups(&[]);
    assert_eq!(root.sensors().cpu_pressure().map(thousandths).unwrap(), 125);
    root.write("sys/fs/cgroup/a/b/cpu.pressure", "some avg10=40.00 avg60=0.00 avg300=0.00 total=5\n");
    assert_eq!(root.sensors().cpu_pressure().map(thousandths).unwrap(), 400);
    for text in
        ["", "full avg10=1.00\n", "some avg60=1.00\n", "some avg10=x\n", "some avg10=100.5\n", "some avg10=-1\n"]
    {
        root.write("sys/fs/cgroup/a/b/cpu.pressure", text);
        let message = root.message(&root.sensors().cpu_pressure().unwrap_err());
        assert_eq!(message, "/sys/fs/cgroup/a/b/cpu.pressure has no some avg10=", "{text}");
    }
    let root = FixtureRoot::new(&[]);
    root.remove("proc/pressure/cpu");
    let message = root.message(&root.sensors().cpu_pressure().unwrap_err());
    assert!(message.starts_with("/proc/pressure/cpu cannot be read: "), "{message}");
}

#[test]
fn finds_its_group_below_the_mount() {
    let folders = |root: &FixtureRoot| {
        let path = CgroupPath::find(root.0.path()).unwrap()?;
        Some(path.pressure_file().unwrap().strip_prefix(root.0.path()).unwrap().to_str().unwrap().to_owned())
    };
    let with = |lines: &str, controllers: &str| {
        let root = FixtureRoot::new(&[("proc/self/cgroup", lines), (controllers, "")]);
        let mount = root.0.path().join(controllers).parent().unwrap().join("a/b");
        fs::create_dir_all(mount).unwrap();
        folders(&root)
    };
    let (pure, hybrid) = ("sys/fs/cgroup/cgroup.controllers", "sys/fs/cgroup/unified/cgroup.controllers");
    assert_eq!(with("0::/a/b\n", pure).as_deref(), Some("sys/fs/cgroup/a/b/cpu.pressure"));
    assert_eq!(with("0::/a/b\n", hybrid).as_deref(), Some("sys/fs/cgroup/unified/a/b/cpu.pressure"));
    assert_eq!(with("0::/\n", pure).as_deref(), Some("sys/fs/cgroup/cpu.pressure"));
    // A group above the root of the namespace, and a path that is not in the mount of a container.
    assert_eq!(with("0::/../..\n", pure).as_deref(), Some("sys/fs/cgroup/cpu.pressure"));
    assert_eq!(with("0::/../a/b\n", pure).as_deref(), Some("sys/fs/cgroup/cpu.pressure"));
    assert_eq!(with("0::/docker/0123\n", pure).as_deref(), Some("sys/fs/cgroup/cpu.pressure"));
    assert_eq!(with("0::/a/x\n", pure).as_deref(), Some("sys/fs/cgroup/a/cpu.pressure"));
    assert_eq!(with("3:cpu:/a\n", pure), None, "only the first hierarchy");
    assert_eq!(with("0::/a/b\n", "sys/fs/cgroup/cpu/tasks"), None, "no mount");
    assert_eq!(with("", pure), None);
    assert_eq!(folders(&FixtureRoot::new(&[])), None, "no such file");
}

#[test]
fn a_file_that_is_too_long_is_an_error() {
    let root = FixtureRoot::new(&[("proc/self/cgroup", &"x".repeat(70_000))]);
    let error = MachineSensors::new(root.0.path(), 2).unwrap_err();
    assert_eq!(root.message(&error), "/proc/self/cgroup is longer than 64 KiB");
}

#[cfg(target_os = "linux")]
#[test]
fn reads_this_machine() {
    let mut sensors = MachineSensors::new(Path::new("/"), 1).unwrap();
    assert!((0.0..=1.0).contains(&sensors.memory().unwrap()));
    assert_eq!(sensors.cpu(at(0)).unwrap(), None);
    assert!(sensors.cpu(at(1_000)).unwrap().is_some_and(|share| share >= 0.0));
}
