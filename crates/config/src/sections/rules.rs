//! `[rules]`

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use http::Uri;

use super::alert::{ADDRESS, http_address};
use super::paths;
use super::secret_file::without_line_end;
use super::tls;
use crate::findings::{Findings, Reported, quoted};
use crate::form::{FILE, Secrecy};
use crate::kind::{Context, by, duration};
use crate::lower::file;
use crate::reader::{Node, Reader};
use crate::section::{Declare, Section, section};
use sluicegate_files::read_regular;
use sluicegate_time::Span;
use sluicegate_tls::Roots;

section! {
    /// `[rules]`: the routes, limits, upstreams and bandwidths come from elsewhere.
    pub struct Follow, read as FollowKeys {
        /// The address of the text that has them: that of another gateway, or of any HTTP server.
        follow: RulesAddress = by(ADDRESS, address, RulesAddress::to_string).required("\"https://rules.example/api/v1/config/text\"").secret(Secrecy::Path),
        /// How often the text is asked for; each pause is by chance up to a fifth shorter or longer.
        every: Span = duration(PAUSES).or("5s"),
        /// A file with the bearer token that is sent, in one line. It is read each time.
        token_file: Option<PathBuf> = by(FILE, token_file, |path| path.display().to_string()).or_nothing("none"),
        /// A file with the authorities of the server's certificate. Only with `https://`.
        ca: Option<Roots> = by(FILE, ca, |_| "set".to_owned()).or_nothing("the machine's"),
        /// The file that keeps the last good text; by default it lies beside this file, with `.followed` behind its name.
        kept_file: Option<PathBuf> = by(FILE, kept_file, |path| path.display().to_string()).or_nothing("beside the file"),
    }
}

const PAUSES: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(3_600);

/// Bytes of a token.
const MAX_TOKEN_BYTES: usize = 4_096;

/// Behind the name of the configuration, the name of the file that keeps the text.
const KEPT: &str = ".followed";

/// The address of rules. The part behind a `?` may be a secret: it is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct RulesAddress(Uri);

impl RulesAddress {
    /// One that was judged elsewhere.
    pub(super) fn of(uri: Uri) -> Self {
        Self(uri)
    }

    /// All of it.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    fn is_over_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// Whether only this machine is asked.
    fn is_loopback(&self) -> bool {
        let host = self.0.host().unwrap_or_default().trim_matches(['[', ']']);
        host.eq_ignore_ascii_case("localhost")
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    }
}

impl fmt::Display for RulesAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        write!(f, "{}://{authority}{}", self.0.scheme_str().unwrap_or("http"), self.0.path())?;
        f.write_str(if self.0.query().is_some() { "?..." } else { "" })
    }
}

impl fmt::Debug for RulesAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RulesAddress({self})")
    }
}

impl Follow {
    /// The file that keeps the last good text of the configuration at `path`.
    pub fn kept(&self, path: &Path) -> PathBuf {
        self.kept_file.clone().unwrap_or_else(|| {
            let mut beside = std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).into_os_string();
            beside.push(KEPT);
            beside.into()
        })
    }

    /// The token as the file has it now; `None`: none is sent.
    ///
    /// # Errors
    /// In words, without the token: the file cannot be read, or holds no token.
    pub fn token(&self) -> Result<Option<String>, String> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let shown = path.display();
        let bytes = read_regular(path, MAX_TOKEN_BYTES + 2);
        let bytes = bytes.map_err(|error| format!("token_file {shown} cannot be read: {error}"))?;
        let token = token_of(&bytes).ok_or_else(|| format!("token_file {shown} holds no token: {TOKEN_HELP}"))?;
        Ok(Some(token.to_owned()))
    }
}

/// Reads the section, with the rules between its keys; and the place of the address.
pub(crate) fn read<'t>(reader: Reader<'t>, context: &Context<'_>) -> Result<(Follow, Node<'t>), Reported> {
    let mut keys = Follow::read_keys(reader, context);
    check_way(&keys)?;
    let node = keys.follow.node.take();
    let follow = Follow::of(keys)?;
    // A key that has to be there has a place.
    node.map(|node| (follow, node)).ok_or_else(Findings::reported_as_unknown)
}

/// Whoever is on the way can write the rules, where there is no TLS.
fn check_way(keys: &FollowKeys<'_>) -> Result<(), Reported> {
    let (Ok(address), Some(node)) = (&keys.follow.value, &keys.follow.node) else { return Ok(()) };
    if address.is_over_tls() {
        return Ok(());
    }
    if let Some(ca) = &keys.ca.node {
        let message = "`ca` has no effect: the rules are not asked for over TLS";
        return Err(ca.on_key().error(message, "write follow = \"https://...\", or remove `ca`"));
    }
    if !address.is_loopback() {
        let and = if keys.token_file.node.is_some() { ", and the token can be read" } else { "" };
        let message = format!("whoever is on the way can change the rules{and}: they come without TLS");
        node.on_key().warning(message, "write follow = \"https://...\"");
    }
    Ok(())
}

fn address(node: &Node<'_>, _: &Context<'_>) -> Result<RulesAddress, Reported> {
    let help = "leave them out, and name a file with a token: token_file = \"rules.token\"";
    http_address(node, "\"https://rules.example/api/v1/config/text\"", help).map(RulesAddress)
}

fn token_file(node: &Node<'_>, context: &Context<'_>) -> Result<PathBuf, Reported> {
    let bytes = file::read(node, context.files, "rules.token")?;
    let text = node.as_text().unwrap_or_default();
    if context.files.certificates().are_read() && token_of(&bytes).is_none() {
        return Err(node.error(format!("{} = {} holds no token", node.label(), quoted(text)), TOKEN_HELP));
    }
    Ok(context.files.beside(text))
}

const TOKEN_HELP: &str = "write the token into it, in one line without blanks; `sluicegate token` makes one";

/// The token of a file.
fn token_of(bytes: &[u8]) -> Option<&str> {
    let line = without_line_end(bytes);
    let is_token = (1..=MAX_TOKEN_BYTES).contains(&line.len()) && line.iter().all(u8::is_ascii_graphic);
    if is_token { std::str::from_utf8(line).ok() } else { None }
}

fn ca(node: &Node<'_>, context: &Context<'_>) -> Result<Roots, Reported> {
    Ok(tls::roots(node, context)?.unwrap_or_else(Roots::none))
}

fn kept_file(node: &Node<'_>, context: &Context<'_>) -> Result<PathBuf, Reported> {
    paths::file(node, context, "/var/lib/sluicegate/rules.toml")
}
