//! Conformance checks for adapters: one row for each rule; the checklist in `README.md` is their
//! summary. The adapter is called through its exported table, as the bridge calls it, in the process of
//! the test.
//!
//! ```no_run
//! # use forge_adapter_api::{conformance, ExecutionAdapter, ExecutionRequest};
//! # fn conforms<Acme: ExecutionAdapter>() {
//! conformance::check::<Acme>(conformance::Options {
//!     config: serde_json::json!({"ACME_KEY": "test"}),
//!     slow: Some(ExecutionRequest::sample("something that takes a minute")),
//!     ..conformance::Options::default()
//! })
//! .assert_ok();
//! # }
//! ```

mod bench;
mod boundary;
mod executing;
mod files;
mod living;
pub(crate) mod recorder;
mod spoken;

use std::fmt;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};

use crate::export::{LoadedEntry, c_entry};
use crate::manage::Interface;
use crate::{ExecutionAdapter, ExecutionRequest, HealthStatus, Manifest, Profile};

use bench::Bench;
use spoken::Entry;
pub use spoken::{Heard, Peer, Spoken};

/// Input of the checks. A rule whose input is absent is not checked, and the report says so.
#[derive(Clone, Debug)]
pub struct Options {
    /// A configuration with which the adapter is healthy. Default: `{}`.
    pub config: Value,
    /// The expected health when the configuration is `{}`. Default: `healthy`; use `degraded` for an
    /// adapter that needs a key.
    pub health_without_config: HealthStatus,
    /// A configuration that `initialize` must refuse.
    pub bad_config: Option<Value>,
    /// The expected profile.
    pub profile: Option<Profile>,
    /// A request that succeeds within [`Options::patience`].
    pub request: ExecutionRequest,
    /// A request that would take longer than `patience`, and ends when it is cancelled.
    pub slow: Option<ExecutionRequest>,
    /// A request that fails.
    pub failing: Option<ExecutionRequest>,
    /// A request that fails now and can succeed later, for example because of a rate limit.
    pub transient: Option<ExecutionRequest>,
    /// The wait that the runtime asks for when `transient` fails. Not compared if absent.
    pub retry_after: Option<Duration>,
    /// A request that succeeds although the runtime withdraws text of its answer.
    pub retracting: Option<ExecutionRequest>,
    /// A request that is answered with the media types of its attachments, as the runtime received them.
    pub attaching: Option<ExecutionRequest>,
    /// A request that is still running when a message steers it, and then ends within `patience` with the message in its
    /// output.
    pub steerable: Option<ExecutionRequest>,
    /// Time limit of every single wait. Default: 10 s.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: json!({}),
            health_without_config: HealthStatus::Healthy,
            bad_config: None,
            profile: None,
            request: ExecutionRequest::sample("a message of the conformance checks"),
            slow: None,
            failing: None,
            transient: None,
            retry_after: None,
            retracting: None,
            attaching: None,
            steerable: None,
            patience: Duration::from_secs(10),
        }
    }
}

/// Input that a rule needs and [`Options`] do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// [`Options::slow`]
    Slow,
    /// [`Options::failing`]
    Failing,
    /// [`Options::transient`]
    Transient,
    /// [`Options::retracting`]
    Retracting,
    /// [`Options::attaching`]
    Attaching,
    /// [`Options::steerable`]
    Steerable,
    /// [`Options::bad_config`]
    BadConfig,
    /// In [`Options::config`], a value of 8 bytes or more under a name such as `api_key`.
    Secret,
}

impl Input {
    /// True if every adapter for which the rule is checked can be given the input. Others may never fail for a while,
    /// withdraw no text, or have no settings.
    pub fn is_required(self) -> bool {
        matches!(
            self,
            Self::Slow | Self::Failing | Self::Attaching | Self::Steerable
        )
    }

    /// The member of [`Options`].
    pub fn option(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Failing => "failing",
            Self::Transient => "transient",
            Self::Retracting => "retracting",
            Self::Attaching => "attaching",
            Self::Steerable => "steerable",
            Self::BadConfig => "bad_config",
            Self::Secret => "config with a secret",
        }
    }
}

/// Runs every check. Blocks; call it outside an async runtime.
pub fn check<A: ExecutionAdapter>(options: Options) -> Report {
    let bench = Bench {
        name: A::NAME.to_owned(),
        version: A::VERSION.to_owned(),
        interfaces: A::INTERFACES.to_vec(),
        entry: Entry::Table(c_entry::<A>()),
        options,
        last: Mutex::default(),
        mute: OnceLock::new(),
    };
    run(bench, &mut |_| {})
}

/// Checks a library known only by its entry. `watch` is called before and after each rule, so that the
/// caller knows the rule at which a library ended the process.
pub fn check_library(
    manifest: &Manifest,
    entry: LoadedEntry,
    options: Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> Report {
    check_entry(manifest, Entry::Table(entry.0), options, watch)
}

/// Checks an adapter that is not a library.
pub fn check_peer(
    manifest: &Manifest,
    peer: Box<dyn Peer>,
    options: Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> Report {
    check_entry(manifest, Entry::Peer(peer), options, watch)
}

fn check_entry(
    manifest: &Manifest,
    entry: Entry,
    options: Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> Report {
    let declared = |interface: &Interface| {
        let declared = interface.declaration();
        manifest.interfaces.iter().any(|name| name == declared)
    };
    let bench = Bench {
        name: manifest.provider.clone(),
        version: manifest.version.clone(),
        interfaces: Interface::ALL.into_iter().filter(declared).collect(),
        entry,
        options,
        last: Mutex::default(),
        mute: OnceLock::new(),
    };
    run(bench, watch)
}

/// Progress of [`check_library`] and [`check_peer`].
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A check is about to begin.
    Begins {
        /// The part of the interface.
        area: &'static str,
        /// The rule.
        rule: &'static str,
    },
    /// A check has ended with this row.
    Ended(&'a Row),
}

fn run(bench: Bench, watch: &mut dyn FnMut(Step<'_>)) -> Report {
    let rows = CHECKS
        .iter()
        .map(|&(area, rule, check)| {
            watch(Step::Begins { area, rule });
            bench.forget();
            let outcome = match check(&bench) {
                Ok(()) => Outcome::Passed,
                Err(outcome) => outcome,
            };
            let sent = match outcome {
                Outcome::Failed(_) => bench.sent(),
                Outcome::Passed | Outcome::NotChecked(_) | Outcome::NoInput(_) => None,
            };
            let row = Row {
                area,
                rule,
                outcome,
                sent,
            };
            watch(Step::Ended(&row));
            row
        })
        .collect();
    Report {
        provider: bench.name,
        rows,
    }
}

/// A check: `Ok`, or [`Outcome::Failed`] or [`Outcome::NotChecked`] as the error.
type Check = fn(&Bench) -> Result<(), Outcome>;

const CHECKS: &[(&str, &str, Check)] = &[
    (
        "identity",
        "the manifest names provider, version, schema and interfaces",
        boundary::identity,
    ),
    (
        "capabilities",
        "the profile is as expected, usable and stable",
        living::capabilities,
    ),
    (
        "health",
        "as expected without configuration, healthy with it",
        living::health,
    ),
    (
        "cancellation",
        "false for an unknown task",
        living::cancel_unknown,
    ),
    (
        "cancellation",
        "true for an active task, which ends as cancelled",
        living::cancel_active,
    ),
    (
        "steering",
        "false for an unknown execution, or unsupported_op",
        living::steer_unknown,
    ),
    (
        "steering",
        "a message reaches the running execution when steer is supported",
        living::steer_active,
    ),
    (
        "shutdown",
        "ends running executions and refuses new ones",
        living::shutdown,
    ),
    (
        "event listeners",
        "an execution sends text when streaming is declared",
        executing::streams_text,
    ),
    (
        "error isolation",
        "a closed or temporarily full event queue breaks no execution",
        executing::refusing_sink,
    ),
    (
        "methods",
        "every required method answers, including the event relay",
        boundary::required_methods,
    ),
    (
        "methods",
        "declared interfaces answer, others are unsupported_op",
        boundary::interfaces,
    ),
    (
        "initialize",
        "rejects an invalid configuration with an error",
        living::bad_config,
    ),
    ("initialize", "logs startup", living::logs_startup),
    (
        "execute",
        "the configured request succeeds",
        executing::ends_well,
    ),
    (
        "execute",
        "keeps the time limit",
        executing::keeps_the_limit,
    ),
    (
        "execute",
        "returns token counts when cost_tracking is declared",
        executing::counts_tokens,
    ),
    (
        "execute",
        "a failure has status error and says what went wrong",
        executing::says_what_failed,
    ),
    (
        "retry hints",
        "a failure that can pass is retryable, with the wait that the runtime asks for",
        executing::hints_at_retry,
    ),
    (
        "redaction",
        "health, log, events, results and errors repeat no secret of the configuration",
        executing::keeps_secrets,
    ),
    (
        "retraction",
        "withdraws a message that was sent, and leaves its text out of the output",
        executing::retracts,
    ),
    (
        "attachments",
        "an image and a PDF reach the runtime when attachments is declared",
        files::takes_attachments,
    ),
    (
        "execute",
        "ignores unknown fields",
        executing::ignores_unknown_fields,
    ),
    (
        "execute",
        "runs two at once when maxConcurrent is above 1",
        executing::two_at_once,
    ),
    (
        "execute",
        "a call the bridge drops ends unanswered",
        executing::dropped_call,
    ),
    (
        "boundary",
        "malformed input and unknown ops are errors and leave the adapter working",
        boundary::garbage,
    ),
    (
        "registration",
        "the library loads and runs under BRIDGE_ADAPTERS",
        boundary::loads,
    ),
];

/// The result of one run of the checks.
#[derive(Clone, Debug)]
pub struct Report {
    /// The adapter's provider id.
    pub provider: String,
    /// A row for each rule, in the order in which they run.
    pub rows: Vec<Row>,
}

/// A rule and its outcome.
#[derive(Clone, Debug)]
pub struct Row {
    /// The part of the interface.
    pub area: &'static str,
    /// The rule.
    pub rule: &'static str,
    /// The outcome.
    pub outcome: Outcome,
    /// The last call that the adapter was sent before the rule failed, without secrets of the configuration: for a
    /// program the line on its stdin.
    pub sent: Option<String>,
}

/// Outcome of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rule holds.
    Passed,
    /// The rule does not hold; the text says what was seen.
    Failed(String),
    /// The rule does not apply or could not be checked; the text says why.
    NotChecked(String),
    /// The rule was not checked for want of this input.
    NoInput(Input),
}

impl Report {
    /// True if no rule failed.
    pub fn is_ok(&self) -> bool {
        !self
            .rows
            .iter()
            .any(|row| matches!(row.outcome, Outcome::Failed(_)))
    }

    /// Fails the test with the whole report if a rule failed.
    ///
    /// # Panics
    ///
    /// If a rule failed.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "conformance of {:?}", self.provider)?;
        for Row {
            area,
            rule,
            outcome,
            sent,
        } in &self.rows
        {
            match outcome {
                Outcome::Passed => writeln!(f, "  ok    {area}: {rule}")?,
                Outcome::Failed(seen) => writeln!(f, "  FAIL  {area}: {rule}\n        {seen}")?,
                Outcome::NotChecked(why) => writeln!(f, "  -     {area}: {rule} ({why})")?,
                Outcome::NoInput(input) => {
                    let option = input.option();
                    writeln!(f, "  -     {area}: {rule} (Options has no {option})")?;
                }
            }
            if let Some(sent) = sent {
                writeln!(f, "        sent: {sent}")?;
            }
        }
        Ok(())
    }
}
