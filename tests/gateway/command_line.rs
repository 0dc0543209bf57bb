use std::fs;

use crate::support::{FRAME, Gateway, run};

#[test]
fn check_reports_every_error_and_exits_1() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("gateway.toml"), "[server]\nworkes = 1\n[[listener]]\naddress = \"nowhere\"\n")
        .unwrap();
    let (status, out, errors) = run(&["check"], directory.path());
    assert_eq!(status.code(), Some(1));
    assert_eq!(out, "");
    assert!(errors.contains("workes") && errors.contains("nowhere"), "{errors}");
    assert!(errors.contains("gateway.toml:2:"), "{errors}");
    let (status, _, errors) = run(&["run"], directory.path());
    assert_eq!(status.code(), Some(1));
    assert!(errors.contains("workes"), "{errors}");
}

#[test]
fn init_writes_a_file_that_is_right_and_changes_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    let (status, out, errors) = run(&["init"], directory.path());
    assert!(status.success(), "{errors}");
    assert!(out.contains("gateway.toml: written") && out.contains("sluicegate run\n"), "{out}");
    let (status, _, errors) = run(&["check"], directory.path());
    assert!(status.success() && errors.is_empty(), "{errors}");
    fs::write(&file, "# mine").unwrap();
    let (status, out, errors) = run(&["init"], directory.path());
    assert_eq!((status.code(), &*out), (Some(1), ""));
    assert!(errors.contains("gateway.toml is there already"), "{errors}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "# mine");
    let (status, out, _) = run(&["init", "-c", "other.toml"], directory.path());
    assert!(status.success() && out.contains("sluicegate run -c other.toml"), "{out}");
}

#[test]
fn the_repositorys_own_file_is_right() {
    let (status, out, errors) = run(&["check"], std::path::Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(status.success(), "{errors}");
    assert!(out.contains("ok"), "{out}");
    assert_eq!(errors, "", "no warnings either");
    let docker = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docker");
    assert!(run(&["check"], &docker).0.success());
}

#[test]
fn check_health_asks_the_running_gateway() {
    let app = "[[route]]\nname = \"all\"\nrespond = { status = 200, body = \"\" }\n";
    let gateway = Gateway::start(app);
    // The file says port 0; the health check needs the port that was bound.
    let file = gateway.directory.path().join("health.toml");
    let text = format!("{FRAME}{app}")
        .replace("[admin]\naddress = \"127.0.0.1:0\"", &format!("[admin]\naddress = \"{}\"", gateway.admin));
    fs::write(&file, text).unwrap();
    let arguments = ["check", "--health", "-c", file.to_str().unwrap()];
    let (status, out, _) = run(&arguments, gateway.directory.path());
    assert!(status.success());
    assert!(out.contains("alive"), "{out}");
    let directory = gateway.kill();
    let (status, _, errors) = run(&arguments, directory.path());
    assert_eq!(status.code(), Some(1));
    assert!(!errors.is_empty());
}

#[test]
fn a_taken_port_is_one_line_and_exit_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "[[listener]]\naddress = \"{address}\"\n[[route]]\nname = \"all\"\nrespond = {{ status = 200, body = \"\" }}\n"
    );
    fs::write(directory.path().join("gateway.toml"), text).unwrap();
    let (status, _, errors) = run(&["run"], directory.path());
    assert_eq!(status.code(), Some(1));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains(&address.to_string()) && errors.contains("[[listener]]"), "{errors}");
}

#[test]
fn fleet_key_prints_a_new_secret_each_time() {
    let directory = tempfile::tempdir().unwrap();
    let keys = [(); 2].map(|()| {
        let (status, out, errors) = run(&["fleet", "key"], directory.path());
        assert!(status.success() && errors.is_empty(), "{errors}");
        let digits = out.strip_suffix('\n').unwrap();
        assert_eq!(digits.len(), 64, "{out}");
        assert!(digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{out}");
        out
    });
    assert_ne!(keys[0], keys[1]);
    let (status, out, _) = run(&["fleet"], directory.path());
    assert!(!status.success() && out.is_empty());
}

#[test]
fn help_has_examples_and_a_missing_file_is_said() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [
        &["--help"][..],
        &["run", "--help"],
        &["check", "--help"],
        &["dead-letters", "--help"],
        &["fleet", "--help"],
        &["fleet", "key", "--help"],
    ] {
        let (status, out, _) = run(arguments, directory.path());
        assert!(status.success());
        assert!(out.contains("Example"), "{arguments:?}: {out}");
    }
    let (status, _, errors) = run(&[], directory.path());
    assert_eq!(status.code(), Some(1));
    assert!(errors.contains("gateway.toml"), "{errors}");
}
