//! The path by which clients ask for what was kept for later. Its normal form decides, so that no spelling of it reaches a
//! server, or a log: a client that knows the id of a request gets its answer.

use std::borrow::Cow;

use sluicegate_admission::{loosely_decoded, normal_path};
use sluicegate_http1::Request;

/// The beginning of the paths by which deferred requests are asked for.
pub const PREFIX: &str = "/.sluicegate/deferred/";

/// The path of a request that asks how a deferred one fares, in its normal form; `None`: it asks for something else.
#[inline]
pub fn asked<'r>(request: &Request<'r>) -> Option<Cow<'r, str>> {
    in_normal_form(request.path())
}

/// Whether the path of a request may show an id: it asks how a deferred one fares, or it has no normal form and holds
/// parts of such a path.
pub fn may_show_id(request: &Request<'_>) -> bool {
    let path = request.path();
    in_normal_form(path).is_some()
        || normal_path(path).is_err() && loosely_decoded(path).windows(11).any(|part| part == b".sluicegate")
}

fn in_normal_form(path: &str) -> Option<Cow<'_, str>> {
    if path.starts_with(PREFIX) && !path.contains('%') && !path.contains("/.") {
        return Some(Cow::Borrowed(path));
    }
    let normal = normal_path(path).ok()?;
    if normal.starts_with(PREFIX) {
        return Some(normal);
    }
    // Servers may take an encoded slash, and a backslash, for a slash.
    if !normal.contains('%') {
        return None;
    }
    let slashes = normal.replace("%2F", "/").replace("%5C", "/");
    normal_path(&slashes).ok().filter(|path| path.starts_with(PREFIX)).map(|path| Cow::Owned(path.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_form_of_a_path_decides() {
        let spellings = [
            "/.sluicegate/deferred/5a",
            "//.sluicegate/deferred/5a",
            "/.sluicegate//deferred///5a",
            "/./.sluicegate/deferred/5a",
            "/%2e/.sluicegate/./deferred/5a",
            "/x/../.sluicegate/x/%2e%2E/deferred/5a",
            "/../.sluicegate/deferred/5a",
            "/%2Esluicegate/deferred/5a",
            "/.sl%75icegat%65/deferr%65d/%35%61",
            "/.sluicegate%2Fdeferred/5a",
            "/.sluicegate/deferred%5c5a",
            "/.sluicegate\\deferred\\5a",
            "/x%2f..%2F.sluicegate/deferred/5a",
        ];
        for path in spellings {
            assert_eq!(in_normal_form(path).as_deref(), Some("/.sluicegate/deferred/5a"), "{path}");
        }
        let others = [
            "/",
            "*",
            "/.sluicegate",
            "/.sluicegate/deferred",
            "/.sluicegate/deferred/../x",
            "/a/.sluicegate/deferred/5a",
        ];
        for path in others {
            assert_eq!(in_normal_form(path), None, "{path}");
        }
    }
}
