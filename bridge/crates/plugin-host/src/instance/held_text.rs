//! Secrets that are split over events of a streamed text: an end that can be the beginning of a secret is held back
//! until the next event of the text decides, or anything else follows.

use forge_adapter_api::AdapterEvent;
use serde_json::Value;

use crate::instance::call_stream::Item;
use crate::instance::redaction::Secrets;

/// Member of the data of an event that continues a text, such as `assistant.text`.
const DELTA: &str = "delta";

/// The end of a text, as an event of its own; shorter than the longest secret.
#[derive(Debug, Default)]
pub(crate) struct HeldText(Option<AdapterEvent>);

impl HeldText {
    /// Takes the next item of a call; returns those that can be read now, in their order.
    pub(crate) fn pass(&mut self, mut item: Item, secrets: &Secrets) -> [Option<Item>; 2] {
        let held = self.0.take();
        let Item::Event(event) = &mut item else {
            return [held.map(Item::Event), Some(item)];
        };
        let is_continued = held.as_ref().is_some_and(|held| continues(event, held));
        let (end, before) = match is_continued {
            true => (held, None),
            false => (None, held),
        };
        let Some(text) = text_of(event) else {
            return [before.map(Item::Event), Some(item)];
        };
        if let Some(end) = end.as_ref().and_then(delta) {
            text.insert_str(0, end);
            secrets.hide(text);
        }
        if let Some(end) = secrets.split_off_beginning(text) {
            let is_empty = text.is_empty();
            let mut held = event.clone();
            if let Some(text) = text_of(&mut held) {
                *text = end;
            }
            self.0 = Some(held);
            if is_empty {
                return [before.map(Item::Event), None];
            }
        }
        [before.map(Item::Event), Some(item)]
    }
}

/// True if the event continues the text of the one before: they differ in their deltas only.
fn continues(event: &AdapterEvent, before: &AdapterEvent) -> bool {
    let others = |event: &'_ AdapterEvent| {
        let mut data = event.data.clone();
        let members = data.as_mut().and_then(Value::as_object_mut);
        members.and_then(|members| members.remove(DELTA));
        data
    };
    event.kind == before.kind && delta(event).is_some() && others(event) == others(before)
}

fn delta(event: &AdapterEvent) -> Option<&str> {
    event.data.as_ref()?.get(DELTA)?.as_str()
}

fn text_of(event: &mut AdapterEvent) -> Option<&mut String> {
    match event.data.as_mut()?.get_mut(DELTA)? {
        Value::String(text) => Some(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::instance::redaction::Redaction;

    const SECRET: &str = "sk-1234é678";

    fn secrets() -> Secrets {
        Secrets {
            instance: Redaction::of(&json!({ "keys": [SECRET, "sk-and-another"] })),
            request: None,
        }
    }

    fn text(delta: &str) -> AdapterEvent {
        AdapterEvent::text(delta)
    }

    fn of_message(id: &str, delta: &str) -> AdapterEvent {
        let data = json!({ "messageId": id, "delta": delta });
        AdapterEvent::new("assistant.text").with(data)
    }

    /// Events that are read of these, in each of which secrets are hidden first, as for a call.
    fn read(events: Vec<AdapterEvent>) -> Vec<AdapterEvent> {
        let (secrets, mut held) = (secrets(), HeldText::default());
        let done = Item::Done(Ok(Vec::new()));
        let hidden = events.into_iter().map(|mut event| {
            text_of(&mut event)
                .into_iter()
                .for_each(|text| secrets.hide(text));
            event
        });
        let items = hidden.map(Item::Event).chain([done]);
        let read = items.flat_map(|item| held.pass(item, &secrets));
        let mut read: Vec<Item> = read.flatten().collect();
        assert_eq!(read.pop(), Some(Item::Done(Ok(Vec::new()))));
        let event = |item| match item {
            Item::Event(event) => event,
            Item::Dropped(_) | Item::Done(_) => panic!("{item:?}"),
        };
        read.into_iter().map(event).collect()
    }

    #[test]
    fn an_end_is_held_until_the_text_goes_on_or_something_else_follows() {
        let usage = || AdapterEvent::new("usage").with(json!({"outputTokens": 1}));
        for (events, expected) in [
            (
                vec![text("a sk"), text("-1234é6"), text("78.")],
                vec![text("a "), text("[REDACTED].")],
            ),
            (
                vec![text("a sk"), text("ip")],
                vec![text("a "), text("skip")],
            ),
            (vec![text("task")], vec![text("ta"), text("sk")]),
            (
                vec![text("sk-"), usage(), text("and")],
                vec![text("sk-"), usage(), text("and")],
            ),
            (
                vec![of_message("1", "sk-"), of_message("2", "1234é678")],
                vec![of_message("1", "sk-"), of_message("2", "1234é678")],
            ),
            (
                vec![of_message("1", "sk-"), of_message("1", "1234é678")],
                vec![of_message("1", "[REDACTED]")],
            ),
            (
                vec![text("sk-"), text("sk-1234é"), text("678")],
                vec![text("sk-"), text("[REDACTED]")],
            ),
        ] {
            assert_eq!(read(events.clone()), expected, "{events:?}");
        }
    }

    proptest! {
        /// However a text is cut into events, those that are read together are the text without its secrets.
        #[test]
        fn the_pieces_together_are_the_redacted_text(
            parts in proptest::collection::vec("sk|-|1234|é6|sk-1234é678|[a-c]{0,3}", 0..12),
            cuts in proptest::collection::vec(0_usize..60, 0..8),
        ) {
            let whole = parts.concat();
            let is_cut = |(at, _): &(usize, char)| cuts.contains(at);
            let mut pieces = vec![String::new()];
            for place in whole.char_indices() {
                if is_cut(&place) {
                    pieces.push(String::new());
                }
                pieces.last_mut().unwrap().push(place.1);
            }
            let events: Vec<AdapterEvent> = pieces.iter().map(|piece| text(piece)).collect();
            let read = read(events).iter().map(|event| delta(event).unwrap().to_owned()).collect::<String>();
            let mut expected = whole;
            secrets().hide(&mut expected);
            prop_assert_eq!(read, expected);
        }
    }
}
