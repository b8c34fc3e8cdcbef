//! Sessions of executions: programs that an adapter starts send signals in them, whose usage is not counted again.

use std::fmt;
use std::net::SocketAddr;

use super::Agent;
use crate::ledger::Admission;

/// Session of an execution for the programs that it starts. Its key is valid until this is dropped.
pub struct ExecutionSession {
    agent: Agent,
    pub session_id: String,
    /// Padded base64 of 32 bytes.
    pub session_key: String,
    pub agent_url: String,
}

impl fmt::Debug for ExecutionSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutionSession")
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}

impl Drop for ExecutionSession {
    fn drop(&mut self) {
        self.agent.inner.sessions.remove_execution(&self.session_id);
    }
}

impl Agent {
    /// Sets the address that the agent's listener is bound to.
    pub fn set_address(&self, address: SocketAddr) {
        // There is one listener, bound once.
        let _ = self.inner.address.set(address);
    }

    /// Opens a session for the programs of an execution. `None` without a listener that they could reach.
    pub fn open_execution(&self, admission: &Admission) -> Option<ExecutionSession> {
        let address = self.inner.address.get()?;
        let session = admission.session();
        self.inner.sessions.insert_execution(session.clone());
        Some(ExecutionSession {
            agent: self.clone(),
            session_id: session.id.clone(),
            session_key: self.inner.keys.encoded(&session.key_id),
            agent_url: format!("http://{address}"),
        })
    }
}
