//! Requests whose head is larger than what servers commonly take. No server is to blame for what its size explains: that it
//! closes the connection without an answer, or answers that it does not take it. Server errors and timeouts count as those of
//! any request, or a dead server would stay where all clients have large cookies.

use crate::exchange::Exchange;

/// The largest field line, or request line, that servers commonly take: nginx, Apache httpd, gunicorn.
const FIELD: usize = 8 * 1024;
/// The largest head that they do, less what the gateway adds.
const HEAD: usize = 15 * 1024;

/// Whether the request is one.
#[inline]
pub fn is_so(exchange: &Exchange) -> bool {
    let head = exchange.scratch.inbound.head();
    head.len() > FIELD && is_above(head)
}

/// Whether the size of the request explains this status: 494 is nginx's.
pub fn explains(exchange: &Exchange, status: u16) -> bool {
    matches!(status, 400 | 413 | 414 | 431 | 494) && is_so(exchange)
}

#[cold]
fn is_above(head: &[u8]) -> bool {
    head.len() > HEAD || head.split(|byte| *byte == b'\n').any(|line| line.len() > FIELD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_or_a_long_head_is_above_what_servers_take() {
        let head = |line: usize, count: usize| [vec![b'x'; line], b"\n".to_vec()].concat().repeat(count);
        assert!(!is_above(&head(4_000, 3)) && !is_above(&head(8_192, 1)));
        assert!(is_above(&head(8_193, 1)) && is_above(&head(4_000, 4)));
    }
}
