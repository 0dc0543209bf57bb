//! `respond`, `redirect` and `rewrite` of a route: their keys. `lower` puts them together with the route.

use std::ops::RangeInclusive;

use crate::findings::Reported;
use crate::form::{FILE, Form};
use crate::kind::{Context, by, count, inner};
use crate::lower::file::MEDIA_TYPE;
use crate::reader::Node;
use crate::section::{Declare as _, beside, section};

/// A response of the gateway is a final one.
const STATUSES: RangeInclusive<u16> = 200..=599;

/// Statuses that send clients elsewhere (RFC 9110, 15.4).
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

section! {
    /// `respond`
    read as RespondKeys {
        /// The status.
        status: u16 = count(STATUSES).or("200"),
        /// The text.
        body: () = beside(Form::Text("a text"), "empty"),
        /// A file with the body, of at most 1 MiB.
        file: () = beside(FILE, "none"),
        /// The type of the body; by default it follows from the name of the file.
        content_type: () = beside(MEDIA_TYPE, "by the name of the file, else text"),
    }
}

section! {
    /// `redirect`
    read as RedirectKeys {
        /// The address, which may have variables in it.
        to: () = inner(Form::Text("an address or a path, which may have variables in it"), |_, _| Ok(())).required("\"https://www.example.com{uri}\""),
        /// The status: 307 and 302 are for a while, 308 and 301 for good, 303 is to GET something else. 307 keeps method and body.
        status: u16 = by(Form::Numbers(&[301, 302, 303, 307, 308]), redirect_status, u16::to_string).or("307"),
    }
}

fn redirect_status(node: &Node<'_>, _: &Context<'_>) -> Result<u16, Reported> {
    let status = node.count(&(300..=399))?;
    if REDIRECTS.contains(&status) {
        return Ok(status);
    }
    let help = "use 307 or 302 for a while, 308 or 301 for good, 303 to GET something else";
    Err(node.error(format!("{status} sends nobody elsewhere"), help))
}

section! {
    /// `rewrite`
    read as RewriteKeys {
        /// A path in place of the one that the route matches.
        prefix: () = beside(Form::Text("a path, such as \"/v2\""), "none"),
        /// A regex over the whole path; by default the route's own.
        regex: () = beside(Form::Text("a regular expression"), "the route's"),
        /// The path, with a query if it has one.
        to: () = beside(Form::Text("a path, which may have variables in it"), "none"),
    }
}
