use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{self, read_regular};
use serde::{Deserialize, Serialize};

use super::book::{Exceptions, MAX_EXCEPTIONS};
use super::written::StoredException;
use crate::fleet::Notice;

/// Grows when the file means something else.
const VERSION: u32 = 1;
/// Bytes of a file that is read.
const MAX_BYTES: usize = 64 << 20;

/// Where exceptions are kept.
#[derive(Clone, Debug)]
pub struct ExceptionsFile {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    exceptions: Vec<StoredException>,
    /// The other gateways of a fleet may not have been told this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    untold: Option<Untold>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Untold {
    /// Of the store; null: it is to be removed there.
    fields: BTreeMap<String, Option<String>>,
    /// Keys of counts that are to be removed from the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    forgotten: Vec<String>,
}

impl Untold {
    /// Those of a notice, if there are any.
    fn of(notice: &Notice) -> Option<Self> {
        let Notice { fields, forgotten, ended: _ } = notice;
        let untold = Self { fields: fields.iter().cloned().collect(), forgotten: forgotten.clone() };
        (!fields.is_empty() || !forgotten.is_empty()).then_some(untold)
    }
}

impl ExceptionsFile {
    /// That beside a state file.
    pub fn beside(state_file: &Path) -> Self {
        Self { path: files::beside(state_file, ".exceptions") }
    }

    /// Reads them. Whatever is wrong with the file is a line of the log, and it is left aside.
    pub fn read(&self) -> Exceptions {
        let file = self.path.display();
        let read = match self.bytes() {
            Ok(None) => return Exceptions::default(),
            Ok(Some(bytes)) => from_json(&bytes),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(exceptions) => {
                tracing::info!(%file, keys = exceptions.len(), "exceptions of keys taken over");
                exceptions
            }
            Err(error) => {
                let bad = files::beside(&self.path, ".bad");
                let left_aside = fs::rename(&self.path, &bad).is_ok().then(|| bad.display().to_string());
                tracing::error!(
                    %file, error, left_aside,
                    "the exceptions of keys cannot be read, so blocks by hand and numbers of single keys do not hold: mend the \
                     file, give it its name again and restart, or make them again with `sluicegate keys`"
                );
                Exceptions::default()
            }
        }
    }

    fn bytes(&self) -> io::Result<Option<Vec<u8>>> {
        match read_regular(&self.path, MAX_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Ok(bytes) if bytes.len() > MAX_BYTES => Err(io::Error::other("it is larger than 64 MiB")),
            read => read.map(Some),
        }
    }

    /// Writes them.
    ///
    /// # Errors
    /// The directory is not writable, or the disk is full. The file is as it was.
    pub fn write(&self, json: &[u8]) -> io::Result<()> {
        files::replace(&self.path, json)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Exceptions as a file has them, and as a process hands them over.
pub fn to_json(exceptions: &Exceptions) -> Vec<u8> {
    let written = exceptions.iter().map(|(id, entry)| StoredException::of(id, entry)).collect();
    // Texts and numbers always are JSON.
    let untold = Untold::of(exceptions.untold());
    serde_json::to_vec_pretty(&Document { version: VERSION, exceptions: written, untold }).unwrap_or_default()
}

/// Reads them.
///
/// # Errors
/// It is something else, or damaged: in words.
pub fn from_json(json: &[u8]) -> Result<Exceptions, String> {
    let Document { version, exceptions, untold } = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("it is of version {version}, and this is {VERSION}"));
    }
    if exceptions.len() > MAX_EXCEPTIONS {
        return Err(format!("it has {} exceptions, and a gateway keeps {MAX_EXCEPTIONS}", exceptions.len()));
    }
    let read = exceptions
        .iter()
        .enumerate()
        .map(|(place, written)| written.read().ok_or_else(|| format!("the exception number {} is damaged", place + 1)));
    let mut exceptions = Exceptions::of(read.collect::<Result<Vec<_>, _>>()?);
    if let Some(Untold { fields, forgotten }) = untold {
        exceptions.set_untold(Notice { fields: fields.into_iter().collect(), forgotten, ended: Vec::new() });
    }
    Ok(exceptions)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admission::{Block, KeyException, Made, OwnNumbers};
    use crate::gateway::exceptions::{Id, KeyedExceptions};
    use crate::limiter::Fingerprint;
    use crate::state::Mark;
    use crate::time::Wall;

    fn one(print: u64, block: Option<Block>, numbers: Option<OwnNumbers>) -> (Id, KeyedExceptions) {
        let id = Id { limit: "per-key".into(), mark: Mark::known(7), print: Fingerprint::known(print).unwrap() };
        let exception = KeyException { block, numbers, once: None };
        (id, KeyedExceptions { by: "header:x-api-key".into(), shown: "***1234".into(), exception, misfit: None })
    }

    fn made(at: u64, reason: Option<&str>) -> Made {
        Made { at: Wall::from_nanos(at), by: "admin".into(), reason: reason.map(Into::into) }
    }

    fn shown(exceptions: &Exceptions) -> Vec<String> {
        exceptions.iter().map(|(id, entry)| format!("{id:?} {entry:?}")).collect()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_it_was(
            keys in prop::collection::btree_map(
                1u64..,
                (prop::option::of((prop::option::of(0u64..1 << 62), 0u64..1 << 62)), prop::option::of(0u64..1 << 62)),
                0..20,
            ),
            reason in prop::option::of("[a-zé\"\\\\ ]{0,20}"),
            untold in prop::collection::btree_map("[a-z:]{0,9}", prop::option::of("\\PC{0,9}"), 0..5),
            forgotten in prop::collection::vec("[a-z:]{0,9}", 0..3),
        ) {
            let entries = keys.into_iter().map(|(print, (block, numbers))| {
                let block = block.map(|(until, at)| Block { until: until.map(Wall::from_nanos), made: made(at, reason.as_deref()) });
                let numbers = numbers.or(block.is_none().then_some(5)).map(|until| OwnNumbers {
                    until: Some(Wall::from_nanos(until)),
                    made: made(until, None),
                    text: "burst = 5\nrate = [\"1/s\"]\n".into(),
                    limit: None,
                });
                one(print, block, numbers)
            });
            let mut exceptions = Exceptions::of(entries);
            exceptions.set_untold(Notice { fields: untold.into_iter().collect(), forgotten, ended: Vec::new() });
            let read = from_json(&to_json(&exceptions)).unwrap();
            prop_assert_eq!(shown(&read), shown(&exceptions));
            prop_assert_eq!(read.untold(), exceptions.untold());
        }

        /// Wherever it is cut or changed, it is an error or another book, and no panic.
        #[test]
        fn a_damaged_text_panics_nobody(at in 0usize..400, byte in any::<u8>(), cut in any::<bool>()) {
            let block = Block { until: None, made: made(5, Some("x")) };
            let mut json = to_json(&Exceptions::of([one(9, Some(block), None)]));
            let at = at % json.len();
            if cut {
                json.truncate(at);
                prop_assert!(from_json(&json).is_err());
            } else {
                json[at] = byte;
                let _ = from_json(&json);
            }
        }
    }

    #[test]
    fn a_file_is_kept_and_a_damaged_one_is_left_aside() {
        let directory = tempfile::tempdir().unwrap();
        let file = ExceptionsFile::beside(&directory.path().join("state"));
        assert_eq!(file.read().len(), 0, "there is none yet");
        let exceptions = Exceptions::of([one(9, Some(Block { until: None, made: made(5, None) }), None)]);
        file.write(&to_json(&exceptions)).unwrap();
        assert_eq!(shown(&file.read()), shown(&exceptions));
        let path = directory.path().join("state.exceptions");
        for damaged in ["{", "{\"version\": 2, \"exceptions\": []}", "{\"version\": 1, \"exceptions\": [{}]}"] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(file.read().len(), 0);
            assert_eq!(fs::read_to_string(directory.path().join("state.exceptions.bad")).unwrap(), damaged);
            assert!(!path.exists());
        }
    }

    #[test]
    fn texts_that_are_long_or_steer_a_terminal_are_no_exceptions() {
        let json = String::from_utf8(to_json(&Exceptions::of([one(
            9,
            Some(Block { until: None, made: made(5, Some("why")) }),
            None,
        )])))
        .unwrap();
        assert!(from_json(json.as_bytes()).is_ok());
        for (old, new) in [
            ("\"why\"", "\"\\u001b[2J\"".to_owned()),
            ("\"why\"", format!("\"{}\"", "x".repeat(600))),
            ("\"0000000000000009\"", "\"0000000000000000\"".to_owned()),
            ("\"per-key\"", "\"a\\nb\"".to_owned()),
        ] {
            assert!(json.contains(old), "{json}");
            let error = from_json(json.replace(old, &new).as_bytes()).unwrap_err();
            assert_eq!(error, "the exception number 1 is damaged");
        }
    }
}
