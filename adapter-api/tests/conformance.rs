//! Detection tests for the conformance checks: one adapter, broken in one way at a time, checked through
//! its table.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forge_adapter_api::conformance::{self, Options, Outcome, Report};
use forge_adapter_api::manage::{Interface, Model, SystemManager};
use forge_adapter_api::{
    AdapterError, AdapterEvent, Config, CostTier, Events, ExecutionAdapter, ExecutionRequest,
    ExecutionResult, Health, Host, LatencyProfile, OutputStrategy, Profile, Result, Running,
    SteerRequest, Usage, async_trait,
};
use serde_json::json;

const KEY: &str = "sk-of-the-tests";

const SOUND: u8 = 0;
const PANICS: u8 = 1;
const CANNOT_CANCEL: u8 = 2;
const COUNTS_NOTHING: u8 = 3;
const SILENT: u8 = 4;
const NOTHING_AT_ONCE: u8 = 5;
const DENIES_ITS_INTERFACE: u8 = 6;
const PANICS_AT_START: u8 = 7;
const NO_REASONS: u8 = 8;
const NO_HINTS: u8 = 9;
const LATE: u8 = 10;
const REPEATS_ITS_KEY: u8 = 11;
const WITHDRAWS_ANOTHER: u8 = 12;
const KEEPS_WITHDRAWN: u8 = 13;
const DROPS_FILES: u8 = 14;
const STEERS_ALL: u8 = 15;
const LOSES_MESSAGES: u8 = 16;
const ANSWERS_NOTHING: u8 = 17;

/// Calls of `initialize` that were not answered.
static STARTS: AtomicU32 = AtomicU32::new(0);

struct Subject<const FLAW: u8>(Running);

#[async_trait]
impl<const FLAW: u8> ExecutionAdapter for Subject<FLAW> {
    const NAME: &'static str = "subject";
    const VERSION: &'static str = "1.0.0";
    const INTERFACES: &'static [Interface] = &[Interface::System];

    async fn initialize(_host: Host, config: Config) -> Result<Self> {
        if FLAW == PANICS_AT_START {
            panic!("no configuration pleases me");
        }
        if FLAW == ANSWERS_NOTHING {
            STARTS.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
        config.parse_member::<u32>("number")?;
        Ok(Self(Running::default()))
    }

    async fn shutdown(&self) -> Result<()> {
        Ok(())
    }

    async fn check_health(&self) -> Health {
        Health::healthy()
    }

    fn capabilities(&self) -> Profile {
        Profile {
            capabilities: ["streaming", "cost_tracking", "attachments"]
                .map(str::to_owned)
                .into(),
            native_tools: Vec::new(),
            max_concurrent: if FLAW == NOTHING_AT_ONCE { 0 } else { 2 },
            output_strategies: vec![OutputStrategy::Stream],
            options: Vec::new(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Fast,
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        if FLAW == PANICS {
            panic!("boom in execute");
        }
        let run = self.0.start(&request.task_id);
        match request.message.as_str() {
            "slow" => {
                run.cancelled().await;
                return Err(AdapterError::cancelled());
            }
            "steer" => {
                let message = run.messages(&request.execution_id).next().await;
                return Ok(ExecutionResult::ok(match FLAW {
                    LOSES_MESSAGES => "done",
                    _ => &message,
                }));
            }
            "fail" if FLAW == NO_REASONS => return Ok(ExecutionResult::error("", "")),
            "fail" if FLAW == REPEATS_ITS_KEY => {
                return Err(AdapterError::new("broken", format!("the key is {KEY}")));
            }
            "fail" => return Ok(ExecutionResult::error("broken", "as asked")),
            "busy" => {
                let retry_after_ms = Some(if FLAW == LATE { 7 } else { 7_000 });
                return Err(AdapterError {
                    retryable: FLAW != NO_HINTS,
                    retry_after_ms,
                    ..AdapterError::new("rate_limited", "as asked")
                });
            }
            "retract" => return Ok(retract(&events, FLAW).await),
            "files" => {
                let kept = if FLAW == DROPS_FILES { 1 } else { 2 };
                let files = request.attachments.iter().take(kept);
                let types: Vec<&str> = files.map(|file| file.media_type.as_str()).collect();
                return Ok(ExecutionResult::ok(types.join(" ")));
            }
            _ => {}
        }
        if FLAW != SILENT {
            events.send(AdapterEvent::text("said")).await;
        }
        let usage = Usage {
            input_tokens: Some(1),
            output_tokens: Some(1),
            ..Usage::default()
        };
        Ok(ExecutionResult {
            usage: if FLAW == COUNTS_NOTHING {
                Usage::default()
            } else {
                usage
            },
            ..ExecutionResult::ok("said")
        })
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(FLAW != CANNOT_CANCEL && self.0.cancel(task_handle))
    }

    async fn steer(&self, request: SteerRequest) -> Result<bool> {
        Ok(FLAW == STEERS_ALL || self.0.steer(request).await)
    }

    fn system(&self) -> Option<&dyn SystemManager> {
        if FLAW == DENIES_ITS_INTERFACE {
            None
        } else {
            Some(self)
        }
    }
}

async fn retract(events: &Events, flaw: u8) -> ExecutionResult {
    let text = |id: &str, delta: &str| {
        let data = json!({"messageId": id, "delta": delta});
        AdapterEvent::new("assistant.text").with(data)
    };
    let withdrawn = if flaw == WITHDRAWS_ANOTHER {
        "m-7"
    } else {
        "m-1"
    };
    let retracted = json!({"messageId": withdrawn});
    events.send(text("m-1", "never mind")).await;
    events
        .send(AdapterEvent::new("assistant.retracted").with(retracted))
        .await;
    events.send(text("m-2", "said")).await;
    match flaw {
        KEEPS_WITHDRAWN => ExecutionResult::ok("never mindsaid"),
        _ => ExecutionResult::ok("said"),
    }
}

#[async_trait]
impl<const FLAW: u8> SystemManager for Subject<FLAW> {
    async fn list_models(&self) -> Result<Vec<Model>> {
        Ok(Vec::new())
    }
}

fn report<const FLAW: u8>() -> Report {
    conformance::check::<Subject<FLAW>>(Options {
        config: json!({"api_key": KEY}),
        bad_config: Some(json!({"number": "seven"})),
        slow: Some(ExecutionRequest::sample("slow")),
        failing: Some(ExecutionRequest::sample("fail")),
        transient: Some(ExecutionRequest::sample("busy")),
        retry_after: Some(Duration::from_secs(7)),
        retracting: Some(ExecutionRequest::sample("retract")),
        attaching: Some(ExecutionRequest::sample("files")),
        steerable: Some(ExecutionRequest::sample("steer")),
        patience: Duration::from_secs(if FLAW == SOUND { 10 } else { 2 }),
        ..Options::default()
    })
}

fn failures(report: &Report) -> Vec<(&str, &str)> {
    report
        .rows
        .iter()
        .filter_map(|row| match &row.outcome {
            Outcome::Failed(seen) => Some((row.area, seen.as_str())),
            Outcome::Passed | Outcome::NotChecked(_) | Outcome::NoInput(_) => None,
        })
        .collect()
}

#[test]
fn a_sound_adapter_passes_every_rule() {
    let report = report::<SOUND>();
    report.assert_ok();
    let is_unchecked =
        |outcome: &Outcome| matches!(outcome, Outcome::NotChecked(_) | Outcome::NoInput(_));
    let unchecked = report.rows.iter().filter(|row| is_unchecked(&row.outcome));
    let unchecked: Vec<&str> = unchecked.map(|row| row.area).collect();
    assert_eq!(unchecked, ["registration"], "{report}");
}

#[test]
fn an_adapter_that_does_not_start_is_not_waited_for_in_every_rule() {
    let report = report::<ANSWERS_NOTHING>();
    let failed = failures(&report);
    let unanswered = failed
        .iter()
        .filter(|(_, seen)| seen.contains("initialize: no answer within 2s"));
    assert!(unanswered.count() > 10, "{report}");
    assert!(STARTS.load(Ordering::Relaxed) <= 3, "{report}");
}

#[test]
fn each_flaw_is_found_where_it_is() {
    let table = [
        (report::<PANICS>(), "execute", "boom in execute"),
        (
            report::<CANNOT_CANCEL>(),
            "cancellation",
            "false for a task",
        ),
        (report::<COUNTS_NOTHING>(), "execute", "input_tokens: None"),
        (report::<SILENT>(), "event listeners", "no assistant.text"),
        (
            report::<NOTHING_AT_ONCE>(),
            "capabilities",
            "maxConcurrent is 0",
        ),
        (report::<DENIES_ITS_INTERFACE>(), "methods", "INTERFACES"),
        (
            report::<PANICS_AT_START>(),
            "initialize",
            "no configuration",
        ),
        (report::<NO_REASONS>(), "execute", "errorCode"),
        (report::<NO_HINTS>(), "retry hints", "retryable Some(false)"),
        (report::<LATE>(), "retry hints", "retryAfterMs Some(7)"),
        (report::<REPEATS_ITS_KEY>(), "redaction", "repeat a secret"),
        (report::<WITHDRAWS_ANOTHER>(), "retraction", "\"m-7\""),
        (report::<KEEPS_WITHDRAWN>(), "retraction", "never mind"),
        (report::<STEERS_ALL>(), "steering", "does not exist"),
        (report::<LOSES_MESSAGES>(), "steering", "not in the output"),
        (report::<DROPS_FILES>(), "attachments", "application/pdf"),
    ];
    for (report, area, words) in &table {
        let found = failures(report);
        assert!(
            found
                .iter()
                .any(|(failed, seen)| failed == area && seen.contains(words)),
            "{area}: {words}\n{report}"
        );
    }
}
