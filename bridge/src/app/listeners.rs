//! Listeners: the HTTP interface, and the agent for signals. Both are served in the I/O runtime.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant as SteadyInstant;

use tokio::net::TcpListener;

use super::Bridge;
use forge_base::metrics::Counter;
use forge_server::throughput::Throughput;
use forge_server::tls::Tls;
use forge_server::{self as http, AgentState, ProcessState, SignalReceivers};
use forge_store::Store;

impl Bridge {
    pub(super) fn listen(
        &self,
        listener: TcpListener,
        started: SteadyInstant,
        dropped_log_lines: Arc<Counter>,
        agent_state: AgentState,
    ) -> std::io::Result<()> {
        let config = Arc::new(self.config.http.clone());
        let throughput = Throughput::default();
        let recording = throughput.clone().record(
            Arc::<dyn Store>::clone(&self.store),
            self.dispatcher.clone(),
            self.deliverer.clone(),
        );
        let ending = self.ending.clone();
        self.tracker
            .spawn(async move { ending.run_until_cancelled_owned(recording).await });
        let router = http::router(http::Components {
            store: Arc::clone(&self.store),
            dispatcher: self.dispatcher.clone(),
            deliverer: self.deliverer.clone(),
            registry: self.registry.clone(),
            external: self.external.clone(),
            runs: self.runs.clone(),
            signals: SignalReceivers {
                agent: self.agent.clone(),
                state: agent_state,
                engine: self.engine.clone(),
                refusals: self.refusals.clone(),
            },
            auth: self.auth.clone(),
            config: Arc::clone(&config),
            metrics: self.config.metrics.clone(),
            listen: self.addr,
            process: ProcessState {
                instance_id: Arc::clone(&self.instance_id),
                started,
                phase: self.phase.subscribe(),
                closing: self.closing.clone(),
                children: self.children.clone(),
                dropped_log_lines,
            },
            throughput,
        });
        self.serve(listener, router, config, self.tls.clone())?;
        if let Some(tls) = self.tls.clone() {
            let following = tls.follow(self.config.tls.every);
            let ending = self.ending.clone();
            self.tracker
                .spawn(async move { ending.run_until_cancelled_owned(following).await });
        }
        Ok(())
    }

    /// Serves routes in the I/O runtime until the listener closes.
    fn serve(
        &self,
        listener: TcpListener,
        router: http::Router,
        config: Arc<http::Config>,
        tls: Option<Tls>,
    ) -> std::io::Result<()> {
        // A listener is bound to its runtime, so register it with the I/O runtime.
        let bound = listener.into_std()?;
        let _at_the_edge = self.edge.handle().enter();
        let listener = TcpListener::from_std(bound)?;
        let closing = self.closing.clone();
        self.tracker
            .spawn_here(async move { http::serve(listener, router, &config, tls, closing).await });
        Ok(())
    }

    /// Serves the agent's routes.
    pub(super) fn serve_agent(
        &self,
        listener: TcpListener,
        address: SocketAddr,
    ) -> std::io::Result<()> {
        let config = Arc::new(self.config.http.clone());
        let (agent, refusals) = (self.agent.clone(), self.refusals.clone());
        let store = Arc::<dyn Store>::clone(&self.store);
        let router = http::agent::router(agent, refusals, store, &config, address);
        self.serve(listener, router, config, None)
    }
}
