//! The package and the image: their configurations are right, and all that the image's build copies is there.

use std::fs;
use std::path::Path;
use std::process::Command;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_configurations_that_are_shipped_are_right() {
    for file in ["packaging/gateway.toml", "docker/gateway.toml"] {
        // The directory that the package or the image makes.
        let directory = tempfile::tempdir().unwrap();
        let text = fs::read_to_string(repository().join(file)).unwrap();
        let state = directory.path().join("state");
        fs::create_dir(&state).unwrap();
        let own = directory.path().join("gateway.toml");
        fs::write(&own, text.replace("/var/lib/sluicegate", state.to_str().unwrap())).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(["check", "-c"]).arg(own).output().unwrap();
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn what_the_image_copies_is_there() {
    let text = fs::read_to_string(repository().join("Dockerfile")).unwrap();
    let copied: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|line| !line.starts_with("--from"))
        .flat_map(|line| line.rsplit_once(' ').unwrap().0.split(' '))
        .collect();
    for needed in ["Cargo.toml", "Cargo.lock", "src", "crates", "benches", "gateway.toml"] {
        assert!(copied.contains(&needed), "{needed} is not among {copied:?}");
    }
    for path in copied {
        assert!(repository().join(path).exists(), "{path}");
    }
}
