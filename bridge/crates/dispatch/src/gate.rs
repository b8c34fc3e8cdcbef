//! Rules over signals for executions: whether one may start, and what its usage is charged to.

use forge_signals::agent::Agent;
use forge_signals::ledger::{Admission, Execution};
use forge_store::record::{Charge, DispatchRecord};

use super::budget::Spent;
use super::request::DispatchRequest;

/// Charges of one dispatch.
pub(super) struct Charges<'a> {
    signals: &'a Agent,
    execution: Execution<'a>,
}

impl<'a> Charges<'a> {
    pub(super) fn new(
        signals: &'a Agent,
        record: &'a DispatchRecord,
        request: &'a DispatchRequest,
    ) -> Self {
        let budget = request.budget.as_ref();
        Self {
            signals,
            execution: Execution {
                id: record.id,
                adapter: &record.provider,
                user_id: request.user_id().or(signals.user()),
                project_id: request.project_id.as_deref(),
                model: request.model.as_deref(),
                max_cost_usd: budget.and_then(|budget| budget.max_cost_usd),
            },
        }
    }

    /// Lets the dispatch run, or returns the message of the rule that blocks it.
    pub(super) async fn admit(&self) -> Result<Admission, String> {
        self.signals.ledger().admit(&self.execution).await
    }

    /// Charge for the whole usage so far. `None` if nothing is counted.
    pub(super) fn of(&self, spent: &Spent) -> Option<Charge> {
        let usage = &spent.usage;
        let usage = Execution::usage(
            [usage.input_tokens, usage.output_tokens],
            [usage.cache_read_tokens, usage.cache_write_tokens],
            spent.cost_usd,
        );
        self.signals.ledger().charge(&self.execution, usage)
    }
}
