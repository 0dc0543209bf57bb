//! `messages` of a route.

use std::ops::RangeInclusive;

use crate::findings::{Reported, quoted};
use crate::form::Form;
use crate::kind::{Context, ValueKind as _, by, count, size, word};
use crate::model::{MessageOver, MessageRules};
use crate::reader::Node;
use crate::section::{Declare as _, section};
use crate::token::with_causes;
use sluicegate_limiter::{Gcra, MAX_COUNT, Rate};

const EXAMPLE: &str = "{ rate = \"20/s\", burst = 40 }";
const BURSTS: RangeInclusive<u64> = 1..=MAX_COUNT;
/// The upper end is 1 TiB.
const SIZES: RangeInclusive<u64> = 1..=1 << 40;

section! {
    /// `messages`
    read as MessageKeys {
        /// Messages that a client may send over one WebSocket.
        rate: Option<Rate> = by(Form::Rate, rate, Rate::to_string).or_nothing("none"),
        /// Messages that may come at once; by default the rate's.
        burst: Option<u64> = count(BURSTS).or_nothing("the rate's"),
        /// The fate of a message over the rate.
        over: MessageOver = word().or("close"),
        /// Bytes of one message.
        max_size: Option<u64> = size(SIZES).or_word("none").or("none"),
    }
}

/// Warns of a route that forwards nothing.
pub(super) fn warn_unused(node: Option<&Node<'_>>) {
    if let Some(node) = node {
        let help = "remove it, or give the route an upstream";
        node.warning("`messages` has no effect: the gateway answers by itself", help);
    }
}

/// Reads it.
pub(crate) fn read(node: &Node<'_>, context: &Context<'_>) -> Result<MessageRules, Reported> {
    let mut reader = node.inner("`messages`", EXAMPLE)?;
    let says_nothing = !["rate", "max_size"].into_iter().any(|key| reader.has(key) || reader.has_misspelt(key));
    let MessageKeys { rate, burst, over, max_size } = MessageKeys::read(&mut reader, context);
    reader.done();
    if says_nothing {
        return Err(node.error("`messages` bounds nothing", format!("give `rate` or `max_size`: messages = {EXAMPLE}")));
    }
    let rate_value = rate.value?;
    let own_burst = burst.value?;
    if rate_value.is_none() && (own_burst.is_some() || over.node.is_some()) {
        let message = "`burst` and `over` of `messages` are about its `rate`";
        return Err(node.error(message, format!("add rate = \"20/s\", as in {EXAMPLE}")));
    }
    let paced = rate_value.map(|rate| (rate, own_burst.unwrap_or(rate.limit())));
    if let Some((rate_of_messages, own)) = paced
        && let Err(error) = Gcra::new(&[rate_of_messages], Some(own))
    {
        let place = burst.node.as_ref().or(rate.node.as_ref()).unwrap_or(node);
        return Err(place.error(error.to_string(), "give a smaller burst"));
    }
    Ok(MessageRules { rate: paced, over: over.value?, max_size: max_size.value? })
}

fn rate(node: &Node<'_>, _: &Context<'_>) -> Result<Rate, Reported> {
    let text = node.string("a rate in quotes", "\"20/s\"")?;
    text.parse::<Rate>()
        .map_err(|error| node.error(format!("invalid message rate {}", quoted(text)), with_causes(&error)))
}
