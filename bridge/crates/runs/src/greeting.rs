//! Beginning of the interview: the Captain speaks first, once.

use forge_adapter_api::profile::CostTier;
use serde::{Deserialize, Serialize};

use crate::event::{Event, Role};
use crate::state::{Plan, State};

/// Message that asks the Captain to speak first.
pub(crate) const REQUEST: &str = "The user has not written yet. Greet the user in one or two sentences and ask what \
    should be built or changed. Call no tool that writes.";
const TEXT: &str = "What should I build? Tell me what to change in this repository; I read it, ask what is still open, \
    and write a plan.";

/// First message of the Captain: the setting `runs.greeting`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FirstWord {
    /// `agent` if the adapter of the run reports low costs, else `static`.
    #[default]
    Auto,
    Agent,
    Static,
    None,
}

impl FirstWord {
    /// Greeting of a run; `cost` is that of its adapter, if it names one that is loaded.
    pub(crate) fn resolve(self, cost: impl FnOnce() -> Option<CostTier>) -> Greeting {
        match self {
            Self::Auto if cost() == Some(CostTier::Low) => Greeting::Agent,
            Self::Auto | Self::Static => Greeting::Static,
            Self::Agent => Greeting::Agent,
            Self::None => Greeting::None,
        }
    }
}

/// Greeting of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Greeting {
    /// A turn of the Captain without a message of the user.
    Agent,
    /// A text of the bridge.
    Static,
    #[default]
    None,
}

impl Greeting {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Stage of the interview.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Interview {
    /// No message of either side.
    Silent,
    /// The Captain is asked to speak first.
    Greeting,
    /// The Captain or the user has spoken; no message of the user is answered.
    Opened,
    /// A message of the user is answered, so the Captain can plan. Runs of earlier builds are here.
    #[default]
    Begun,
}

impl Interview {
    /// Notes that one of both has spoken; returns true if that changes anything.
    pub(crate) fn open(&mut self) -> bool {
        let is_first = *self == Self::Silent;
        if is_first {
            *self = Self::Opened;
        }
        is_first
    }
}

/// Greeting that is to be given now, once the repository is there.
pub(crate) fn is_due(state: &State) -> Option<Greeting> {
    let is_silent = state.captain.interview == Interview::Silent;
    let is_due = is_silent && state.plan == Plan::Open && state.repository.is_some();
    is_due.then_some(state.greeting)
}

/// Greeting of the bridge.
pub(crate) fn spoken() -> Event {
    Event::CaptainMessage {
        content: TEXT.to_owned(),
        role: Role::Assistant,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::decide::{Action, Transition, decide};
    use crate::event::Entry;
    use crate::request::Approval;

    fn run(greeting: Greeting, events: &[Event]) -> State {
        let mut state = State {
            greeting,
            ..State::new(Timestamp::UNIX_EPOCH, false, Approval::User)
        };
        for event in events {
            state.fold(&Entry {
                at: Timestamp::UNIX_EPOCH,
                attempt: 0,
                event: event.clone(),
            });
        }
        state
    }

    #[test]
    fn the_captain_speaks_first_and_once() {
        let attached = Event::RunAttached {
            reference: "main".to_owned(),
            commit: "c".to_owned(),
        };
        let message = Event::UserMessage {
            content: "Build it".to_owned(),
        };
        let asked = Event::CaptainGreeting {};
        let turn = Event::Usage {
            dispatch_id: "d".to_owned(),
            task_id: None,
            agent: None,
            session_id: None,
            tokens: 0,
            cost_usd: 0.0,
            repeats: false,
        };
        let [greet, first, second] = [
            Action::Record(vec![Transition::Greet]),
            Action::Captain { turn: 1 },
            Action::Captain { turn: 2 },
        ];
        let attach = Action::Attach;
        use Greeting::{Agent, Static};
        for (number, (greeting, events, wanted)) in [
            (Agent, vec![], vec![&attach]),
            (Static, vec![], vec![&attach]),
            (Agent, vec![&attached], vec![&first]),
            (Static, vec![&attached], vec![&greet]),
            (Greeting::None, vec![&attached], vec![]),
            // Asked, and asked again after a kill, with the same turn.
            (Agent, vec![&attached, &asked], vec![&first]),
            (Agent, vec![&attached, &asked, &turn], vec![]),
            (Agent, vec![&attached, &asked, &turn, &spoken()], vec![]),
            (Static, vec![&attached, &spoken()], vec![]),
            // A message that is there before, and one that comes while the Captain greets.
            (Agent, vec![&message, &attached], vec![&first]),
            (Agent, vec![&message, &attached, &turn], vec![]),
            (Static, vec![&message, &attached], vec![&first]),
            (Static, vec![&attached, &message], vec![&first]),
            (Agent, vec![&attached, &asked, &message], vec![&first]),
            (
                Agent,
                vec![&attached, &asked, &message, &turn],
                vec![&second],
            ),
            (
                Agent,
                vec![&attached, &asked, &message, &turn, &turn],
                vec![],
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let events: Vec<_> = events.into_iter().cloned().collect();
            let state = run(greeting, &events);
            let found = decide(&state, 8, Timestamp::UNIX_EPOCH).actions;
            assert_eq!(found.iter().collect::<Vec<_>>(), wanted, "{number}");
        }
    }

    #[test]
    fn only_a_cheap_adapter_is_asked_by_default() {
        for (setting, cost, wanted) in [
            (FirstWord::Auto, Some(CostTier::Low), Greeting::Agent),
            (FirstWord::Auto, Some(CostTier::Medium), Greeting::Static),
            (FirstWord::Auto, Some(CostTier::High), Greeting::Static),
            (FirstWord::Auto, None, Greeting::Static),
            (FirstWord::Agent, None, Greeting::Agent),
            (FirstWord::Static, Some(CostTier::Low), Greeting::Static),
            (FirstWord::None, Some(CostTier::Low), Greeting::None),
        ] {
            assert_eq!(setting.resolve(|| cost), wanted, "{setting:?} {cost:?}");
        }
    }
}
