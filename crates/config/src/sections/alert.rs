//! `alerts` of `[dead_letter]`

use std::fmt;
use std::ops::RangeInclusive;

use http::Uri;

use super::secret_file::{FileSecret, SecretFile};
use crate::findings::{Reported, quoted};
use crate::form::{Form, Secrecy};
use crate::kind::{Context, by, count, duration, each};
use crate::reader::Node;
use crate::section::{Declare, Section, section};
use crate::token::with_causes;
use sluicegate_limiter::{MAX_COUNT, Rate};
use sluicegate_time::Span;

section! {
    /// One of `alerts`: it is told when the dead-letter log grows, and when that is over.
    pub struct Alert, read as AlertKeys {
        /// Where its messages are sent. Each is a line of the log too, with or without it.
        webhook: Option<Webhook> = by(ADDRESS, webhook, Webhook::to_string).or_nothing("none").secret(Secrecy::Host),
        /// Records that are neither replayed nor gone, from which on it fires.
        length: Option<u64> = count(COUNTS).or_nothing("none"),
        /// The age of the oldest of them.
        age: Option<Span> = duration(AGES).or_nothing("none"),
        /// Requests that the log was offered, by the time in which.
        growth: Option<Rate> = by(Form::Rate, growth, Rate::to_string).or_nothing("none"),
        /// Records that were lost within a minute.
        drops: Option<u64> = count(COUNTS).or_nothing("none"),
        /// A file with the key of the signature: 32 bytes, or 64 hexadecimal digits.
        secret_file: Option<FileSecret> = SecretFile { example: "hook.key", help: SECRET_HELP }.or_nothing("none"),
    }
}

/// The address of a webhook or a sink. Its path is often a secret: it is shown without.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook(Uri);

impl Webhook {
    /// All of it.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// Its host, and its port if it is written.
    pub fn host(&self) -> &str {
        self.0.authority().map_or("", |authority| authority.as_str())
    }
}

/// Its scheme, host and port.
impl fmt::Display for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.0.scheme_str().unwrap_or("http"), self.host())
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Webhook({self})")
    }
}

/// The form of an address of HTTP.
pub(super) const ADDRESS: Form = Form::Text("an address of HTTP, such as \"https://hooks.example.com/t/1\"");

const SECRET_HELP: &str = "a key has 32 bytes, or 64 hexadecimal digits: make one with \
                           `(umask 077; sluicegate dead-letters key > hook.key)`";

/// Alerts of a file. Each has at most four figures, and each figure one message that waits.
pub(super) const MAX_ALERTS: usize = 16;

const COUNTS: RangeInclusive<u64> = 1..=MAX_COUNT;

/// The log is looked at each second.
const AGES: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(3_650 * 86_400);

/// Windows of `growth`.
const WINDOWS: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(86_400);

/// Bytes of an address.
const MAX_ADDRESS_BYTES: usize = 2_048;

/// Reads `alerts`.
pub(super) fn read(node: &Node<'_>, context: &Context<'_>) -> Result<Vec<Alert>, Reported> {
    const EXAMPLE: &str = "[{ length = 1000, webhook = \"https://hooks.example.com\" }]";
    let items = node.array(EXAMPLE)?;
    if items.len() > MAX_ALERTS {
        let message = format!("{} has {} of them", node.label(), items.len());
        return Err(node.error(message, format!("it takes at most {MAX_ALERTS}")));
    }
    each(&items, |item| alert(item, context))
}

fn alert(item: &Node<'_>, context: &Context<'_>) -> Result<Alert, Reported> {
    let keys = Alert::read_keys(item.inner("an alert", "{ length = 1000 }")?, context);
    let figures =
        [keys.length.node.is_some(), keys.age.node.is_some(), keys.growth.node.is_some(), keys.drops.node.is_some()];
    let has_none = !figures.contains(&true);
    if let (Some(node), None) = (&keys.secret_file.node, &keys.webhook.node) {
        node.warning(
            "`secret_file` has no effect: there is no webhook whose messages it would sign",
            "remove it, or set webhook",
        );
    }
    let alert = Alert::of(keys)?;
    if has_none {
        let help = "add one of length = 1000, age = \"1h\", growth = \"100/m\", drops = 1";
        return Err(item.error("an alert that no figure sets off", help));
    }
    Ok(alert)
}

pub(super) fn webhook(node: &Node<'_>, _: &Context<'_>) -> Result<Webhook, Reported> {
    let help = "leave them out, and let the receiver verify the signature: secret_file = \"hook.key\"";
    http_address(node, "\"https://hooks.example.com\"", help).map(Webhook)
}

/// An address of HTTP with no user in it; `without` is the remedy where there is one. No message repeats what is written: it may
/// be a secret.
pub(super) fn http_address(node: &Node<'_>, example: &str, without: &str) -> Result<Uri, Reported> {
    let text = node.string("an address in quotes", example)?;
    let refuse = |message: &str| {
        let help =
            "write \"https://HOST/PATH\", or \"http://…\" on a network of your own; a fragment (#) has no place there";
        Err(node.error(format!("{} {message}", node.label()), help))
    };
    if text.len() > MAX_ADDRESS_BYTES {
        return refuse(&format!("has {} bytes, and may have {MAX_ADDRESS_BYTES}", text.len()));
    }
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    let Some(uri) = text.parse::<Uri>().ok().filter(|_| is_plain) else { return refuse("is no address of HTTP") };
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return refuse("is no address of HTTP");
    };
    if authority.as_str().contains('@') {
        return Err(node.error(format!("{} holds a user or a password", node.label()), without));
    }
    let has_bad_port = authority.as_str() != authority.host() && authority.port_u16().is_none_or(|port| port == 0);
    if authority.host().is_empty() || has_bad_port {
        return refuse("is no address of HTTP");
    }
    Ok(uri)
}

fn growth(node: &Node<'_>, _: &Context<'_>) -> Result<Rate, Reported> {
    let text = node.string("a rate in quotes", "\"100/m\"")?;
    let help = match text.parse::<Rate>() {
        Err(error) => with_causes(&error),
        Ok(rate) if !WINDOWS.contains(&rate.window()) => {
            format!("its time goes from {} to {}", WINDOWS.start(), WINDOWS.end())
        }
        Ok(rate) => return Ok(rate),
    };
    Err(node.error(format!("invalid growth {}", quoted(text)), help))
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { webhook, length, age, growth, drops, secret_file } = self;
        let figures = [
            length.map(|length| format!("length {length}")),
            age.map(|age| format!("age {age}")),
            growth.map(|growth| format!("growth {growth}")),
            drops.map(|drops| format!("drops {drops}")),
        ];
        let to = webhook.as_ref().map(|webhook| format!("to {webhook}"));
        let signed = secret_file.map(|_| "signed".to_owned());
        let words: Vec<String> = figures.into_iter().chain([to, signed]).flatten().collect();
        write!(f, "[{}]", words.join(", "))
    }
}
