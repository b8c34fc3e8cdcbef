//! A request that takes back what an earlier one began: sent when the run is given up, also by being dropped.

use std::time::Duration;

use reqwest::RequestBuilder;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::http::Http;

/// How long the server has to answer it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Armed until [`Undo::disarm`] or [`Undo::now`].
pub struct Undo(Option<(Http, RequestBuilder)>);

impl Undo {
    pub fn new(http: &Http, request: RequestBuilder) -> Self {
        Self(Some((http.clone(), request)))
    }

    /// There is nothing to take back any more.
    pub fn disarm(mut self) {
        self.0 = None;
    }

    /// Sends it and waits for the answer, not for long.
    pub async fn now(mut self) {
        if let Some((http, request)) = self.0.take() {
            send(http, request).await;
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // Outside of a runtime there is nobody to send it: the process is ending.
        if let (Some((http, request)), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(send(http, request));
        }
    }
}

async fn send(http: Http, request: RequestBuilder) {
    match timeout(PATIENCE, http.answer(request)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!("the runtime was asked to stop and refused: {error}"),
        Err(_) => tracing::debug!("the runtime was asked to stop and did not answer"),
    }
}
