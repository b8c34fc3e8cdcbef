//! Calls of tools of the bridge by an agent of an attempt.

use super::Place;
use crate::draft::Draft;
use crate::event::Event;
use crate::state::State;
use crate::step::ToolCall;
use crate::tools::agent::{self as tools, Effect};
use crate::{Work, change};

/// Events of the calls of an agent, which are carried out here. `state` is that before the first of them.
pub(crate) fn carry_out(
    state: &mut State,
    place: &Place,
    calls: Vec<ToolCall>,
    now: jiff::Timestamp,
) -> Work {
    let mut draft = Draft::new(state, now);
    let Place { task, attempt, .. } = place;
    for call in calls {
        let effect = tools::call(draft.state, task, place.agent, &call.name, &call.input);
        let asked = Event::ToolCall {
            task_id: task.clone(),
            tool_name: call.name.clone(),
            args: call.input,
            call_id: call.tool_call_id.clone(),
            agent: place.number(),
        };
        draft.write(*attempt, asked);
        let (result, is_error) = match effect {
            // Its result is the report of the agent.
            Ok(Effect::Spawn(_)) => continue,
            Ok(Effect::Subtasks(subtasks)) => (format!("{} subtasks", subtasks.len()), false),
            Ok(Effect::Request(_)) => {
                let Some(request) = draft.state.change_requests.last() else {
                    continue;
                };
                let told = format!("{} waits for an approval; go on without it", request.id);
                let change::Emitted { entries, artifact } = request.emitted();
                draft.work.artifacts.push(artifact);
                for event in entries {
                    draft.write(0, event);
                }
                (told, false)
            }
            Err(text) => (text, true),
        };
        let answered = Event::ToolResult {
            task_id: task.clone(),
            tool_name: call.name,
            result: result.into(),
            is_error,
            call_id: call.tool_call_id,
            agent: place.number(),
        };
        draft.write(*attempt, answered);
    }
    draft.work
}
