//! A request that takes back what an earlier one began: sent when the run is given up, also by being dropped.

use std::time::Duration;

use reqwest::RequestBuilder;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::http::Http;

/// How long the server has to answer it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Armed until [`Undo::disarm`] or [`Undo::now`].
pub struct CancelOnDrop(Option<(Http, RequestBuilder)>);

impl CancelOnDrop {
    pub fn new(http: &Http, request: RequestBuilder) -> Self {
        Self(Some((http.clone(), request)))
    }

    /// There is nothing to take back any more.
    pub fn disarm(mut self) {
        self.0 = None;
    }

    /// Sends it and waits for the answer, not for long. It goes out also when nobody waits any more: what is
    /// given up is given up by several at about the same time.
    pub async fn now(mut self) {
        if let Some(sent) = self.begin() {
            // A panic has been told by the hook.
            let _ = sent.await;
        }
    }

    fn begin(&mut self) -> Option<JoinHandle<()>> {
        let (http, request) = self.0.take()?;
        // Outside of a runtime there is nobody to send it: the process is ending.
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
    async fn it_goes_out_though_nobody_waits_for_it_any_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/cancel", listener.local_addr().unwrap());
        let http = Http::new(Limits::default()).unwrap();
        let undo = CancelOnDrop::new(&http, http.post(&url, &json!({})));
        // Begun, and dropped at once.
        timeout(Duration::ZERO, undo.now()).await.unwrap_err();
        let (mut agent, _) = listener.accept().await.unwrap();
        let mut head = [0; 12];
        agent.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"POST /cancel");
    }
}
