//! `messages` of a route.

use std::ops::RangeInclusive;

use crate::config::findings::quoted;
use crate::config::kind::first_or_word;
use crate::config::model::{Action, MessageRules};
use crate::config::reader::{Node, Reader};
use crate::config::token::with_causes;
use crate::limiter::{Gcra, MAX_COUNT, Rate};

const EXAMPLE: &str = "{ rate = \"20/s\", burst = 40 }";
const BURSTS: RangeInclusive<u64> = 1..=MAX_COUNT;
/// The upper end is 1 TiB.
const SIZES: RangeInclusive<u64> = 1..=1 << 40;

/// Lowers it.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
pub(super) fn lower(reader: &mut Reader<'_>, action: Option<&Action>) -> Option<Option<MessageRules>> {
    let Some(node) = reader.optional("messages") else { return Some(None) };
    if let Some(Action::Respond { .. } | Action::Redirect { .. }) = action {
        let help = "remove it, or give the route an upstream";
        node.warning("`messages` has no effect: the gateway answers by itself", help);
    }
    rules(&node).map(Some)
}

fn rules(node: &Node<'_>) -> Option<MessageRules> {
    let mut reader = node.table("`messages`", EXAMPLE)?;
    let rate_node = reader.optional("rate");
    let rate = rate_node.as_ref().map_or(Some(None), |node| rate(node).map(Some));
    let burst_node = reader.optional("burst");
    let burst = burst_node.as_ref().map_or(Some(None), |node| node.integer(BURSTS).map(Some));
    let over_node = reader.has("over");
    let over = first_or_word(&mut reader, "over");
    let max_size = reader.optional("max_size").map_or(Some(None), |node| node.size_or_none(&SIZES));
    let says_nothing = !["rate", "max_size"].into_iter().any(|key| reader.has(key) || reader.has_misspelt(key));
    reader.done(&[]);
    if says_nothing {
        node.error("`messages` bounds nothing", format!("give `rate` or `max_size`: messages = {EXAMPLE}"));
        return None;
    }
    let (rate, burst) = (rate?, burst?);
    if rate.is_none() && (burst.is_some() || over_node) {
        node.error(
            "`burst` and `over` of `messages` are about its `rate`",
            format!("add rate = \"20/s\", as in {EXAMPLE}"),
        );
        return None;
    }
    let rate = match rate {
        None => None,
        Some(rate) => {
            let burst = burst.unwrap_or(rate.limit());
            if let Err(error) = Gcra::new(&[rate], Some(burst)) {
                burst_node
                    .as_ref()
                    .or(rate_node.as_ref())
                    .unwrap_or(node)
                    .error(error.to_string(), "give a smaller burst");
                return None;
            }
            Some((rate, burst))
        }
    };
    Some(MessageRules { rate, over: over?, max_size: max_size? })
}

fn rate(node: &Node<'_>) -> Option<Rate> {
    let text = node.text("a rate in quotes", "\"20/s\"")?;
    match text.parse::<Rate>() {
        Ok(rate) => Some(rate),
        Err(error) => {
            node.error(format!("{} is no rate of messages", quoted(text)), with_causes(&error));
            None
        }
    }
}
