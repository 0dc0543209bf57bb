//! Logs in files: opened anew at SIGUSR1, as logrotate asks for it.

use std::fs;
use std::process::Command;

use crate::support::{FRAME, Gateway, eventually, get};

const RULES: &str = "[log]\nfile = \"logs/error.log\"\naccess = \"json\"\naccess_file = \"logs/access.log\"\n\
                     [[route]]\nname = \"all\"\nrespond = {}\n";

fn start(rules: &str) -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("logs")).unwrap();
    Gateway::start_in(directory, &format!("{FRAME}{rules}"))
}

#[test]
fn files_that_were_renamed_are_opened_anew_and_no_line_is_lost() {
    let mut gateway = start(RULES);
    let path = |name: &str| gateway.directory.path().join("logs").join(name);
    let [access, old_access, error, old_error] = ["access.log", "access.log.1", "error.log", "error.log.1"].map(path);
    let lines = |path| fs::read_to_string(path).unwrap_or_default().lines().count();
    assert_eq!(get(gateway.address(), "/one").status, 200);
    assert!(eventually(|| lines(&access) == 1));
    for (path, old) in [(&access, &old_access), (&error, &old_error)] {
        fs::rename(path, old).unwrap();
    }
    assert_eq!(get(gateway.address(), "/two").status, 200);
    assert!(eventually(|| lines(&old_access) == 2), "the file is written on until it is asked for");
    gateway.signal("USR1");
    assert!(eventually(|| access.exists() && lines(&error) == 1), "both are there though nobody asks for anything");
    assert!(fs::read_to_string(&error).unwrap().contains("SIGUSR1: the log files are opened anew"));
    assert_eq!(get(gateway.address(), "/three").status, 200);
    assert!(eventually(|| lines(&access) == 1));
    assert!(fs::read_to_string(&access).unwrap().contains("\"target\":\"/three\""));
    assert_eq!(gateway.log(), "", "nothing is left for standard error");
    // The next process goes on in the same files.
    assert_eq!(gateway.upgrade()["ok"], true);
    gateway.wait_alone();
    assert_eq!(get(gateway.address(), "/four").status, 200);
    assert!(eventually(|| lines(&access) == 2));
}

#[test]
fn another_file_holds_after_a_reload_and_one_that_cannot_be_opened_changes_nothing() {
    let gateway = start("[log]\naccess = \"json\"\n[[route]]\nname = \"all\"\nrespond = {}\n");
    let reload = |file: &str| {
        let log = format!("[log]\naccess = \"json\"\naccess_file = \"{file}\"\n");
        gateway.reload(&format!("{log}[[route]]\nname = \"all\"\nrespond = {{}}\n"))
    };
    let refused = reload("none/access.log");
    assert!(refused.status == 422 && refused.text().contains("[log] access_file"), "{}", refused.text());
    assert!(refused.text().contains("none/access.log cannot be opened"), "{}", refused.text());
    assert_eq!(reload("logs/access.log").status, 200);
    assert_eq!(get(gateway.address(), "/").status, 200);
    let file = gateway.directory.path().join("logs/access.log");
    assert!(eventually(|| fs::read_to_string(&file).unwrap().lines().count() == 1));
}

#[test]
fn a_file_without_an_access_log_is_a_warning_and_a_log_that_cannot_be_written_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    let run = |command: &str, log: &str| {
        fs::write(&file, format!("{FRAME}[log]\n{log}\n[[route]]\nname = \"all\"\nrespond = {{}}\n")).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_sluicegate")).args([command, "-c"]).arg(&file).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_right, said) = run("check", "access_file = \"access.log\"");
    assert!(is_right && said.contains("stays empty"), "{said}");
    let (is_right, said) = run("check", "access_file = \"\"");
    assert!(!is_right && said.contains("invalid file name \"\""), "{said}");
    let (is_right, said) = run("run", "file = \"none/error.log\"");
    assert!(!is_right && said.contains("[log] file") && said.contains("none/error.log"), "{said}");
}
