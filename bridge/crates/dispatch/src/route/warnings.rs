//! Warnings of the 202: members of the request that the chosen adapter does not honour, and a wait for it.

use super::{Candidate, supports};
use crate::request::DispatchRequest;
use crate::wait;

pub(super) fn of(dispatch: &DispatchRequest, chosen: &Candidate<'_>) -> Vec<String> {
    let provider = chosen.provider;
    let mut warnings = Vec::new();
    if let Some((_, reason)) = wait::of_adapter(chosen) {
        let seconds = dispatch.queue_timeout.as_secs();
        warnings.push(format!("the dispatch waits, at most {seconds} s: {reason}"));
    }
    if dispatch.session_id.is_some() && !supports(chosen, "session_resume") {
        warnings.push(format!(
            "sessionId is ignored: {provider} lacks session_resume"
        ));
    }
    if dispatch.output_schema.is_some() && !supports(chosen, "structured_output") {
        warnings.push(format!(
            "outputSchema is added to the instructions and checked on the text: {provider} lacks structured_output"
        ));
    }
    // Most dispatches have none: their names need not be gone through.
    if !dispatch.options.is_empty() {
        let honoured = chosen.profile.map_or(&[][..], |profile| &profile.options);
        let ignored = dispatch.options.names();
        for name in ignored.filter(|name| honoured.iter().all(|known| known != name)) {
            warnings.push(format!(
                "options.{name} is ignored unless the runtime behind {provider} happens to honour it: the adapter does not declare it"
            ));
        }
    }
    if !dispatch.mcp_servers.is_empty() && !supports(chosen, "mcp_servers") {
        warnings.push(format!(
            "{provider} lacks mcp_servers: the bridge offers it their tools and runs the calls that it returns"
        ));
    }
    warnings
}
