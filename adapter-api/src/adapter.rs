//! The contract that every adapter implements.

use async_trait::async_trait;

use crate::manage::{AgentManager, Interface, RuntimeManager, SkillManager, SystemManager};
use crate::{Config, Events, ExecutionRequest, ExecutionResult, Health, Host, Profile, Result};

/// An adapter connects one execution runtime. It accepts a request, runs it there and returns a
/// result; the bridge does the rest.
///
/// Methods may be called at the same time, on the adapter's own tokio runtime. A panic in any of
/// them is caught and becomes an error of the code `adapter_panic`.
#[async_trait]
pub trait ExecutionAdapter: Sized + Send + Sync + 'static {
    /// The provider id, as `BRIDGE_ADAPTERS` names it: lower case letters, digits and dashes.
    const NAME: &'static str;

    /// The adapter's own version, usually `env!("CARGO_PKG_VERSION")`.
    const VERSION: &'static str;

    /// Environment variables that it wants to see when it runs in a child process, besides those that
    /// begin with its name (`ACME_AI_` for `acme-ai`).
    const ENV: &'static [&'static str] = &[];

    /// The management interfaces that it implements; for each, the method of that name below gives it.
    const INTERFACES: &'static [Interface] = &[];

    /// Called once at start, before anything else. Read keys and endpoints, say what is wrong with
    /// them, connect.
    ///
    /// A missing key is a warning and [`Health::degraded`], not an error: an error here takes the
    /// adapter offline.
    async fn initialize(host: Host, config: Config) -> Result<Self>;

    /// Called once at the end. New executions are refused from here on, and those that still run when
    /// this returns are dropped as `cancelled`.
    async fn shutdown(&self) -> Result<()>;

    /// Whether work can be accepted right now. Prefer [`Health::degraded`] to [`Health::offline`]
    /// while something works. Called often: answer within a second.
    async fn check_health(&self) -> Health;

    /// What the runtime can and cannot do; routing decides by it.
    fn capabilities(&self) -> Profile;

    /// Runs one task. The prompt is assembled, tools have one shape, and the output strategy is
    /// decided.
    ///
    /// This future is dropped at `timeoutSeconds` (the result is then `timeout`), at shutdown, and
    /// when the bridge stops waiting: what must be undone belongs into a `Drop`.
    /// `Err` and [`ExecutionResult::error`] mean the same to the caller; the second keeps output and
    /// usage.
    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult>;

    /// Tries to end what runs under this handle, the request's `taskId`. True when that was begun,
    /// false when nothing runs under it. The execution should then end with the code `cancelled`;
    /// if it does not, the bridge drops it. [`Running`](crate::Running) does the bookkeeping.
    async fn cancel(&self, task_handle: &str) -> Result<bool>;

    /// Begins to send events that belong to no execution, such as a runtime's own health. Called
    /// once the bridge listens. Must return at once; the relay is a task of the adapter's own.
    async fn start_event_relay(&self, _events: Events) -> Result<()> {
        Ok(())
    }

    /// Ends what [`start_event_relay`](ExecutionAdapter::start_event_relay) began.
    async fn stop_event_relay(&self) -> Result<()> {
        Ok(())
    }

    /// For adapters whose runtime keeps agents and skills.
    fn runtime(&self) -> Option<&dyn RuntimeManager> {
        None
    }

    /// For adapters whose runtime lets agents be edited.
    fn agents(&self) -> Option<&dyn AgentManager> {
        None
    }

    /// For adapters whose runtime lets skills be edited.
    fn skills(&self) -> Option<&dyn SkillManager> {
        None
    }

    /// For adapters whose runtime can be administered.
    fn system(&self) -> Option<&dyn SystemManager> {
        None
    }
}
