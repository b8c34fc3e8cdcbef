//! Adapter of the tests: an execution lasts until the test ends it or it is cancelled.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use forge_adapter_api::profile::SchemaRange;
use forge_adapter_api::{
    AdapterError, CostTier, ExecutionResult, Health, LatencyProfile, Manifest, OutputStrategy,
    Profile,
};
use forge_plugin_host::BuiltIn;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;

pub(super) const PROVIDER: &str = "probe";

type Answer = Result<Vec<u8>, AdapterError>;

pub(super) struct Probe {
    slots: u32,
    is_offline: AtomicBool,
    begun: AtomicUsize,
    cancelled: AtomicUsize,
    /// Answer of all executions, once there is one.
    answer: watch::Sender<Option<Answer>>,
}

impl Probe {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots,
            is_offline: AtomicBool::new(false),
            begun: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
            answer: watch::Sender::new(None),
        }
    }

    /// Number of executions that have begun.
    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Number of cancellations.
    pub(super) fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::SeqCst)
    }

    pub(super) fn set_offline(&self) {
        self.is_offline.store(true, Ordering::SeqCst);
    }

    /// Ends the executions, also those that begin later.
    pub(super) fn answer(&self, answer: Result<&str, AdapterError>) {
        let answer = answer.map(|output| json(&ExecutionResult::ok(output)));
        self.answer.send_replace(Some(answer));
    }

    /// Lets executions last that begin from now on.
    pub(super) fn last(&self) {
        self.answer.send_replace(None);
    }

    fn execute(&self) -> BoxFuture<'static, Answer> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answer.subscribe();
        async move {
            let answer = answers.wait_for(Option::is_some).await;
            let answer = answer.ok().and_then(|answer| answer.clone());
            answer.unwrap_or_else(|| Err(AdapterError::new("gone", "the test has ended")))
        }
        .boxed()
    }
}

impl BuiltIn for Probe {
    fn manifest(&self) -> Manifest {
        Manifest {
            name: PROVIDER.to_owned(),
            version: "1.0.0".to_owned(),
            provider: PROVIDER.to_owned(),
            schema: SchemaRange { min: 1, max: 1 },
            interfaces: vec!["execution@1".to_owned()],
            env: Vec::new(),
            panic: "unwind".to_owned(),
        }
    }

    fn is_listed(&self) -> bool {
        true
    }

    fn call(&self, op: &str, _payload: Vec<u8>) -> BoxFuture<'static, Answer> {
        let health = || match self.is_offline.load(Ordering::SeqCst) {
            true => Health::offline("it is away"),
            false => Health::healthy(),
        };
        let answer = match op {
            "execute" => return self.execute(),
            "initialize" | "shutdown" => Ok(json(&json!({}))),
            "capabilities" => Ok(json(&Profile {
                capabilities: Vec::new(),
                native_tools: Vec::new(),
                max_concurrent: self.slots,
                output_strategies: vec![OutputStrategy::Stream],
                options: Vec::new(),
                cost_tier: CostTier::Low,
                latency_profile: LatencyProfile::Fast,
            })),
            "health" => Ok(json(&health())),
            "cancel" => {
                self.cancelled.fetch_add(1, Ordering::SeqCst);
                Ok(json(&json!({ "cancelled": true })))
            }
            _ => Err(AdapterError::new("unsupported_op", op)),
        };
        ready(answer).boxed()
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("the answer has only text keys")
}
