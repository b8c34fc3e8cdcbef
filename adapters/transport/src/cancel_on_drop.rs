//! A cancel request for work that an earlier request started; sent when the run is abandoned, including by
//! a drop.

use std::time::Duration;

use reqwest::RequestBuilder;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::http::Http;

/// Time limit of the cancel request.
const PATIENCE: Duration = Duration::from_secs(5);

/// A cancel request that is armed until [`CancelOnDrop::disarm`] or [`CancelOnDrop::now`].
pub struct CancelOnDrop(Option<(Http, RequestBuilder)>);

impl CancelOnDrop {
    pub fn new(http: &Http, request: RequestBuilder) -> Self {
        Self(Some((http.clone(), request)))
    }

    /// Discards the request: the work has ended.
    pub fn disarm(mut self) {
        self.0 = None;
    }

    /// Sends the request and waits up to 5 s for the answer. The request is sent by a task of its own, so
    /// dropping this future does not stop it: a cancel, a timeout and a drop often coincide.
    pub async fn now(mut self) {
        if let Some(sent) = self.begin() {
            // The panic hook has already logged a panic of the task.
            let _ = sent.await;
        }
    }

    fn begin(&mut self) -> Option<JoinHandle<()>> {
        let (http, request) = self.0.take()?;
        // Without a runtime the process is ending and the request cannot be sent.
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(send(http, request)))
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        drop(self.begin());
    }
}

async fn send(http: Http, request: RequestBuilder) {
    match timeout(PATIENCE, http.answer(request)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!("the runtime was asked to stop and refused: {error}"),
        Err(_) => tracing::debug!("the runtime was asked to stop and did not answer"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::http::Limits;

    #[tokio::test]
    async fn it_goes_out_without_a_waiter() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/cancel", listener.local_addr().unwrap());
        let http = Http::new(Limits::default()).unwrap();
        let undo = CancelOnDrop::new(&http, http.post(&url, &json!({})));
        // Started, then dropped at once.
        timeout(Duration::ZERO, undo.now()).await.unwrap_err();
        let (mut agent, _) = listener.accept().await.unwrap();
        let mut head = [0; 12];
        agent.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"POST /cancel");
    }
}
