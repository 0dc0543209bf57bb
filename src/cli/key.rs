//! A new secret, for a file.

use std::io::{self, Write as _};
use std::process::ExitCode;

use base16ct::lower::encode_string;
use rustls::crypto::aws_lc_rs;

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Prints one, 64 hexadecimal digits.
pub fn print() -> ExitCode {
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot print a secret: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A new one, in hexadecimal digits.
pub fn random() -> io::Result<String> {
    let mut secret = [0; SECRET_BYTES];
    let generator = aws_lc_rs::default_provider().secure_random;
    generator.fill(&mut secret).map_err(|_| io::Error::other("the operating system gives no random bytes"))?;
    Ok(encode_string(&secret))
}

fn write() -> io::Result<()> {
    let digits = random()?;
    let mut out = io::stdout().lock();
    writeln!(out, "{digits}")?;
    out.flush()
}
