//! Exceptions of single keys, as the operator makes them while the gateway runs: blocks by hand, and other numbers.
//!
//! - `book`: all of them, bounded, with what each limit's requests are compared with ([`KeyExceptions`]).
//! - `secrets`: by which secret a key is known: the fleet's where there is a fleet, since all its gateways know it by that.
//! - `written`: their form in JSON, in a file and in the store of a fleet. Whatever is read is checked again.
//! - `file`: the file beside the state file, written whole at each change.
//! - `asked`: what somebody asks for who makes one, read strictly.
//! - `shared`: what the gateways of a fleet tell each other of them.
//! - `acts`: the things that they have told each other to do with keys, each of which is done once.
//! - `done`: those that are done, in a file that is written with the counts.
//! - `until`: their ends, as people write them.
//! - `seen`: how they are shown.
//!
//! A value of a key is a secret as often as not: it is kept as a fingerprint, and in the form in which logs show it.
//!
//! Other numbers of a key count in a limit of their own, which lives among the others ([`LiveLimits`](super::live::LiveLimits)): so
//! a state file, an upgrade in place and a fleet know it. They are kept as text and read again with each configuration.
//!
//! [`KeyExceptions`]: crate::admission::KeyExceptions

mod acts;
mod book;
mod done;
mod file;
mod requests;
mod secrets;
mod seen;
mod shared;
mod until;
mod written;

pub use acts::{Before, SharedActs};
pub use book::{ExceptionChange, Exceptions, Id, KeyedExceptions, Misfit, Subject, Tables, print_of};
pub use done::DoneFile;
pub use file::{ExceptionsFile, from_json, to_json};
pub use requests::{BlockAsked, NumbersAsked};
pub use secrets::Secrets;
pub use seen::{BlockSeen, ExceptionSeen, NumbersSeen, parse_print, print_text};
pub use shared::{ActTold, is_by, read as read_heard, told, told_act};
pub use until::parse_until;
