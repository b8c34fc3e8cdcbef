//! One run: sends the message and follows its task to the end, resuming broken streams, or polling agents without
//! streaming.

use std::time::Duration;

use forge_adapter_api::foreign_json;
use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Result, Run,
};
use forge_adapter_transport::answer::Kind;
use forge_adapter_transport::attachments::Attachments;
use forge_adapter_transport::cancel_on_drop::CancelOnDrop;
use forge_adapter_transport::http::Http;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::card::{Endpoint, Streaming};
use crate::config::Settings;
use crate::rpc::{self, Call};
use crate::transcript::{Conversation, Transcript, conversation};
use crate::update::{State, Update};

/// Delay before a broken stream is resumed, for each failure in a row, and the longest one.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(crate) struct Talk<'a> {
    pub(crate) http: &'a Http,
    pub(crate) settings: &'a Settings,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) events: &'a Events,
}

/// Progress of a run, and the handle that cancels its task.
#[derive(Default)]
struct Course {
    transcript: Transcript,
    attachments: Attachments,
    undo: Option<CancelOnDrop>,
    /// True once the stream was resumed.
    resumed: bool,
    /// Number of answers and events of the agent.
    heard: u64,
}

/// Failures in a row to reach the agent.
struct Outage {
    patience: Duration,
    /// Time of the first one.
    since: Option<Instant>,
    failures: u32,
    /// [`Course::heard`] at the last one.
    heard: u64,
}

impl Outage {
    fn new(patience: Duration) -> Self {
        Self {
            patience,
            since: None,
            failures: 0,
            heard: 0,
        }
    }

    /// Counts the failure of a call; returns the pause before the next one, or the error if patience is over.
    fn failed(&mut self, error: AdapterError, course: &Course) -> Result<Duration> {
        if std::mem::replace(&mut self.heard, course.heard) != course.heard {
            self.reached();
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if !error.retryable || since.elapsed() >= self.patience {
            return Err(error);
        }
        self.failures += 1;
        Ok(LONGEST_PAUSE.min(PAUSE * self.failures))
    }

    fn reached(&mut self) {
        self.since = None;
        self.failures = 0;
    }
}

impl Talk<'_> {
    pub(crate) async fn execute(
        &self,
        request: &ExecutionRequest,
        run: &Run,
    ) -> Result<ExecutionResult> {
        let mut course = Course {
            attachments: Attachments::new(&request.attachments),
            ..Course::default()
        };
        let ended = tokio::select! {
            ended = self.follow(request, &mut course) => ended,
            () = run.cancelled() => Err(AdapterError::cancelled()),
        };
        let Course {
            transcript, undo, ..
        } = course;
        match (undo, &ended) {
            (Some(undo), Ok(())) => undo.disarm(),
            // The task would continue without a receiver.
            (Some(undo), Err(_)) => undo.now().await,
            (None, _) => {}
        }
        let end = match ended {
            Ok(()) => transcript.ended().unwrap_or_default(),
            Err(error) => error.into(),
        };
        if let Some(text) = transcript.unstreamed() {
            self.events.send(AdapterEvent::text(text)).await;
        }
        Ok(transcript.into_result(end))
    }

    async fn follow(&self, request: &ExecutionRequest, course: &mut Course) -> Result<()> {
        let Conversation { ids, running } = conversation(request.session_id.as_deref());
        if let Some(task) = running.filter(|_| request.resume)
            && self.is_there(&task, course).await?
        {
            return self.follow_task(Ok(()), course).await;
        }
        let text = match &request.system_prompt {
            // Later messages of a session do not repeat it; that of an attempt that begins again is no later one.
            Some(system) if request.session_id.is_none() || request.resume => {
                format!("{system}\n\n{}", request.message)
            }
            Some(_) | None => request.message.clone(),
        };
        let metadata = request.metadata.as_ref();
        let metadata = metadata.and_then(|metadata| metadata.get("a2a"));
        let metadata = metadata.filter(|metadata| metadata.is_object());
        // A repeated call of this attempt has the same message.
        let message = rpc::message(
            self.endpoint.version,
            &request.execution_id,
            &ids,
            &text,
            &course.attachments,
            metadata,
        );
        let call = match self.endpoint.streaming {
            Streaming::Offered => Call::Stream,
            Streaming::Missing => Call::Send,
        };
        let ended = self.hear(call, &message, course).await;
        self.follow_task(ended, course).await
    }

    /// Reads the task of an earlier attempt. False if it must be started again: the agent does not know it any more, or
    /// cancelled it when the bridge stopped.
    async fn is_there(&self, task: &str, course: &mut Course) -> Result<bool> {
        let mut read = self.hear(Call::Get, &rpc::of_task(task), course).await;
        let mut outage = Outage::new(self.settings.patience());
        while let Err(error) = read {
            match outage.failed(error, course) {
                Ok(pause) => sleep(pause).await,
                Err(error) => {
                    read = Err(error);
                    break;
                }
            }
            read = self.hear(Call::Get, &rpc::of_task(task), course).await;
        }
        let is_lost = match &read {
            Ok(()) => course.transcript.state == Some(State::Canceled),
            Err(error) => error.code == rpc::UNKNOWN_TASK,
        };
        if is_lost {
            if let Some(undo) = course.undo.take() {
                undo.disarm();
            }
            for event in std::mem::take(&mut course.transcript).retracted() {
                self.events.send(event).await;
            }
            course.resumed = false;
            return Ok(false);
        }
        read.map(|()| true)
    }

    /// Follows the task to its end, after this end of a call about it.
    async fn follow_task(&self, mut ended: Result<()>, course: &mut Course) -> Result<()> {
        let mut outage = Outage::new(self.settings.patience());
        while !course.transcript.is_over() {
            let Some(task) = course.transcript.ids.task.clone() else {
                return ended.and_then(|()| {
                    Err(AdapterError::new(
                        "upstream_error",
                        "the agent's answer ended before it contained a task",
                    )
                    .retryable())
                });
            };
            let pause = match ended {
                Ok(()) => {
                    outage.reached();
                    Duration::ZERO
                }
                Err(error) => outage.failed(error, course)?,
            };
            ended = self.resume(&task, course, pause).await;
        }
        ended
    }

    /// Resumes a broken stream, or reads the task itself if that is over or does not help.
    async fn resume(&self, task: &str, course: &mut Course, pause: Duration) -> Result<()> {
        let params = rpc::of_task(task);
        if self.endpoint.streaming == Streaming::Offered {
            sleep(pause).await;
            course.resumed = true;
            let resubscribed = self.hear(Call::Resubscribe, &params, course).await;
            if course.transcript.is_over() {
                return self.hear(Call::Get, &params, course).await;
            }
            if let Err(error) = &resubscribed {
                tracing::debug!("the stream could not be resumed: {error}");
            }
        }
        sleep(self.settings.poll_interval()).await;
        self.hear(Call::Get, &params, course).await
    }

    /// Makes a call and applies all updates of its answer.
    async fn hear(&self, call: Call, params: &Value, course: &mut Course) -> Result<()> {
        let body = rpc::body(self.endpoint, call, params);
        let body = course.attachments.fill(&body).await?;
        let request = rpc::request(self.http, self.settings, self.endpoint, body);
        let answer = self.http.answer(request).await?;
        let mut messages = match answer.kind() {
            Kind::Whole => return self.take(answer.json().await?, course).await,
            Kind::Events => answer.events(),
            Kind::Lines => answer.lines(),
        };
        while let Some(event) = messages.next().await {
            let event = event?;
            if event.data.trim().is_empty() {
                continue;
            }
            let value = foreign_json::from_str(&event.data).map_err(|error| {
                AdapterError::new(
                    "upstream_error",
                    format!("an event of the agent is not JSON: {error}"),
                )
            })?;
            self.take(value, course).await?;
            if course.transcript.is_over() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn take(&self, answer: Value, course: &mut Course) -> Result<()> {
        let result = rpc::result(answer)?;
        course.heard += 1;
        let update = Update::read(&result).map_err(|error| {
            AdapterError::new("upstream_error", format!("the agent's answer is {error}"))
        })?;
        // After a resume, the task can already contain a streamed piece; only the task itself shows what is new.
        if course.resumed && matches!(update, Update::Artifact { .. }) {
            return Ok(());
        }
        for event in course.transcript.hear(update) {
            self.events.send(event).await;
        }
        if let (None, Some(task)) = (&course.undo, &course.transcript.ids.task) {
            let cancel = rpc::body(self.endpoint, Call::Cancel, &rpc::of_task(task));
            let cancel = cancel.to_string();
            let cancel = rpc::request(self.http, self.settings, self.endpoint, cancel);
            course.undo = Some(CancelOnDrop::new(self.http, cancel));
        }
        Ok(())
    }
}
