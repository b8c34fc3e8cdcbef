//! The contract that every adapter implements.

use async_trait::async_trait;

use crate::json::unsupported;
use crate::manage::{AgentManager, Interface, RuntimeManager, SkillManager, SystemManager};
use crate::{
    Config, Events, ExecutionRequest, ExecutionResult, Health, Host, Profile, Result, SteerRequest,
};

/// Connects one execution runtime to the bridge. It accepts a request, runs it there and returns a result;
/// the bridge does the rest.
///
/// Methods can be called concurrently, on the adapter's own tokio runtime. A panic in any of them is caught
/// and becomes an error with the code `adapter_panic`.
#[async_trait]
pub trait ExecutionAdapter: Sized + Send + Sync + 'static {
    /// The provider id, as `BRIDGE_ADAPTERS` names it: lower case letters, digits and dashes.
    const NAME: &'static str;

    /// The adapter's own version, usually `env!("CARGO_PKG_VERSION")`.
    const VERSION: &'static str;

    /// Environment variables passed to the adapter when it runs in a child process, besides those that
    /// begin with its name (`ACME_AI_` for `acme-ai`).
    const ENV: &'static [&'static str] = &[];

    /// The management interfaces that the adapter implements; for each, the method of the same name below
    /// returns it.
    const INTERFACES: &'static [Interface] = &[];

    /// Called once at start, before any other method. Reads keys and endpoints, reports what is wrong with
    /// them, connects.
    ///
    /// A missing key is a warning and [`Health::degraded`], not an error: an error takes the adapter
    /// offline.
    async fn initialize(host: Host, config: Config) -> Result<Self>;

    /// Called once at the end. New executions are refused from then on; executions that still run when this
    /// method returns are dropped as `cancelled`.
    async fn shutdown(&self) -> Result<()>;

    /// Reports if work can be accepted now. Prefer [`Health::degraded`] to [`Health::offline`] while
    /// something works. Called often: answer within a second.
    async fn check_health(&self) -> Health;

    /// The profile of the runtime, which routing uses. Called after `initialize` and after each health
    /// check: if settings of the runtime decide it, return what the check found.
    fn capabilities(&self) -> Profile;

    /// Runs one task. The prompt is already assembled, tools have one format, and the output strategy is
    /// decided.
    ///
    /// The bridge drops this future at `timeoutSeconds` (the result is then `timeout`), at shutdown, and
    /// when it stops waiting: put cleanup into a `Drop`. `Err` and [`ExecutionResult::error`] mean the same
    /// to the caller; the second also keeps output and usage.
    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult>;

    /// Tries to end the executions under this handle, the request's `taskId`. Returns true when
    /// cancellation was started, false when nothing runs under the handle. The execution should then end
    /// with the code `cancelled`; if it does not, the bridge drops it. [`Running`](crate::Running) does the
    /// bookkeeping.
    async fn cancel(&self, task_handle: &str) -> Result<bool>;

    /// Passes a further user message to a running execution, for its model to see before the execution ends. Returns
    /// true when the runtime has the message, false when no such execution runs (or none that still takes messages).
    /// Default: the error `unsupported_op`, for runtimes that take no message while they work.
    /// [`Running::steer`](crate::Running::steer) does the bookkeeping.
    async fn steer(&self, _request: SteerRequest) -> Result<bool> {
        Err(unsupported("steer"))
    }

    /// Starts sending events that belong to no execution, such as the runtime's own health. Called once the
    /// bridge listens. Must return at once; run the relay as a task of the adapter.
    async fn start_event_relay(&self, _events: Events) -> Result<()> {
        Ok(())
    }

    /// Stops the relay started by [`start_event_relay`](ExecutionAdapter::start_event_relay).
    async fn stop_event_relay(&self) -> Result<()> {
        Ok(())
    }

    /// The manager of agent and skill sync, if the runtime stores agents and skills.
    fn runtime(&self) -> Option<&dyn RuntimeManager> {
        None
    }

    /// The agent manager, if agents of the runtime can be edited.
    fn agents(&self) -> Option<&dyn AgentManager> {
        None
    }

    /// The skill manager, if skills of the runtime can be edited.
    fn skills(&self) -> Option<&dyn SkillManager> {
        None
    }

    /// The system manager, if the runtime can be administered.
    fn system(&self) -> Option<&dyn SystemManager> {
        None
    }
}
