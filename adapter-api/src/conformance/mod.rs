//! What every adapter must do, checked by the adapter itself: one row for each rule of the adapter
//! contract's testing table and checklist. The adapter is called through its exported table, as the
//! bridge calls it, in the process of the test.
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
mod living;
pub(crate) mod recorder;
mod spoken;

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::export::{LoadedEntry, c_entry};
use crate::manage::Interface;
use crate::{ExecutionAdapter, ExecutionRequest, HealthStatus, Manifest, Profile};

use bench::Bench;
use spoken::Entry;
pub use spoken::{Heard, Peer, Spoken};

/// What the checks need to know of the adapter. What is absent leaves rows unchecked, which the
/// report says.
#[derive(Clone, Debug)]
pub struct Options {
    /// A configuration with which it is healthy. `{}`.
    pub config: Value,
    /// The health it must show when its configuration is `{}`. `healthy`; `degraded` for one that
    /// needs a key.
    pub health_without_config: HealthStatus,
    /// A configuration that `initialize` must refuse.
    pub bad_config: Option<Value>,
    /// The profile it must declare.
    pub profile: Option<Profile>,
    /// A request that ends well within [`Options::patience`].
    pub request: ExecutionRequest,
    /// A request that would outlast the patience and ends when it is cancelled.
    pub slow: Option<ExecutionRequest>,
    /// A request that fails.
    pub failing: Option<ExecutionRequest>,
    /// How long to wait for anything. 10 s.
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
            patience: Duration::from_secs(10),
        }
    }
}

/// Runs every check. Blocks; call it outside of an async runtime.
pub fn check<A: ExecutionAdapter>(options: Options) -> Report {
    let bench = Bench {
        name: A::NAME.to_owned(),
        version: A::VERSION.to_owned(),
        interfaces: A::INTERFACES.to_vec(),
        entry: Entry::Table(c_entry::<A>()),
        options,
    };
    run(bench, &mut |_| {})
}

/// The same for a library that is known only by its entry. `watch` is told what happens, before and
/// after each rule: a library that ends the process has then shown at which one.
pub fn check_library(
    manifest: &Manifest,
    entry: LoadedEntry,
    options: Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> Report {
    check_entry(manifest, Entry::Table(entry.0), options, watch)
}

/// The same for an adapter that is no library.
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
    };
    run(bench, watch)
}

/// What [`check_library`] does just now.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A rule is about to be looked at.
    Begins {
        /// The part of the contract.
        area: &'static str,
        /// What must be so.
        rule: &'static str,
    },
    /// It was.
    Ended(&'a Row),
}

fn run(bench: Bench, watch: &mut dyn FnMut(Step<'_>)) -> Report {
    let rows = CHECKS
        .iter()
        .map(|&(area, rule, check)| {
            watch(Step::Begins { area, rule });
            let outcome = match check(&bench) {
                Ok(()) => Outcome::Passed,
                Err(outcome) => outcome,
            };
            let row = Row {
                area,
                rule,
                outcome,
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

/// `Ok` or why not: [`Outcome::Failed`] or [`Outcome::NotChecked`].
type Check = fn(&Bench) -> Result<(), Outcome>;

const CHECKS: &[(&str, &str, Check)] = &[
    (
        "identity",
        "the manifest names provider, version, schema and interfaces",
        boundary::identity,
    ),
    (
        "capabilities",
        "the profile is the expected one, usable, and the same twice",
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
        "shutdown",
        "ends what runs and takes nothing new",
        living::shutdown,
    ),
    (
        "event listeners",
        "what declares streaming sends text while it runs",
        executing::streams_text,
    ),
    (
        "error isolation",
        "a listener that refuses, or is full for a while, breaks no execution",
        executing::refusing_sink,
    ),
    (
        "methods",
        "every required method answers, the event relay too",
        boundary::required_methods,
    ),
    (
        "methods",
        "declared interfaces answer, others are unsupported_op",
        boundary::interfaces,
    ),
    (
        "initialize",
        "refuses a broken configuration with an error",
        living::bad_config,
    ),
    ("initialize", "logs startup", living::logs_startup),
    (
        "execute",
        "the configured request ends well",
        executing::ends_well,
    ),
    (
        "execute",
        "keeps the time limit",
        executing::keeps_the_limit,
    ),
    (
        "execute",
        "returns token counts when it declares cost_tracking",
        executing::counts_tokens,
    ),
    (
        "execute",
        "a failure has status error and says what went wrong",
        executing::says_what_failed,
    ),
    (
        "execute",
        "ignores fields it does not know",
        executing::ignores_unknown_fields,
    ),
    (
        "execute",
        "two run at once when it declares more than one",
        executing::two_at_once,
    ),
    (
        "execute",
        "a call the bridge drops ends unanswered",
        executing::dropped_call,
    ),
    (
        "boundary",
        "garbage and unknown ops are errors, and the adapter lives on",
        boundary::garbage,
    ),
    (
        "registration",
        "the library loads and runs under BRIDGE_ADAPTERS",
        boundary::loads,
    ),
];

/// The rows of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The adapter's provider id.
    pub provider: String,
    /// One for each rule, in the contract's order.
    pub rows: Vec<Row>,
}

/// One rule and how it went.
#[derive(Clone, Debug)]
pub struct Row {
    /// The part of the contract.
    pub area: &'static str,
    /// What must be so.
    pub rule: &'static str,
    /// Whether it is.
    pub outcome: Outcome,
}

/// How a rule went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not, and this is what was seen.
    Failed(String),
    /// It could not be looked at, and this is why.
    NotChecked(String),
}

impl Report {
    /// Whether no rule failed.
    pub fn is_ok(&self) -> bool {
        !self
            .rows
            .iter()
            .any(|row| matches!(row.outcome, Outcome::Failed(_)))
    }

    /// Fails the test with the whole report when a rule failed.
    ///
    /// # Panics
    ///
    /// Then.
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
        } in &self.rows
        {
            match outcome {
                Outcome::Passed => writeln!(f, "  ok    {area}: {rule}")?,
                Outcome::Failed(seen) => writeln!(f, "  FAIL  {area}: {rule}\n        {seen}")?,
                Outcome::NotChecked(why) => writeln!(f, "  -     {area}: {rule} ({why})")?,
            }
        }
        Ok(())
    }
}
