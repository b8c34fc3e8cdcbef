//! The loop that sends: gathers a batch, sends it, tries again while the collector is away. Meanwhile the
//! queue fills and then drops, which costs nobody anything but the spans.

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
/// Spans in one request.
const BATCH: usize = 512;
/// The first and the longest pause while the collector is away.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A batch that could not be sent so often is given up, since newer ones matter more.
const ATTEMPTS: u32 = 5;
/// What the last spans get when the process ends.
const LAST: Duration = Duration::from_secs(2);

/// Resolves when a request that is under way as the process ends has had its time.
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

/// Whether the collector took what it was sent last; a change is logged, not every batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Good,
    Bad,
}

impl Exporter {
    /// Sends until the shutdown, then what is left.
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
                // Others may come to share the request. What is taken meanwhile is not lost.
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
        // What the collector does not take by then is lost with the process.
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
                        tracing::info!("the collector takes traces again");
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
            // A process that ends tries once.
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
