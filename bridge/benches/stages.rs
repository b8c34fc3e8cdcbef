//! Benchmarks of the stages of a dispatch, each alone. `cargo bench -p forge-bridge` measures their time.
//! `--do <stage> <times>` only runs one stage, for a tool that counts its instructions;
//! `tests/measure/instructions.py` compares the count with a baseline.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::Duration;

use criterion::Criterion;
use forge_adapter_api::{CostTier, HealthStatus, LatencyProfile, OutputStrategy, Profile};
use forge_base::id::{DeliveryId, DispatchId};
use forge_base::json;
use forge_base::vault::Vault;
use forge_delivery as delivery;
use forge_delivery::sign::{Message, Signer};
use forge_dispatch as dispatch;
use forge_dispatch::accumulator::Accumulator;
use forge_dispatch::assemble::{self, assemble};
use forge_dispatch::idempotency;
use forge_dispatch::normalise::{Ending, Raw, Subject, normalise};
use forge_dispatch::request::{DispatchRequest, Prompt};
use forge_dispatch::route::{Candidate, Policy, route};
use forge_dispatch::validate::{Envelope, Limits, validate};
use jiff::Timestamp;
use secrecy::SecretSlice;
use serde_json::Value;
use serde_json::value::RawValue;

const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn main() {
    let bench = Bench::new();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, stage, times] = arguments.as_slice()
        && flag == "--do"
    {
        let (_, work) = STAGES
            .iter()
            .find(|(name, _)| name == stage)
            .expect("a stage of this name");
        for _ in 0..times.parse().expect("a number of times") {
            work(&bench);
        }
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    for (name, work) in STAGES {
        criterion.bench_function(name, |bencher| bencher.iter(|| work(&bench)));
    }
    criterion.final_summary();
}

type Stage = (&'static str, fn(&Bench));

const STAGES: [Stage; 7] = [
    ("read", |bench| drop(black_box(json::parse(&bench.text)))),
    ("validate", |bench| drop(black_box(bench.validated()))),
    ("record", |bench| {
        black_box(idempotency::record(&bench.dispatch));
    }),
    ("route", Bench::route),
    ("assemble", Bench::assemble),
    ("normalise", |bench| drop(black_box(bench.normalised()))),
    ("sign", Bench::sign),
];

/// Input of the stages: a dispatch of about one KiB.
struct Bench {
    text: Vec<u8>,
    body: Value,
    dispatch: DispatchRequest,
    prompt: Prompt,
    config: dispatch::Config,
    profile: Profile,
    signer: Signer,
}

impl Bench {
    fn new() -> Self {
        let text = format!(
            r#"{{"taskId":"bench-1","agentId":"bench","message":"{}","model":"ok","provider":"echo","callbackUrl":"https://example.com/callback","runId":"run-bench","priority":0,"timeout":600}}"#,
            "lorem ipsum ".repeat(50)
        );
        let text = text.into_bytes();
        let body = json::parse(&text).expect("the body is JSON");
        let config = dispatch::Config::default();
        let dispatch = validated(&body, &config);
        let prompt = dispatch.clone().take_prompt();
        let vault = Vault::from_key(&SecretSlice::from(vec![7; 32])).expect("32 bytes are a key");
        let delivery = delivery::Config {
            secrets: vec![SECRET.to_owned().into()],
            ..delivery::Config::default()
        };
        let signer = Signer::with_sealed(&delivery, None, &vault).expect("the secret is one");
        let profile = Profile {
            capabilities: vec!["streaming".to_owned()],
            native_tools: Vec::new(),
            max_concurrent: 10,
            output_strategies: vec![OutputStrategy::Stream],
            options: Vec::new(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Fast,
        };
        Self {
            text,
            body,
            dispatch,
            prompt,
            config,
            profile,
            signer,
        }
    }

    fn validated(&self) -> DispatchRequest {
        validated(&self.body, &self.config)
    }

    fn route(&self) {
        let candidate = Candidate {
            provider: "echo",
            profile: Some(&self.profile),
            health: HealthStatus::Healthy,
            message: None,
            paused: false,
            running: 1,
            queued: 0,
            max_concurrent: 10,
            has_agent: None,
            away_for: None,
        };
        let policy = Policy {
            default_provider: None,
            offline_grace: Duration::from_secs(60),
        };
        let routed = route(&self.dispatch, &[candidate], &policy).expect("echo can do it");
        black_box(routed.decision.stored());
    }

    fn assemble(&self) {
        let attempt = assemble::Attempt {
            id: DispatchId::from_bytes([1; 16]),
            number: 1,
            now: Timestamp::UNIX_EPOCH,
            strategy: OutputStrategy::Stream,
            session_honoured: false,
            recorded_session: None,
            budget_left: None,
            mcp_servers: &BTreeMap::new(),
            mcp_required: true,
            signals: None,
        };
        let request = assemble(&self.dispatch, self.prompt.clone(), &attempt)
            .expect("it names no MCP server");
        black_box(serde_json::to_vec(&request).expect("a request is JSON"));
    }

    fn normalised(&self) -> Box<RawValue> {
        let answer = format!(
            r#"{{"status":"ok","output":"{}","usage":{{"inputTokens":100,"outputTokens":100}},"model":"ok"}}"#,
            self.dispatch.message
        );
        let raw = Raw {
            ending: Ending::Answered(answer.into_bytes()),
            file: None,
            output_files: Vec::new(),
            accumulator: Accumulator::new(None, self.config.output_limit_bytes),
        };
        let subject = Subject {
            id: DispatchId::from_bytes([1; 16]),
            dispatch: &self.dispatch,
            provider: "echo",
            attempt: 1,
            retry_of: None,
            strategy: OutputStrategy::Stream,
            session: None,
            started_at: Some(Timestamp::UNIX_EPOCH),
            completed_at: Timestamp::UNIX_EPOCH,
            elapsed: Duration::from_millis(1),
        };
        normalise(&raw, &subject, &self.config).result
    }

    fn sign(&self) {
        let message = Message {
            origin: "https://example.com:443",
            id: DeliveryId::from_bytes([1; 16]),
            timestamp: 1_700_000_000,
            body: &self.text,
        };
        black_box(self.signer.sign(message, None));
    }
}

fn validated(body: &Value, config: &dispatch::Config) -> DispatchRequest {
    let limits = Limits {
        is_step: false,
        config,
        mcp_servers: &BTreeSet::new(),
        external: &|name| Err(format!("unknown service {name:?}")),
        callback: &|_| Ok(()),
    };
    let valid = validate(body, &Envelope::default(), &limits).expect("the body is valid");
    valid.dispatch
}
