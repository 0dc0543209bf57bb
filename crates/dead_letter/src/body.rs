//! The body of a request in its record: `{"encoding":"utf-8","len":N,"truncated":false,"sha256":"…","data":"…"}`.
//!
//! `data` is the text if all of it is UTF-8 and shorter as JSON than in base64, else base64; `len` is how many bytes of the body
//! came; `truncated` says that `data` is less than the client meant to send; `sha256` is that of the bytes in `data`. Where the
//! redactor hides a part, `sha256` is null, since short secrets could be found by trying; the holder of the key of the seals
//! has the original. Of bytes that are no text the redactor hides all or nothing.
//!
//! `capture_body` bounds `data` to 256 KiB; a line has room for that twice, sealed and open.

use base64ct::{Base64, Encoding as _};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::line::{LineWriter, takes_text};
use super::seal::Hidden;
#[cfg(test)]
use sluicegate_config::MAX_CAPTURED_BODY;
use sluicegate_redact::{ClipEnd, Redactor};

const TEXT: &str = "utf-8";
const BASE64: &str = "base64";

/// The body of a request, as far as it was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBody {
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// How many came in all.
    pub length: u64,
    /// Whether `bytes` is all that the client meant to send.
    pub is_whole: bool,
}

/// The body of a record.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RecordedBody {
    /// `utf-8` or `base64`.
    pub encoding: String,
    /// How many bytes of it came.
    pub len: u64,
    /// Whether `data` is less than the client meant to send.
    pub truncated: bool,
    /// Of the bytes in `data`, in hexadecimal; `None`: a part of them was redacted.
    pub sha256: Option<String>,
    /// The bytes.
    pub data: String,
}

impl KeptBody {
    pub(super) fn weight(&self) -> usize {
        self.bytes.capacity()
    }

    /// Adds the field. `hidden` gets the bytes if the redactor hides some of them.
    pub(super) fn write(&self, line: &mut LineWriter<'_>, redactor: &Redactor, hidden: Option<&mut Hidden>) {
        let end = if self.is_whole { ClipEnd::Whole } else { ClipEnd::Cut };
        let mut is_hidden = false;
        let encoded = Base64::encoded_len(&self.bytes);
        let text = std::str::from_utf8(&self.bytes).ok().filter(|text| takes_text(text, encoded));
        let (encoding, data) = if let Some(text) = text {
            let shown = redactor.query(text, end);
            is_hidden = *shown != *text;
            (TEXT, shown)
        } else if redactor.hides(&self.bytes, end) {
            is_hidden = true;
            (TEXT, redactor.whole(&self.bytes).into())
        } else {
            (BASE64, Base64::encode_string(&self.bytes).into())
        };
        if let (true, Some(hidden)) = (is_hidden, hidden) {
            hidden.body = Some(Base64::encode_string(&self.bytes));
        }
        let sum = (!is_hidden).then(|| format!("{:x}", Sha256::digest(&self.bytes)));
        // Marks may be longer than the secrets that they stand for.
        let most = encoded + 2 * 1024;
        line.object("body", |body| {
            body.text("encoding", Some(encoding), most);
            body.number("len", self.length);
            body.truth("truncated", !self.is_whole);
            body.text("sha256", sum.as_deref(), most);
            body.text("data", Some(&data), most);
        });
    }
}

impl RecordedBody {
    /// The bytes of `data`, if its checksum holds; `None` also where a part of them was redacted.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let bytes = match self.encoding.as_str() {
            TEXT => self.data.clone().into_bytes(),
            BASE64 => Base64::decode_vec(&self.data).ok()?,
            _ => return None,
        };
        (format!("{:x}", Sha256::digest(&bytes)) == *self.sha256.as_ref()?).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::entry::Entry;
    use super::super::line::MAX_LINE;
    use super::super::record::Draft;
    use super::super::record::tests::draft;
    use super::super::seal::{Opener, Sealer};
    use super::*;
    use sluicegate_redact::RedactRules;

    fn line_of(bytes: &[u8], is_whole: bool, seals: bool) -> String {
        let body = KeptBody { bytes: bytes.to_vec(), length: bytes.len() as u64, is_whole };
        let draft = Draft { body: Some(body), ..draft() };
        let mut out = Vec::new();
        let mut sealer = Sealer::new(&[7; 32]).unwrap();
        draft.write_sealed("gw", &Redactor::new(&RedactRules::default()), seals.then_some(&mut sealer), &mut out);
        assert_eq!(out.pop(), Some(b'\n'));
        String::from_utf8(out).unwrap()
    }

    fn body_of(line: &str) -> RecordedBody {
        let Some(Entry::Record(record)) = Entry::parse(line.as_bytes()) else { panic!("{line}") };
        record.body.unwrap()
    }

    #[test]
    fn a_text_stands_for_itself_and_bytes_are_in_base64() {
        let line = line_of(b"{\"order\":7}", true, false);
        let body = body_of(&line);
        assert_eq!((body.encoding.as_str(), body.len, body.truncated), ("utf-8", 11, false));
        assert_eq!(body.data, "{\"order\":7}");
        assert_eq!(body.bytes().unwrap(), b"{\"order\":7}");
        let body = body_of(&line_of(b"\xff\xfe", false, false));
        assert_eq!((body.encoding.as_str(), body.data.as_str(), body.truncated), ("base64", "//4=", true));
        let body = body_of(&line_of("\u{1}".repeat(100).as_bytes(), true, false));
        assert_eq!(body.encoding, "base64", "shorter than six bytes for each");
        assert_eq!(body_of(&line_of(b"", false, false)).bytes().unwrap(), b"");
    }

    #[test]
    fn a_checksum_that_does_not_hold_gives_no_bytes() {
        let mut body = body_of(&line_of(b"abc", true, false));
        assert_eq!(
            body.sha256.as_deref(),
            Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            "FIPS 180-2, appendix B.1"
        );
        body.data.push('d');
        assert_eq!(body.bytes(), None);
    }

    #[test]
    fn secrets_of_a_body_are_in_its_seal_alone() {
        for secret in [
            &b"user=me&password=hunter2&x=1"[..],
            b"{\"user\":\"me\",\"password\":\"hunter2\"}",
            b"\xff{\"password\":\"hunter2\"}",
        ] {
            let line = line_of(secret, true, true);
            let body = body_of(&line);
            assert!(!line.contains("hunter2") && body.data.contains("[redacted:"), "{line}");
            assert_eq!((body.sha256.as_deref(), body.bytes()), (None, None), "{line}");
            let Some(Entry::Record(record)) = Entry::parse(line.as_bytes()) else { panic!("{line}") };
            let hidden = Opener::new(&[7; 32]).open(line.as_bytes(), record.sealed.as_ref().unwrap()).unwrap();
            assert_eq!(hidden.body_bytes().unwrap(), secret);
        }
    }

    #[test]
    fn the_largest_body_fits_a_line_with_its_seal() {
        let most = MAX_CAPTURED_BODY as usize;
        for bytes in [vec![b'"'; most], vec![0xff; most], [b"password=".to_vec(), vec![b'\\'; most - 9]].concat()] {
            let line = line_of(&bytes, true, true);
            assert!(line.len() < MAX_LINE, "{}", line.len());
            assert!(!line.contains("\"sealed\":null") && !line.contains("\"truncated\":true"), "{}", &line[..600]);
        }
    }

    proptest! {
        #[test]
        fn whatever_came_comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in ".{0,100}") {
            for bytes in [bytes, text.into_bytes()] {
                let line = line_of(&bytes, true, true);
                let body = body_of(&line);
                let Some(Entry::Record(record)) = Entry::parse(line.as_bytes()) else { panic!("{line}") };
                let back = body.bytes().or_else(|| {
                    Opener::new(&[7; 32]).open(line.as_bytes(), record.sealed.as_ref()?).ok()?.body_bytes()
                });
                prop_assert_eq!(back.as_deref(), Some(&*bytes));
            }
        }
    }
}
