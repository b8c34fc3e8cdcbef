//! The one connection to the gateway: requests and their answers, events by run, reconnecting.

mod reading;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backoff::backoff::Backoff as _;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};
use forge_adapter_api::{Events, Health};
use forge_adapter_transport::http::Http;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::{Answers, Connection, lock};
use crate::frame::Failure;
use crate::identity::Identity;
use crate::link::{self, Hello, Socket, Unavailable};
use crate::settings::Settings;

/// Time limit for an answer before the gateway has said its tick, which is the limit then.
const ANSWER: Duration = Duration::from_secs(30);
/// Events of one run that its execution has not read yet; more are dropped. Texts are cumulative, so that none is lost.
const RUN_EVENTS: usize = 1_024;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

struct Inner {
    http: Http,
    url: String,
    settings: Arc<Settings>,
    identity: Identity,
    link: watch::Sender<Link>,
    runs: Mutex<HashMap<String, mpsc::Sender<Value>>>,
    relay: Mutex<Option<Events>>,
    /// Number of the last request.
    last: AtomicU64,
    stop: CancellationToken,
}

#[derive(Clone)]
enum Link {
    Connecting,
    Up(Arc<Connection>),
    Down(Health),
}

/// Events of one run, until dropped.
pub(crate) struct RunEvents {
    gateway: Gateway,
    names: [String; 2],
    receiver: mpsc::Receiver<Value>,
}

impl Gateway {
    /// Starts connecting, in a task of `tasks`.
    pub(crate) fn start(
        http: Http,
        url: String,
        settings: Arc<Settings>,
        identity: Identity,
        tasks: &TaskTracker,
    ) -> Self {
        let gateway = Self(Arc::new(Inner {
            http,
            url,
            settings,
            identity,
            link: watch::Sender::new(Link::Connecting),
            runs: Mutex::default(),
            relay: Mutex::default(),
            last: AtomicU64::new(0),
            stop: CancellationToken::new(),
        }));
        let connecting = gateway.clone();
        tasks.spawn(async move {
            let stopped = connecting.0.stop.clone();
            stopped.run_until_cancelled(connecting.keep()).await;
        });
        gateway
    }

    pub(crate) fn stop(&self) {
        self.0.stop.cancel();
    }

    pub(crate) fn http(&self) -> (&Http, &str) {
        (&self.0.http, &self.0.url)
    }

    /// Sets the sink of events that belong to no execution.
    pub(crate) fn relay(&self, events: Option<Events>) {
        *lock(&self.0.relay) = events;
    }

    /// The gateway's hello, or the reason why there is no connection.
    pub(crate) fn hello(&self) -> Result<Hello, Health> {
        match &*self.0.link.borrow() {
            Link::Up(connection) => Ok(connection.hello.clone()),
            Link::Down(health) => Err(health.clone()),
            Link::Connecting => Err(Health::degraded(
                "the connection to the gateway is being made",
            )),
        }
    }

    /// Waits for the end of the first attempt to connect, whatever it is.
    pub(crate) async fn settled(&self, limit: Duration) {
        let mut link = self.0.link.subscribe();
        let settled = link.wait_for(|link| !matches!(link, Link::Connecting));
        // Nothing to do after the limit: the caller asks for the state.
        let _ = timeout(limit, settled).await;
    }

    /// Waits for a connection, however long it takes.
    pub(crate) async fn up(&self) -> Hello {
        let mut link = self.0.link.subscribe();
        loop {
            if let Link::Up(connection) = &*link.borrow_and_update() {
                return connection.hello.clone();
            }
            if link.changed().await.is_err() {
                // The sender lives as long as this handle.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn call(
        &self,
        method: &'static str,
        params: &Value,
    ) -> Result<Value, Failure> {
        let limit = self.hello().map_or(ANSWER, |hello| hello.tick);
        self.call_within(method, params, limit).await
    }

    pub(crate) async fn call_within(
        &self,
        method: &'static str,
        params: &Value,
        limit: Duration,
    ) -> Result<Value, Failure> {
        let answered = async { self.send(method, params).await?.next().await };
        timeout(limit, answered)
            .await
            .unwrap_or(Err(Failure::Silent(method, limit)))
    }

    /// Sends a request; the receiver gets its answers.
    pub(crate) async fn send(
        &self,
        method: &'static str,
        params: &Value,
    ) -> Result<Answers, Failure> {
        let connection = match &*self.0.link.borrow() {
            Link::Up(connection) => Arc::clone(connection),
            Link::Connecting => {
                return Err(Failure::Unavailable(
                    "not connected to the gateway yet".to_owned(),
                ));
            }
            Link::Down(health) => {
                return Err(Failure::Unavailable(
                    health.message.clone().unwrap_or_default(),
                ));
            }
        };
        let id = self.0.last.fetch_add(1, Ordering::Relaxed).to_string();
        connection.send(id, method, params).await
    }

    /// Subscribes to the events of a run, and of the turns after it in its session, over reconnects.
    pub(crate) fn events_of(&self, run: &str, session_key: &str) -> RunEvents {
        let (sender, receiver) = mpsc::channel(RUN_EVENTS);
        let names = [run, session_key].map(str::to_owned);
        let senders = names.clone().map(|name| (name, sender.clone()));
        lock(&self.0.runs).extend(senders);
        RunEvents {
            gateway: self.clone(),
            names,
            receiver,
        }
    }

    /// Connects, serves the connection, connects again, without an end.
    async fn keep(&self) {
        let mut waits = waits();
        loop {
            let inner = &self.0;
            let unavailable = match link::connect(
                &inner.http,
                &inner.url,
                &inner.settings,
                &inner.identity,
            )
            .await
            {
                Ok((socket, hello)) => {
                    waits.reset();
                    self.serve(socket, hello).await.into()
                }
                Err(unavailable) => unavailable,
            };
            let Unavailable {
                health,
                retry_after,
            } = unavailable;
            let same = matches!(self.hello(), Err(known) if known == health);
            if !same {
                let reason = health.message.clone().unwrap_or_default();
                tracing::warn!(reason, "no connection to the gateway");
            }
            inner.link.send_replace(Link::Down(health));
            let wait = waits.next_backoff().unwrap_or(LONGEST_WAIT);
            tokio::time::sleep(retry_after.unwrap_or(wait).min(LONGEST_WAIT)).await;
        }
    }

    /// Serves a connection until its end; returns the reason of the end.
    async fn serve(&self, socket: Socket, hello: Hello) -> Health {
        let silence = hello.tick * 2;
        let (connection, mut requests) = Connection::new(hello);
        self.0.link.send_replace(Link::Up(Arc::clone(&connection)));
        let (mut sink, mut stream) = socket.split();
        let writing = async {
            while let Some(text) = requests.recv().await {
                if let Err(error) = sink.send(Message::text(text)).await {
                    return Health::offline(format!(
                        "the connection to the gateway broke: {error}"
                    ));
                }
            }
            std::future::pending().await
        };
        let ended = tokio::select! {
            health = self.read(&mut stream, &connection, silence) => health,
            health = writing => health,
        };
        connection.end();
        ended
    }
}

impl RunEvents {
    pub(crate) async fn next(&mut self) -> Option<Value> {
        self.receiver.recv().await
    }
}

impl Drop for RunEvents {
    fn drop(&mut self) {
        let mut runs = lock(&self.gateway.0.runs);
        for name in &self.names {
            runs.remove(name);
        }
    }
}

fn waits() -> ExponentialBackoff {
    ExponentialBackoffBuilder::new()
        .with_initial_interval(FIRST_WAIT)
        .with_multiplier(2.0)
        .with_randomization_factor(0.25)
        .with_max_interval(LONGEST_WAIT)
        .with_max_elapsed_time(None)
        .build()
}
