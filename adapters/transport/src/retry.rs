//! The rule for repeating a model call: only before the first output, only after a failure that can pass, a limited
//! number of times, and only within the time of the execution. Each retry is reported as an event.

use std::time::Duration;

use backoff::backoff::Backoff as _;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};
use forge_adapter_api::{AdapterError, AdapterEvent, Events, ExecutionRequest};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

/// Name of the setting in each adapter's table: retries of one model call.
pub const SETTING: &str = "model_retries";
/// Default of the setting.
pub const DEFAULT: u32 = 3;

/// First wait where the server asks for none; doubled each time, with jitter.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(8);
/// Part of the execution's time that stays for the result: the bridge's own timeout would hide the cause.
const RESERVE: f64 = 0.05;
const LONGEST_RESERVE: Duration = Duration::from_secs(1);

/// Retries of the model calls of one execution.
pub struct Retries<'a> {
    events: &'a Events,
    most: u32,
    left: u32,
    tries: u32,
    model: Option<&'a str>,
    /// Models to turn to, in order.
    fallback: std::slice::Iter<'a, String>,
    waits: ExponentialBackoff,
    /// Time by which the execution has to end.
    end: Instant,
    /// The last failure that was followed by a retry.
    last: Option<AdapterError>,
}

impl<'a> Retries<'a> {
    /// Starts the execution's time. `most` is the setting [`SETTING`].
    pub fn new(most: u32, request: &ExecutionRequest, events: &'a Events) -> Self {
        // The bridge enforces the time limit; one that is no duration is none here.
        let time = Duration::try_from_secs_f64(request.timeout_seconds)
            .unwrap_or(Duration::from_secs(86_400))
            .min(Duration::from_secs(86_400 * 365));
        Self {
            events,
            most,
            left: most,
            tries: 1,
            model: None,
            fallback: [].iter(),
            waits: ExponentialBackoffBuilder::new()
                .with_initial_interval(FIRST_WAIT)
                .with_multiplier(2.0)
                .with_randomization_factor(0.25)
                .with_max_interval(LONGEST_WAIT)
                .with_max_elapsed_time(None)
                .build(),
            end: Instant::now() + time - time.mul_f64(RESERVE).min(LONGEST_RESERVE),
            last: None,
        }
    }

    /// Begins with `model`, and turns to those of `fallback` in their order when retries of the one before did not help.
    #[must_use]
    pub fn with_models(mut self, model: Option<&'a str>, fallback: &'a [String]) -> Self {
        self.model = model;
        self.fallback = fallback.iter();
        self
    }

    /// The model to ask now.
    pub fn model(&self) -> Option<&'a str> {
        self.model
    }

    /// Awaits a try. After a refusal it ends before the bridge's timeout would, with the refusal in the error.
    pub async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, AdapterError>>,
    ) -> Result<T, AdapterError> {
        let Some(last) = &self.last else {
            return call.await;
        };
        timeout_at(self.end, call).await.unwrap_or_else(|_| {
            let message = format!(
                "no answer within the time of the dispatch; the try before ended with: {}",
                last.message
            );
            Err(AdapterError {
                code: "timeout".to_owned(),
                message,
                details: Some(json!({"lastRefusal": refusal(last)})),
                ..last.clone()
            })
        })
    }

    /// Waits before the next try, after a failure without any output, or turns to the next model. Returns the error if
    /// there is neither.
    pub async fn wait(&mut self, mut error: AdapterError) -> Result<(), AdapterError> {
        let Some(delay) = self.delay(&error) else {
            if let Some(next) = self.next_model(&error) {
                let mut data = refusal(&error);
                data["from"] = self.model.into();
                data["to"] = next.into();
                self.model = Some(next);
                (self.left, self.tries) = (self.most, 1);
                self.waits.reset();
                self.last = Some(error);
                let event = AdapterEvent::new("model.fallback").with(data);
                self.events.send(event).await;
                return Ok(());
            }
            if self.tries > 1 && error.code != "timeout" {
                error.message = format!("{} (after {} tries)", error.message, self.tries);
            }
            return Err(error);
        };
        self.left -= 1;
        self.tries += 1;
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let mut data = refusal(&error);
        data["delayMs"] = delay_ms.into();
        self.last = Some(error);
        self.events
            .send(AdapterEvent::new("model.retrying").with(data))
            .await;
        sleep(delay).await;
        Ok(())
    }

    /// The error of a cancelled execution, with the last failure.
    pub fn cancelled(&self) -> AdapterError {
        let mut error = AdapterError::cancelled();
        if let Some(last) = &self.last {
            error.message = format!("cancelled; the try before ended with: {}", last.message);
            error.details = Some(json!({"lastRefusal": refusal(last)}));
        }
        error
    }

    fn next_model(&mut self, error: &AdapterError) -> Option<&'a str> {
        if !error.retryable || Instant::now() >= self.end {
            return None;
        }
        let current = self.model;
        let mut others = self.fallback.by_ref().map(String::as_str);
        others.find(|next| Some(*next) != current)
    }

    fn delay(&mut self, error: &AdapterError) -> Option<Duration> {
        if !error.retryable || self.left == 0 {
            return None;
        }
        let asked = error.retry_after_ms.filter(|ms| *ms > 0);
        let delay = match asked {
            Some(ms) => Duration::from_millis(ms),
            None => self.waits.next_backoff()?,
        };
        let is_in_time = Instant::now()
            .checked_add(delay)
            .is_some_and(|at| at < self.end);
        is_in_time.then_some(delay)
    }
}

/// A failed call, by its HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Code of the [`AdapterError`].
    pub code: &'static str,
    pub retryable: bool,
    /// Class of the failure, for [`details`].
    pub reason: &'static str,
}

impl Refusal {
    /// The statuses that the clients of OpenAI and Anthropic repeat are retryable.
    pub fn of(status: u16) -> Self {
        let (code, retryable, reason) = match status {
            401 | 403 => ("unauthenticated", false, "unauthenticated"),
            408 => ("upstream_error", true, "timeout"),
            409 => ("upstream_error", true, "conflict"),
            429 => ("rate_limited", true, "rate_limited"),
            400..=499 => ("invalid_request", false, "invalid_request"),
            503 | 529 => ("upstream_error", true, "overloaded"),
            500.. => ("upstream_error", true, "server_error"),
            _ => ("upstream_error", false, "server_error"),
        };
        Self {
            code,
            retryable,
            reason,
        }
    }
}

/// `details` of an error: the class of the failure and the HTTP status, if there is one.
pub fn details(reason: &str, status: Option<u16>) -> Value {
    match status {
        Some(status) => json!({"reason": reason, "status": status}),
        None => json!({"reason": reason}),
    }
}

/// Failure of one try, for events and `details`: `{reason, status?, error}`.
fn refusal(error: &AdapterError) -> Value {
    let status = error
        .details
        .as_ref()
        .and_then(|details| details["status"].as_u64());
    match status {
        Some(status) => json!({"reason": reason(error), "status": status, "error": error.message}),
        None => json!({"reason": reason(error), "error": error.message}),
    }
}

/// Class of a failure: `rate_limited`, `overloaded`, `server_error`, `timeout`, `conflict`, `unreachable`, `broken`, or
/// the error's code.
fn reason(error: &AdapterError) -> &str {
    let details = error.details.as_ref();
    let reason = details.and_then(|details| details["reason"].as_str());
    reason.unwrap_or(&error.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(seconds: f64) -> ExecutionRequest {
        ExecutionRequest {
            timeout_seconds: seconds,
            ..ExecutionRequest::sample("hello")
        }
    }

    fn failed(retry_after_ms: Option<u64>) -> AdapterError {
        AdapterError {
            retry_after_ms,
            details: Some(details("overloaded", Some(529))),
            ..AdapterError::new("upstream_error", "no room").retryable()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_waited_for_as_often_as_allowed_and_told_each_time() {
        let (events, mut received) = Events::channel(10);
        let mut retries = Retries::new(3, &request(600.0), &events);
        let begun = Instant::now();
        for _ in 0..3 {
            retries.wait(failed(Some(7_000))).await.unwrap();
        }
        assert!(begun.elapsed() >= Duration::from_secs(21));
        let last = retries.wait(failed(None)).await.unwrap_err();
        assert_eq!(last.message, "no room (after 4 tries)");
        let wanted = json!({
            "reason": "overloaded", "status": 529, "delayMs": 7_000, "error": "no room",
        });
        for _ in 0..3 {
            assert_eq!(received.recv().await.unwrap().data.as_ref(), Some(&wanted));
        }
        assert!(received.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn waits_grow_and_a_failure_that_stays_or_would_outlast_the_dispatch_is_returned() {
        let events = Events::nowhere();
        let mut retries = Retries::new(3, &request(600.0), &events);
        let begun = Instant::now();
        for _ in 0..3 {
            retries.wait(failed(None)).await.unwrap();
        }
        let waited = begun.elapsed().as_secs_f64();
        assert!((2.6..4.5).contains(&waited), "0.5 + 1 + 2 s: {waited}");
        for (most, seconds, error) in [
            (0, 600.0, failed(None)),
            (3, 30.0, failed(Some(29_500))),
            (3, f64::NAN, failed(Some(u64::MAX))),
            (3, 600.0, AdapterError::new("unauthenticated", "wrong key")),
        ] {
            let begun = Instant::now();
            let mut retries = Retries::new(most, &request(seconds), &events);
            assert_eq!(retries.wait(error.clone()).await, Err(error));
            assert_eq!(begun.elapsed(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_models_are_taken_in_their_order_for_failures_that_can_pass() {
        let (events, mut received) = Events::channel(10);
        let fallback = ["a", "b", "c"].map(str::to_owned);
        let request = request(600.0);
        let mut retries = Retries::new(1, &request, &events).with_models(Some("a"), &fallback);
        let mut asked = Vec::new();
        let refused = AdapterError::new("unauthenticated", "wrong key");
        for error in [failed(None), failed(None), failed(None), failed(None)] {
            asked.extend(retries.model());
            retries.wait(error).await.unwrap();
        }
        assert_eq!(asked, ["a", "a", "b", "b"]);
        assert_eq!(retries.wait(refused.clone()).await, Err(refused));
        assert_eq!(retries.model(), Some("c"));
        let mut told = Vec::new();
        while let Ok(event) = received.try_recv() {
            told.extend((event.kind == "model.fallback").then_some(event.data.unwrap()));
        }
        let wanted = json!({
            "from": "a", "to": "b", "reason": "overloaded", "status": 529, "error": "no room",
        });
        assert_eq!((told.len(), &told[0]), (2, &wanted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_try_that_outlasts_the_dispatch_names_the_refusal_before_it() {
        let events = Events::nowhere();
        let mut retries = Retries::new(3, &request(20.0), &events);
        assert_eq!(retries.cancelled(), AdapterError::cancelled());
        retries.wait(failed(None)).await.unwrap();
        let begun = Instant::now();
        let ended = retries
            .within(std::future::pending::<Result<(), _>>())
            .await;
        let error = ended.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(20));
        assert_eq!((error.code.as_str(), error.retryable), ("timeout", true));
        assert!(error.message.ends_with("no room"), "{}", error.message);
        let cause = json!({"reason": "overloaded", "status": 529, "error": "no room"});
        let details = Some(json!({ "lastRefusal": cause }));
        assert_eq!(
            (&error.details, &retries.cancelled().details),
            (&details, &details)
        );
        assert!(retries.cancelled().message.ends_with("no room"));
    }
}
