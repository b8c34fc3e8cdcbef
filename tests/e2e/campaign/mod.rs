//! Hostile campaigns: each party that the bridge does not trust tries everything that it can think of, against a bridge with
//! the settings of the image and one with defaults. Nothing of the bridge or of others may be read or changed. An attempt has
//! an expectation of its own where it has an answer; the proof at the end is the same for all.

mod agent;
mod caller;
mod receiver;
mod repository;
mod server;
mod service;
mod setting;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use forge_base::digest::{hex, sha256};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{JsonBody as _, answer, owed, quiet, with};
use super::harness::process::{Home, Process};
use super::harness::{CallbackSink, until};
use setting::{Places, Setting};

/// Tokens: of the operator, of another caller, and of the attacker, with the scope `dispatch` alone.
const OPERATOR: &str = "canary-token-of-the-operator";
const OTHER: &str = "canary-token-of-another-caller";
const ATTACKER: &str = "token-of-the-attacker";

/// Texts of others: what a party received, or the log, must not contain.
const MESSAGE: &str = "canary-message-of-another-caller";
const BEARER: &str = "canary-bearer-of-another-receiver";
const SECRET: &str = "whsec_Y2FuYXJ5LXNpZ25pbmcta2V5LW9mLWFub3RoZXItcmVj";
const FILE: &str = "canary-of-a-file-of-others";
const COMMENT: &str = "canary-in-the-settings";
const PROVIDER_KEY: &str = "canary-key-of-a-provider";

/// Task and idempotency key of another caller.
const OTHERS_TASK: &str = "task-of-another";
const OTHERS_KEY: &str = "key-of-another";

/// Work on the folder of the bridge before its start.
type Prepare = Box<dyn FnOnce(&Path)>;

/// Needs of a campaign of its bridge.
#[derive(Default)]
struct Needs {
    /// Adapters besides `echo`.
    adapters: Vec<&'static str>,
    /// Entries of `callback.allow`.
    allow: Vec<String>,
    /// Further settings; `{opt}` is their folder.
    settings: String,
    /// Called with the folder of the settings before the start.
    prepare: Option<Prepare>,
    /// Certificate authorities that the machine trusts, in PEM.
    authorities: Option<String>,
}

/// A bridge under attack, and what was there before.
struct Campaign {
    party: &'static str,
    setting: Setting,
    home: Home,
    places: Places,
    bridge: Process,
    /// Receiver of another caller.
    others: CallbackSink,
    /// Service of the machine that no party may reach.
    inside: CallbackSink,
    /// Attempts so far.
    attempts: usize,
    /// Everything that the attacker received.
    received: Vec<u8>,
    /// Texts that the attacker and the log must not have.
    canaries: Vec<String>,
    files: BTreeMap<PathBuf, String>,
    records: BTreeMap<String, Value>,
    /// Dispatches of another caller: one that has ended, and one that runs.
    ended: String,
    running: String,
}

impl Campaign {
    /// Starts a bridge with work of another caller; `None` where the setting is impossible.
    async fn start(party: &'static str, setting: Setting, needs: Needs) -> Option<Self> {
        let (mut home, places) = setting::home(setting)?;
        let (others, inside) = (CallbackSink::start().await, CallbackSink::start().await);
        let mut allow = needs.allow;
        allow.push(others.address().to_string());
        home.set("BRIDGE_CALLBACK_ALLOW", &allow.join(","));
        let adapters = [&["echo"], &needs.adapters[..]].concat();
        home.set("BRIDGE_ADAPTERS", &adapters.join(","));
        home.set("COMMAND_API_KEY", PROVIDER_KEY);
        let settings = places.program().join("forge-bridge.toml");
        let more = needs
            .settings
            .replace("{opt}", &places.seen(&places.program()));
        let text = format!("# {COMMENT}\n{more}\n{}", tokens());
        private(&places, &settings, &text);
        if let Some(authorities) = needs.authorities {
            let file = places.program().join("authorities.pem");
            fs::write(&file, authorities).unwrap();
            home.set("SSL_CERT_FILE", &places.seen(&file));
        }
        if let Some(prepare) = needs.prepare {
            prepare(&places.program());
        }
        let secret = places.work().join("private");
        private(&places, &secret, FILE);
        let bridge = home.start();
        let mut campaign = Self {
            party,
            setting,
            canaries: canaries(&places),
            files: [settings, secret, places.key()]
                .map(|path| (path.clone(), fingerprint(&path)))
                .into(),
            home,
            places,
            bridge,
            others,
            inside,
            attempts: 0,
            received: Vec::new(),
            records: BTreeMap::new(),
            ended: String::new(),
            running: String::new(),
        };
        campaign.work_of_others().await;
        Some(campaign)
    }

    /// Lets another caller work: what it has must stay as it is.
    async fn work_of_others(&mut self) {
        let callback = json!({
            "message": MESSAGE, "sessionId": "session-of-another", "userId": "user-of-another",
            "callback": {"bearer": BEARER, "secret": SECRET}, "provider": "echo",
        });
        let url = self.others.url("/callback");
        let ended = with(owed(OTHERS_TASK, "ok", &url), &callback);
        self.ended = self.accepted(OTHER, Some(OTHERS_KEY), &ended).await;
        let running = with(
            quiet("running-task-of-another", "slow:3600000"),
            &json!({"message": MESSAGE, "provider": "echo"}),
        );
        self.running = self.accepted(OTHER, None, &running).await;
        let path = format!("/api/v2/dispatch/{}", self.ended);
        until("the callback of another caller", async || {
            let record = self.get(&path).await;
            let deliveries = record["deliveries"].as_array()?;
            (deliveries.first()?["status"] == "delivered").then_some(())
        })
        .await;
        let path = format!("/api/v2/dispatch/{}", self.running);
        until("the work of another caller", async || {
            (self.get(&path).await["status"] == "running").then_some(())
        })
        .await;
        self.records = self.records_of_others().await;
        // The search finds what it searches for.
        let text = self
            .records
            .values()
            .map(Value::to_string)
            .collect::<String>();
        assert!(
            found(&self.canaries, text.as_bytes()).contains(&MESSAGE),
            "{text}"
        );
    }

    async fn records_of_others(&self) -> BTreeMap<String, Value> {
        let mut records = BTreeMap::new();
        for id in [&self.ended, &self.running] {
            for part in ["", "/request", "/events?limit=1000&until=delivered"] {
                let path = format!("/api/v2/dispatch/{id}{part}");
                let mut record = self.get(&path).await;
                // The position of the whole log, which others extend.
                record.as_object_mut().unwrap().remove("nextCursor");
                records.insert(path, record);
            }
        }
        records
    }

    /// Posts a dispatch that must be accepted; returns its id.
    async fn accepted(&self, token: &str, key: Option<&str>, body: &Value) -> String {
        let request = self.bridge.api.request(Method::POST, "/api/v2/dispatch");
        let request = request.bearer_auth(token).json_body(body);
        let (status, accepted) = answer(match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        })
        .await;
        assert_eq!(status, StatusCode::ACCEPTED, "{accepted}");
        assert_eq!(accepted["duplicate"], false, "{accepted}");
        accepted["dispatchId"].as_str().unwrap().to_owned()
    }

    /// Gets a path as the operator.
    async fn get(&self, path: &str) -> Value {
        let request = self
            .bridge
            .api
            .request(Method::GET, path)
            .bearer_auth(OPERATOR);
        let (status, body) = answer(request.header("accept", "application/json")).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    /// Posts a body with a token.
    async fn post(&self, token: &str, path: &str, body: &Value) -> (StatusCode, Value) {
        let request = self.bridge.api.request(Method::POST, path);
        answer(request.bearer_auth(token).json_body(body)).await
    }

    /// Counts an attempt, and keeps what the attacker received.
    fn tried(&mut self, received: &[u8]) {
        self.attempts += 1;
        self.received.extend_from_slice(received);
        self.received.push(b'\n');
    }

    /// Asserts that nothing of the bridge or of others was read or changed, and that the bridge is well.
    async fn prove(self) {
        let what = format!("{}, {}", self.party, self.setting);
        let none: [&str; 0] = [];
        assert_eq!(found(&self.canaries, &self.received), none, "{what}");
        assert_eq!(
            self.inside.received().len(),
            0,
            "{what}: {:?}",
            self.inside.received()
        );
        let callbacks = self.others.received();
        assert_eq!(callbacks.len(), 1, "{what}: {callbacks:?}");
        let records = self.records_of_others().await;
        let changed = records
            .iter()
            .filter(|(path, record)| self.records.get(*path) != Some(record));
        let changed: Vec<_> = changed
            .map(|(path, record)| (path, record, &self.records[path]))
            .collect();
        assert!(changed.is_empty(), "{what}: {changed:#?}");
        for (path, before) in &self.files {
            assert_eq!(fingerprint(path), *before, "{what}: {}", path.display());
        }
        // Another caller is served, and its work can be ended.
        let after = with(quiet("after", "ok"), &json!({"provider": "echo"}));
        let id = self.accepted(OTHER, None, &after).await;
        let record = self.get(&format!("/api/v2/dispatch/{id}?wait=60")).await;
        assert_eq!(record["result"]["status"], "ok", "{what}: {record}");
        let path = format!("/api/v2/dispatch/{}/cancel", self.running);
        let request = self
            .bridge
            .api
            .request(Method::POST, &path)
            .bearer_auth(OTHER);
        let (status, cancelled) = answer(request).await;
        assert_eq!(
            (status, &cancelled["cancelled"]),
            (StatusCode::OK, &json!(true)),
            "{what}"
        );
        let record = self
            .get(&format!("/api/v2/dispatch/{}?wait=60", self.running))
            .await;
        assert_eq!(record["errorCode"], "cancelled", "{what}: {record}");
        let Self {
            bridge,
            home,
            canaries,
            attempts,
            ..
        } = self;
        bridge.terminate();
        assert!(bridge.ended().await.success(), "{what}");
        let log = home.log();
        assert_eq!(found(&canaries, log.as_bytes()), none, "{what}: {log}");
        let output = home.command().args(["store", "check"]).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{what}: {said}");
        counted(&what, attempts);
    }
}

#[expect(clippy::print_stdout, reason = "the count is in tests/README.md")]
fn counted(what: &str, attempts: usize) {
    println!("campaign: {what}: {attempts} attempts");
}

/// Writes a file that the user of the bridge alone can read.
fn private(places: &Places, path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    chown(path, Some(places.owner()), Some(places.owner())).unwrap();
}

/// Settings with the three tokens.
fn tokens() -> String {
    let entry = |name: &str, token: &str, scopes: &str| {
        let hash = hex(&sha256(token));
        format!("[[auth.token]]\nname = \"{name}\"\nhash = \"{hash}\"\nscopes = [{scopes}]\n")
    };
    let all = "\"dispatch\", \"read\", \"admin\"";
    [
        entry("operator", OPERATOR, all),
        entry("other", OTHER, "\"dispatch\""),
        entry("attacker", ATTACKER, "\"dispatch\""),
    ]
    .concat()
}

/// Content, owner and mode of a file.
fn fingerprint(path: &Path) -> String {
    let metadata = path
        .symlink_metadata()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let digest = hex(&sha256(fs::read(path).unwrap()));
    format!("{digest} {} {:o}", metadata.uid(), metadata.mode())
}

/// Texts of others: among them the key of a bridge that runs.
fn canaries(places: &Places) -> Vec<String> {
    let key = fs::read_to_string(places.key()).unwrap();
    let key = key.split_whitespace().last().unwrap();
    let bare = SECRET.strip_prefix("whsec_").unwrap();
    let texts = [
        MESSAGE,
        BEARER,
        bare,
        FILE,
        COMMENT,
        PROVIDER_KEY,
        OPERATOR,
        OTHER,
        key,
    ];
    texts.map(str::to_owned).into()
}

/// Texts that the bytes contain.
fn found<'a>(texts: &'a [String], bytes: &[u8]) -> Vec<&'a str> {
    let contains = |text: &&String| {
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    };
    texts.iter().filter(contains).map(String::as_str).collect()
}
