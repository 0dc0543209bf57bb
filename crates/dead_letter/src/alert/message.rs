//! The message to a webhook.

use bytes::Bytes;
use http::header::HeaderName;
use serde::Serialize;

use super::super::webhook::Delivery;
use super::mark::{Crossing, Figure};
use sluicegate_time::Wall;

/// The field by which a repeat of a message is known.
const DELIVERY: HeaderName = HeaderName::from_static("x-sluicegate-delivery");
/// How to see more.
const HINT: &str = "sluicegate dead-letters stats";

/// The body of a message.
#[derive(Serialize)]
struct MessageBody<'m> {
    v: u32,
    alert: &'m str,
    state: &'m str,
    value: u64,
    threshold: u64,
    unit: String,
    node: &'m str,
    at: String,
    directory: &'m str,
    oldest: Option<String>,
    hint: &'m str,
}

/// Where a message comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageOrigin<'o> {
    pub(super) node: &'o str,
    pub(super) directory: &'o str,
}

/// The body for a crossing; `oldest` is when the oldest record that waits was written, if it is known.
pub(super) fn body(crossing: &Crossing, origin: MessageOrigin<'_>, oldest: Option<Wall>, now: Wall) -> Bytes {
    let stamp = |at: Wall| format!("{:.3}", at.timestamp());
    let body = MessageBody {
        v: 1,
        alert: crossing.figure.word(),
        state: crossing.state.word(),
        value: crossing.value,
        threshold: crossing.threshold,
        unit: unit(crossing),
        node: origin.node,
        at: stamp(now),
        directory: origin.directory,
        oldest: oldest.map(stamp),
        hint: HINT,
    };
    // Texts and numbers alone: it cannot fail.
    serde_json::to_vec(&body).unwrap_or_default().into()
}

/// The unit of its value.
pub(super) fn unit(crossing: &Crossing) -> String {
    let within = crossing.within.map(|span| format!(" in {span}")).unwrap_or_default();
    match crossing.figure {
        Figure::Length => "records".to_owned(),
        Figure::Age => "seconds".to_owned(),
        Figure::Growth => format!("requests{within}"),
        Figure::Drops => format!("lost records{within}"),
    }
}

/// A message as a webhook gets it.
pub(super) fn delivery<'d>(id: &'d str, body: &'d Bytes) -> Delivery<'d> {
    Delivery { content_type: "application/json", mark: (DELIVERY, id), body }
}

#[cfg(test)]
mod tests {
    use super::super::mark::AlertState;
    use super::*;
    use sluicegate_time::Span;

    const NOW: Wall = Wall::from_nanos(1_767_323_045_678_901_234);

    fn crossing() -> Crossing {
        let within = Some(Span::from_secs(60));
        Crossing { id: 1, alert: 0, figure: Figure::Growth, state: AlertState::Firing, value: 7, threshold: 5, within }
    }

    #[test]
    fn a_body_has_these_fields_in_this_order() {
        let body = body(&crossing(), MessageOrigin { node: "gw-1", directory: "/d \"e\"" }, Some(NOW), NOW);
        let expected = r#"{"v":1,"alert":"growth","state":"firing","value":7,"threshold":5,"unit":"requests in 1m","node":"gw-1","at":"2026-01-02T03:04:05.678Z","directory":"/d \"e\"","oldest":"2026-01-02T03:04:05.678Z","hint":"sluicegate dead-letters stats"}"#;
        assert_eq!(body, expected);
    }
}
