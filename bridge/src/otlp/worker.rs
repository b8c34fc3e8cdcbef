//! Export loop: collects a batch, sends it, retries while the collector is unavailable. Meanwhile the queue fills up
//! and then drops spans; nothing else is affected.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use forge_base::trace::Span;
use forge_net::{Outgoing, backoff};

use super::{Exporter, encode};

const AGENT: &str = concat!("forge-bridge/", env!("CARGO_PKG_VERSION"));
/// Spans per request.
const BATCH: usize = 512;
/// First and longest pause while the collector is unavailable.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Attempts to send a batch before it is given up in favour of newer ones.
const ATTEMPTS: u32 = 5;
/// Time limit for the last spans at shutdown.
const LAST: Duration = Duration::from_secs(2);

/// Resolves `LAST` after shutdown began: the limit of a request in flight.
async fn overdue(shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    sleep(LAST).await;
}

enum Reply {
    Taken,
    Refused(String),
    Away {
        why: String,
        retry_after: Option<Duration>,
    },
}

/// Outcome of the last request; only a change is logged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Good,
    Bad,
}

impl Exporter {
    /// Sends until shutdown, then sends the rest.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut standing = Standing::Good;
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(taken) = shutdown
            .run_until_cancelled(self.waiting.take(&mut batch, BATCH))
            .await
        {
            if taken == 0 {
                return;
            }
            if batch.len() < BATCH {
                // Waits for more spans to share the request. Spans taken so far stay in `batch`.
                shutdown.run_until_cancelled(sleep(self.every)).await;
                self.waiting.take_rest(&mut batch, BATCH);
            }
            self.deliver(&batch, &mut standing, &shutdown).await;
            batch.clear();
        }
        let rest = async {
            loop {
                self.waiting.take_rest(&mut batch, BATCH);
                if batch.is_empty() {
                    return;
                }
                self.deliver(&batch, &mut standing, &shutdown).await;
                batch.clear();
            }
        };
        // Spans that the collector has not taken by then are lost.
        let _ = timeout(LAST, rest).await;
    }

    async fn deliver(&self, batch: &[Span], standing: &mut Standing, shutdown: &CancellationToken) {
        let body = Bytes::from(encode::request(&self.source, batch));
        let count = batch.len() as u64;
        let mut pause = PAUSE.0;
        for attempt in 1..=ATTEMPTS {
            let reply = tokio::select! {
                reply = self.send(body.clone()) => reply,
                () = overdue(shutdown) => break,
            };
            let why = match reply {
                Reply::Taken => {
                    if *standing == Standing::Bad {
                        tracing::info!("the collector accepts traces again");
                    }
                    *standing = Standing::Good;
                    return self.waiting.load.sent.add(count);
                }
                Reply::Refused(why) => {
                    self.tell(standing, &why);
                    break;
                }
                Reply::Away { why, retry_after } => {
                    pause = retry_after.unwrap_or(pause).min(PAUSE.1);
                    why
                }
            };
            self.tell(standing, &why);
            // During shutdown there is no retry.
            if attempt == ATTEMPTS || shutdown.run_until_cancelled(sleep(pause)).await.is_none() {
                break;
            }
            pause = (pause * 2).min(PAUSE.1);
        }
        self.waiting.load.failed.add(count);
    }

    fn tell(&self, standing: &mut Standing, why: &str) {
        if *standing == Standing::Good {
            let origin = forge_net::origin(&self.url);
            tracing::warn!("traces are not taken by {origin}: {why}; check otlp.endpoint");
        }
        *standing = Standing::Bad;
    }

    async fn send(&self, body: Bytes) -> Reply {
        let mut headers = self.headers.clone();
        let kind = HeaderValue::from_static("application/x-protobuf");
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let answer = self.client.send(Outgoing {
            method: Method::POST,
            url: self.url.clone(),
            headers,
            body,
            timeout: self.timeout,
            answer_bytes: forge_net::ANSWER_BYTES,
        });
        match answer.await {
            Ok(answer) => match answer.status {
                200..=299 => Reply::Taken,
                429 | 502 | 503 | 504 => Reply::Away {
                    why: format!("it answered {}", answer.status),
                    retry_after: answer.headers.get(RETRY_AFTER).and_then(|value| {
                        backoff::retry_after(value.to_str().ok()?, jiff::Timestamp::now())
                    }),
                },
                status => Reply::Refused(format!("it answered {status}")),
            },
            Err(error) => Reply::Away {
                why: error.to_string(),
                retry_after: None,
            },
        }
    }
}
