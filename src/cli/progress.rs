//! A bar of progress on a terminal.

use std::io::{self, IsTerminal, Write};

use crate::time::{Clock, Span, Tick};

/// Time between two pictures.
const EVERY: Span = Span::from_millis(100);
/// Characters of the bar.
const WIDTH: usize = 30;

/// A bar on standard error; nothing where that is no terminal.
pub struct ProgressBar {
    clock: Clock,
    shown: Option<Tick>,
    is_terminal: bool,
}

impl ProgressBar {
    pub fn new() -> Self {
        Self { clock: Clock::system(), shown: None, is_terminal: io::stderr().is_terminal() }
    }

    /// Shows how far it is, of a whole that may not be known, and a text beside it, unless it has just shown that.
    pub fn show(&mut self, done: u64, of: Option<u64>, text: impl FnOnce() -> String) {
        if !self.is_terminal {
            return;
        }
        let now = self.clock.now();
        if self.shown.is_some_and(|shown| now.since(shown) < EVERY) {
            return;
        }
        self.shown = Some(now);
        // Nothing can be done if it cannot be shown.
        let _ = write!(io::stderr(), "\r\x1b[K{} {}", bar(done, of), text());
    }

    /// Takes it away.
    pub fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn bar(done: u64, of: Option<u64>) -> String {
    let Some(of) = of.filter(|of| *of > 0) else { return String::new() };
    let share = (done.min(of) as f64) / (of as f64);
    let full = (share * WIDTH as f64) as usize;
    format!("[{}{}] {:3.0}%", "#".repeat(full), "-".repeat(WIDTH - full), share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_full_as_what_is_done() {
        assert_eq!(bar(0, Some(10)), format!("[{}]   0%", "-".repeat(30)));
        assert_eq!(bar(5, Some(10)), format!("[{}{}]  50%", "#".repeat(15), "-".repeat(15)));
        assert_eq!(bar(11, Some(10)), format!("[{}] 100%", "#".repeat(30)));
        assert_eq!((bar(1, None), bar(1, Some(0))), (String::new(), String::new()));
    }
}
