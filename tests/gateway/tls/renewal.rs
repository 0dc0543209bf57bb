//! Certificates that change while clients shake hands.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::peer::{Asking, Authority, LOCAL, Made, Tls, front};
use crate::support::eventually;

/// Replaces both files by renames.
fn replace(directory: &Path, made: &Made) {
    made.write(directory, "next");
    for (from, to) in [("next-key.pem", "cert-key.pem"), ("next.pem", "cert.pem")] {
        fs::rename(directory.join(from), directory.join(to)).unwrap();
    }
}

#[test]
fn no_handshake_fails_while_certificates_change() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "", LOCAL);
    let (done, shaken) = (AtomicBool::new(false), AtomicUsize::new(0));
    let seen = Mutex::new(HashSet::new());
    let pair = [authority.server(&["localhost"]), authority.server(&["localhost"])];
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let config = Asking::of(&authority).forgetful();
                while !done.load(Ordering::SeqCst) {
                    let mut tls = Tls::open(gateway.address(), &config);
                    assert_eq!(tls.get("/").text(), "local\n");
                    seen.lock().unwrap().insert(tls.shown());
                    shaken.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let work = || {
            for round in 0..20 {
                let next = &pair[round % 2];
                replace(gateway.directory.path(), next);
                seen.lock().unwrap().clear();
                if !eventually(|| seen.lock().unwrap().contains(&next.der)) {
                    return Err(format!("round {round}: {}", gateway.log()));
                }
            }
            Ok(())
        };
        let worked = work();
        done.store(true, Ordering::SeqCst);
        worked.unwrap();
    });
    let shaken = shaken.load(Ordering::SeqCst);
    assert!(shaken >= 40, "{shaken}");
    super::peer::wait_handshakes(&gateway, "full", shaken);
    super::peer::wait_handshakes(&gateway, "failed", 0);
    gateway.wait_metric("sluicegate_tls_handshakes_total", &[], shaken as f64);
}
