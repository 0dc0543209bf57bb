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
    for (name, word) in [("other.toml", "other.toml"), ("my own.toml", "'my own.toml'")] {
        let (status, out, _) = run(&["init", "-c", name], directory.path());
        assert!(status.success() && out.contains(&format!("sluicegate run -c {word}\n")), "{out}");
    }
}

#[test]
fn the_repositorys_own_file_is_right() {
    let (status, out, errors) = run(&["check"], std::path::Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(status.success(), "{errors}");
    assert!(out.contains("ok"), "{out}");
    assert_eq!(errors, "", "no warnings either");
    let docker = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docker");
    // In the container its user may write to /var/lib/sluicegate, here perhaps not.
    let (status, _, errors) = run(&["check"], &docker);
    assert!(
        status.success()
            || errors.contains("1 error") && errors.contains("`directory` of [dead_letter] cannot be written")
    );
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

#[test]
fn help_names_the_pid_file_and_no_command_that_signals_other_gateways() {
    let directory = tempfile::tempdir().unwrap();
    let (status, _, errors) = run(&["man", "--into", "pages"], directory.path());
    assert!(status.success(), "{errors}");
    let pages = fs::read_dir(directory.path().join("pages")).unwrap();
    let pages: String = pages.map(|page| fs::read_to_string(page.unwrap().path()).unwrap()).collect();
    let (_, help, _) = run(&["--help"], directory.path());
    for text in [&pages, &help] {
        assert!(!text.contains("pidof") && !text.contains("pkill") && !text.contains("killall"), "{text}");
    }
    assert!(help.contains("kill -HUP $(cat /run/sluicegate/pid)") && help.contains("pid_file of [server]"), "{help}");
}

/// Neither the file nor what is in its directory changes by a check.
#[test]
fn check_finds_what_the_gateway_could_not_write_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("kept.log"), "a line\n").unwrap();
    let text = |access: &str, dead_letters: &str, state: &str, pid: &str| {
        format!(
            "[server]\nstate_file = {state:?}\npid_file = {pid:?}\n[log]\naccess = \"json\"\naccess_file = {access:?}\n\
             [dead_letter]\ndirectory = {dead_letters:?}\n{FRAME}[[route]]\nname = \"all\"\nrespond = {{}}\n"
        )
    };
    let check = |text: &str| {
        fs::write(path("gateway.toml"), text).unwrap();
        run(&["check"], directory.path())
    };
    let (status, out, errors) = check(&text(&path("kept.log"), &path("a/b/letters"), &path("counts"), &path("pid")));
    assert!(status.success() && out.contains(": ok (") && errors.is_empty(), "{out}{errors}");
    let (status, out, errors) = check(&text(&path("new.log"), "letters", "counts", "pid"));
    assert!(status.success() && out.contains(": ok (") && errors.is_empty(), "{out}{errors}");
    for (wrong, says) in [
        (text(&path("none/access.log"), "letters", "counts", "pid"), "`access_file` of [log] cannot be written: "),
        (
            text(&directory.path().display().to_string(), "letters", "counts", "pid"),
            "`access_file` of [log] cannot be written: ",
        ),
        (
            text("new.log", &path("kept.log/letters"), "counts", "pid"),
            "`directory` of [dead_letter] cannot be written: ",
        ),
        (text("new.log", "kept.log", "counts", "pid"), "`directory` of [dead_letter] cannot be written: "),
        (text("new.log", "letters", "counts", &path("none/pid")), "`pid_file` of [server] cannot be written: "),
    ] {
        let (status, out, errors) = check(&wrong);
        assert_eq!((status.code(), &*out), (Some(1), ""), "{errors}");
        assert!(errors.starts_with("error: ") && errors.contains(says) && errors.ends_with(": 1 error\n"), "{errors}");
        assert!(errors.contains("the user who runs `check`"), "{errors}");
        // The gateway says so too.
        assert_eq!(run(&["run"], directory.path()).0.code(), Some(1));
    }
    let (status, out, errors) = check(&text("new.log", "letters", &path("none/counts"), "pid"));
    assert!(status.success() && out.contains(": ok ("), "the gateway runs without it: {out}");
    assert!(errors.starts_with("warning: `state_file` of [server] cannot be written: "), "{errors}");
    for made in ["new.log", "letters", "counts", "pid", "a", "none"] {
        let _ = fs::remove_dir_all(path(made)).and_then(|()| fs::remove_file(path(made)));
    }
    check(&text("new.log", "letters", "counts", "pid"));
    let mut names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert!(
        !names.iter().any(|name| ["new.log", "letters", "counts", "pid", "a", "none"].map(Into::into).contains(name)),
        "{names:?}"
    );
    assert_eq!(fs::read_to_string(path("kept.log")).unwrap(), "a line\n");
}

/// `script` runs it on a terminal of its own.
#[test]
fn no_color_holds_for_the_log_of_a_terminal() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    // A port that is taken: it logs its warning, and ends.
    let text = format!(
        "[[listener]]\naddress = \"{}\"\n[client]\ntrusted_proxies = [\"127.0.0.1\"]\n[log]\naccess_file = \"a.log\"\n\
         [[route]]\nname = \"all\"\nrespond = {{}}\n",
        taken.local_addr().unwrap()
    );
    fs::write(directory.path().join("gateway.toml"), text).unwrap();
    let log = |no_color: &str| {
        let mut command = std::process::Command::new("script");
        command.args(["-qec", &format!("{} run", env!("CARGO_BIN_EXE_sluicegate")), "/dev/null"]);
        command.current_dir(directory.path()).env("NO_COLOR", no_color).env_remove("RUST_LOG");
        command.stdin(std::process::Stdio::null());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let (coloured, plain) = (log(""), log("1"));
    assert!(coloured.contains("stays empty") && coloured.contains('\u{1b}'), "{coloured}");
    assert!(plain.contains("stays empty") && !plain.contains('\u{1b}'), "{plain}");
    assert!(plain.contains("]  WARN "), "the number of the process stands behind the time: {plain}");
}

#[test]
fn check_is_strict_for_a_pipeline_and_says_it_in_json() {
    let directory = tempfile::tempdir().unwrap();
    let right = format!("{FRAME}[[route]]\nname = \"all\"\nrespond = {{}}\n");
    let doubtful = format!("[log]\naccess_file = \"a.log\"\n{right}");
    let check = |text: &str, words: &[&str]| {
        fs::write(directory.path().join("gateway.toml"), text).unwrap();
        let (status, out, errors) = run(&[&["check"], words].concat(), directory.path());
        (status.code(), out, errors)
    };
    let json = |text: &str, words: &[&str]| {
        let (code, out, errors) = check(text, &[words, &["--json"]].concat());
        assert_eq!(errors, "");
        (code, serde_json::from_str::<serde_json::Value>(&out).unwrap())
    };
    assert_eq!(check(&right, &["--strict"]).0, Some(0));
    let (code, out, errors) = check(&doubtful, &[]);
    assert!(code == Some(0) && out.contains(": ok (") && errors.starts_with("warning: "), "{out}{errors}");
    let (code, out, errors) = check(&doubtful, &["--strict"]);
    assert!(code == Some(1) && out.is_empty() && errors.starts_with("warning: "), "{out}{errors}");

    let (code, shown) = json(&right, &["--strict"]);
    assert_eq!((code, &shown["ok"], &shown["findings"]), (Some(0), &true.into(), &serde_json::json!([])));
    assert_eq!(
        (&shown["routes"], &shown["listeners"], &shown["bounds"]),
        (&1.into(), &1.into(), &serde_json::json!([]))
    );
    let (code, shown) = json(&doubtful, &[]);
    assert_eq!((code, &shown["ok"], &shown["findings"][0]["severity"]), (Some(0), &true.into(), &"warning".into()));
    let (code, shown) = json(&doubtful, &["--strict"]);
    assert_eq!((code, &shown["ok"], &shown["findings"][0]["line"]), (Some(1), &false.into(), &2.into()));
    let (code, shown) = json(&right.replace("respond", "rspond"), &[]);
    assert_eq!((code, &shown["ok"], &shown["findings"][0]["severity"]), (Some(1), &false.into(), &"error".into()));
    assert!(shown["findings"].as_array().unwrap().iter().all(|found| found["message"].is_string()), "{shown}");
    let (code, shown) = json(&format!("[log]\nfile = \"none/x.log\"\n{right}"), &[]);
    assert!(
        code == Some(1) && shown["findings"][0]["message"].as_str().unwrap().contains("cannot be written"),
        "{shown}"
    );
    fs::remove_file(directory.path().join("gateway.toml")).unwrap();
    let (status, out, _) = run(&["check", "--json"], directory.path());
    let shown: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(
        status.code() == Some(1) && shown["findings"][0]["message"].as_str().unwrap().contains("gateway.toml"),
        "{out}"
    );
}

#[test]
fn check_has_colours_on_a_terminal_unless_they_are_not_wanted() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("gateway.toml"), "[server]\nworkes = 1\n").unwrap();
    let check = |no_color: &str| {
        let mut command = std::process::Command::new("script");
        command.args(["-qec", &format!("{} check", env!("CARGO_BIN_EXE_sluicegate")), "/dev/null"]);
        command.current_dir(directory.path()).env("NO_COLOR", no_color).stdin(std::process::Stdio::null());
        String::from_utf8(command.output().unwrap().stdout).unwrap().replace('\r', "")
    };
    let (coloured, plain) = (check(""), check("1"));
    assert!(
        coloured.contains("\u{1b}[1;31merror\u{1b}[0m: unknown key") && !plain.contains('\u{1b}'),
        "{coloured}{plain}"
    );
    let mut stripped = coloured;
    for code in ["1;31", "1;33", "36", "2", "1", "0"] {
        stripped = stripped.replace(&format!("\u{1b}[{code}m"), "");
    }
    assert_eq!(stripped, plain);
    let (_, _, piped) = run(&["check"], directory.path());
    assert_eq!(piped, plain);
}
