//! One connection: its requests that wait for answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::mpsc;

use crate::frame::{Failure, request};
use crate::link::Hello;

/// Requests that are not written yet.
const REQUESTS: usize = 64;

pub(crate) struct Connection {
    pub(crate) hello: Hello,
    outgoing: mpsc::Sender<String>,
    /// By id; `None` after the end of the connection.
    waiting: Mutex<Option<HashMap<String, Waiting>>>,
}

struct Waiting {
    method: &'static str,
    answers: mpsc::UnboundedSender<Result<Value, Failure>>,
}

/// Answers to one request, which has several if it starts a run.
pub(crate) struct Answers {
    id: String,
    method: &'static str,
    connection: Arc<Connection>,
    receiver: mpsc::UnboundedReceiver<Result<Value, Failure>>,
}

impl Connection {
    /// A connection, and the requests to write to its socket.
    pub(crate) fn new(hello: Hello) -> (Arc<Self>, mpsc::Receiver<String>) {
        let (outgoing, requests) = mpsc::channel(REQUESTS);
        let connection = Self {
            hello,
            outgoing,
            waiting: Mutex::new(Some(HashMap::new())),
        };
        (Arc::new(connection), requests)
    }

    pub(crate) async fn send(
        self: Arc<Self>,
        id: String,
        method: &'static str,
        params: &Value,
    ) -> Result<Answers, Failure> {
        let text = request(&id, method, params);
        if text.len() > self.hello.max_bytes {
            return Err(Failure::TooLarge(text.len(), self.hello.max_bytes));
        }
        let (answers, receiver) = mpsc::unbounded_channel();
        match &mut *lock(&self.waiting) {
            Some(waiting) => waiting.insert(id.clone(), Waiting { method, answers }),
            None => return Err(Failure::Lost(method)),
        };
        let outgoing = self.outgoing.clone();
        let answers = Answers {
            id,
            method,
            connection: self,
            receiver,
        };
        match outgoing.send(text).await {
            Ok(()) => Ok(answers),
            Err(_) => Err(Failure::Lost(method)),
        }
    }

    /// Ends the connection: no request waits any longer.
    pub(crate) fn end(&self) {
        let waiting = lock(&self.waiting).take();
        for waiting in waiting.into_iter().flat_map(HashMap::into_values) {
            // A receiver that is gone needs no answer.
            let _ = waiting.answers.send(Err(Failure::Lost(waiting.method)));
        }
    }

    pub(crate) fn answer(&self, id: &str, answer: Result<Value, Failure>) {
        if let Some(waiting) = &*lock(&self.waiting)
            && let Some(waiting) = waiting.get(id)
        {
            // A receiver that is gone needs no answer.
            let _ = waiting.answers.send(answer);
        }
    }
}

impl Answers {
    /// Hello of the connection that the request went over.
    pub(crate) fn hello(&self) -> &Hello {
        &self.connection.hello
    }

    pub(crate) async fn next(&mut self) -> Result<Value, Failure> {
        self.receiver
            .recv()
            .await
            .unwrap_or(Err(Failure::Lost(self.method)))
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if let Some(waiting) = &mut *lock(&self.connection.waiting) {
            waiting.remove(&self.id);
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
