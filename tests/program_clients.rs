//! The clients of `decides = "json"` for other languages, each by its own tests against this binary.

use std::path::Path;
use std::process::Command;

#[test]
fn the_python_client_holds_its_tests() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    let mut tests = Command::new("python3");
    tests.args(["-B", "-m", "unittest", "test_sluicegate"]).current_dir(directory);
    tests.env("SLUICEGATE", env!("CARGO_BIN_EXE_sluicegate"));
    let run = tests.output().expect("python3 is missing; on Debian: sudo apt-get install -y python3");
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && told.contains("Ran 32 tests"), "{told}");
}
