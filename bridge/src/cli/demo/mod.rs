//! `forge-bridge demo`: runs one dispatch end to end and prints each step: bridge, adapter, request, events and the
//! verified callback. Everything is temporary and removed afterwards.

mod run;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{Client, Target};
use super::sample::Sample;
use super::screen::{Screen, Tone, text};
use super::serve::Signals;
use super::sink::{Callback, Sink};
use super::stream::{Events, Query};
use super::{Context, Environment, FAILED, INTERRUPTED, dev, serve, tail};
use crate::app;
use crate::config::{Config, File, Sources};
use crate::telemetry;

/// Time limit of the demo. Echo needs less than a second; the rest is for real agents and loaded machines.
const DEADLINE: Duration = Duration::from_secs(60);

/// Default message for adapters other than echo: one tool call.
const TOOL_TASK: &str = "Run the command `echo hello from the other side` and say what it printed.";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Demonstrate a run on a sample repository, from the interview to a proved merge
    #[arg(long, conflicts_with_all = ["adapter", "model_url", "model", "message"])]
    run: bool,
    /// Adapter that runs the task
    #[arg(long, value_name = "NAME", default_value = "echo")]
    adapter: String,
    /// URL of the model for the adapter, in place of its provider's
    #[arg(long, value_name = "URL")]
    model_url: Option<String>,
    /// Model to use
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Message for the agent
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
}

impl Arguments {
    fn is_echo(&self) -> bool {
        self.adapter == "echo"
    }

    /// Body of the dispatch, without callback.
    fn task(&self) -> Value {
        let (message, model) = match self.is_echo() {
            true => ("Hello from the other side of the bridge", Some("stream:4")),
            false => (TOOL_TASK, None),
        };
        json!({
            "taskId": "demo-1",
            "agentId": "demo",
            "message": self.message.as_deref().unwrap_or(message),
            "model": self.model.as_deref().or(model),
        })
    }

    /// Adapter settings, added to the user's environment.
    fn settings(&self) -> Vec<(String, String)> {
        let key = |key: &str| {
            let id = self.adapter.to_uppercase().replace(['-', '.'], "_");
            format!("BRIDGE_ADAPTERS_{id}_{key}")
        };
        let mut settings = vec![("BRIDGE_ADAPTERS".to_owned(), self.adapter.clone())];
        if !self.is_echo() {
            settings.push((key("ALLOWED_TOOLS"), "Bash(echo:*)".to_owned()));
        }
        settings.extend(
            self.model_url
                .iter()
                .map(|url| (key("MODEL_URL"), url.clone())),
        );
        settings
    }
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let folder = dev::temporary()?;
    let environment = environment(&context.environment, arguments, folder.path())?;
    let sources = Sources {
        file: File::Nowhere,
        environment: environment.clone(),
    };
    let mut config = sources.load()?.config;
    let sample = match arguments.run {
        true => Some(Sample::create(&environment, folder.path())?),
        false => None,
    };
    if let Some(sample) = &sample {
        sample.allow(&mut config);
    }
    let runtime = serve::runtime()?;
    let logs = telemetry::install(&config.log)?;
    let options = app::Options {
        dropped_log_lines: logs.dropped(),
        ..app::Options::new(environment)
    };
    let code = runtime.block_on(show(context, arguments, sample.as_ref(), config, options));
    // Does not wait for work cut off by a second signal.
    runtime.shutdown_background();
    code
}

/// Environment of the demo's bridge: none of the user's bridge settings except plugin path and trust, and all
/// files in one folder.
fn environment(
    own: &Environment,
    arguments: &Arguments,
    folder: &Path,
) -> anyhow::Result<Environment> {
    let ours = |name: &str| {
        (name.starts_with("BRIDGE_") && name != "BRIDGE_PLUGIN_TRUST") || name == "GATEWAY_PROVIDER"
    };
    let mut environment: Environment = own
        .iter()
        .filter(|(name, _)| !ours(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let plugins = match own.get("BRIDGE_PLUGIN_PATH") {
        Some(path) => path.clone(),
        None => beside_the_binary()?.display().to_string(),
    };
    let folder = folder.display();
    let settings = [
        ("BRIDGE_LISTEN", "127.0.0.1:0".to_owned()),
        // Its address can be that of another bridge.
        ("BRIDGE_SIGNALS_LISTEN", "off".to_owned()),
        ("BRIDGE_DATA_DIR", format!("{folder}/data")),
        ("BRIDGE_SECRET_KEY_FILE", format!("{folder}/secret.key")),
        ("BRIDGE_PLUGIN_PATH", plugins),
        ("BRIDGE_STRICT", "true".to_owned()),
        ("BRIDGE_CALLBACK_ALLOW", "loopback".to_owned()),
        ("BRIDGE_DRAIN_ACCEPT", "0s".to_owned()),
        ("BRIDGE_LOG_LEVEL", "error".to_owned()),
        // No other client sends dispatches to this bridge.
        ("BRIDGE_DRAIN_ACCEPT", "0s".to_owned()),
    ];
    environment.extend(settings.map(|(name, value)| (name.to_owned(), value)));
    environment.extend(arguments.settings());
    Ok(environment)
}

/// Folder of this program or `plugins` in it, whichever holds the echo adapter.
pub(super) fn beside_the_binary() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let library = format!(
        "{}forge_adapter_echo{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    let folders = [folder.to_owned(), folder.join("plugins")];
    let found = folders
        .into_iter()
        .find(|folder| folder.join(&library).is_file());
    found.with_context(|| {
        format!(
            "{library} is not in {} and not in `plugins` there: unpack a release archive, or run `cargo build \
             --release` in the sources (`cargo run` alone builds no adapters)",
            folder.display()
        )
    })
}

async fn show(
    context: &Context,
    arguments: &Arguments,
    sample: Option<&Sample>,
    config: Config,
    options: app::Options,
) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let interrupted = Ok(ExitCode::from(INTERRUPTED));
    let mut signals = Signals::listen()?;
    let (tracker, shutdown) = (TaskTracker::new(), CancellationToken::new());
    let mut sink = Sink::start(0, &tracker, shutdown.clone()).await?;
    let starting = Box::pin(app::Bridge::start(config, options));
    let Some(bridge) = unless_interrupted(&mut signals, starting).await? else {
        return interrupted;
    };
    let stage = Stage {
        screen: context.screen(),
        url: format!("http://{}", bridge.addr),
        json: context.global.json,
    };
    let playing = Box::pin(async {
        match sample {
            Some(sample) => stage.play_run(sample).await,
            None => stage.play(arguments.task(), &mut sink).await,
        }
    });
    let played = unless_interrupted(&mut signals, playing).await;
    let stopping = Box::pin(async {
        bridge.stop().await;
        shutdown.cancel();
        tracker.close();
        tracker.wait().await;
        Ok(())
    });
    let stopped = unless_interrupted(&mut signals, stopping).await?;
    let (Some(record), Some(())) = (played?, stopped) else {
        return interrupted;
    };
    let failure = failure(&record);
    if stage.json {
        stage.screen.value(&record)?;
    } else if let Some((what, reason)) = &failure {
        let what = stage.screen.paint(Tone::Bad, what);
        stage.say("")?;
        stage.say(format_args!("{what}: {reason}"))?;
    } else {
        // Shown as it was called, since it might not be in PATH.
        let program = std::env::args().next();
        let program = program.as_deref().unwrap_or("forge-bridge");
        stage.say("")?;
        stage.say(format_args!(
            "Done in {:.1} s; nothing is left behind. To try it yourself: {}",
            started.elapsed().as_secs_f64(),
            stage
                .screen
                .paint(Tone::Strong, format_args!("{program} dev")),
        ))?;
    }
    Ok(match failure {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::from(FAILED),
    })
}

/// Result of work within the time limit; `None` if a signal comes first.
async fn unless_interrupted<T>(
    signals: &mut Signals,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Option<T>> {
    let worked = tokio::select! {
        worked = tokio::time::timeout(DEADLINE, work) => worked,
        () = signals.next() => return Ok(None),
    };
    worked
        .with_context(|| format!("the demo did not end within {DEADLINE:?}"))?
        .map(Some)
}

/// Sentence about a demo that was played to its end but did not succeed, with the reason.
fn failure(record: &Value) -> Option<(&'static str, String)> {
    let result = &record["callback"]["body"];
    if record["run"].is_null() {
        let reason = format!(
            "{} ({})",
            text(result, "/error"),
            text(result, "/errorCode")
        );
        return (result["status"] != "ok").then_some(("The dispatch failed", reason));
    }
    let is_proved = record["merge"].is_object() && record["verify"]["ok"] == true;
    let reason = text(record, "/run/error");
    (!is_proved).then_some(("The run has no proved merge", reason))
}

/// Output of the demo and address of its bridge.
struct Stage {
    screen: Screen,
    url: String,
    json: bool,
}

impl Stage {
    async fn play(&self, mut dispatch: Value, sink: &mut Sink) -> anyhow::Result<Value> {
        let client = Client::new(&self.url, None)?;
        self.introduce(&client, ("receiver", &sink.url())).await?;

        let secret = format!("whsec_{}", BASE64.encode(rand::random::<[u8; 32]>()));
        dispatch["callbackUrl"] = sink.url().into();
        dispatch["callback"] = json!({ "secret": secret });
        self.scene(2, "POST /api/v2/dispatch")?;
        self.block(&dispatch)?;
        let accepted = client
            .post(Target::path(&["api", "v2", "dispatch"]), &dispatch)
            .await?;
        self.say("   202 Accepted: stored on disk; from now on the bridge owes a callback")?;
        self.block(&accepted)?;

        let id = text(&accepted, "/dispatchId");
        self.scene(3, &format!("GET /api/v2/dispatch/{id}/events"))?;
        let events = self.events(client, &id).await?;

        let callback = sink.next().await.context("no callback arrived")?;
        self.scene(4, "The callback, as its receiver sees it")?;
        let callback = self.callback(&callback, &secret)?;
        Ok(json!({
            "dispatch": dispatch, "accepted": accepted, "events": events, "callback": callback,
        }))
    }

    /// Shows the version, the bridge with its adapters, and one thing more.
    async fn introduce(&self, client: &Client, (name, other): (&str, &str)) -> anyhow::Result<()> {
        self.say(format_args!(
            "{} {}",
            self.screen.paint(Tone::Strong, "forge-bridge"),
            env!("CARGO_PKG_VERSION"),
        ))?;
        self.scene(1, &format!("A bridge, an adapter, a {name}"))?;
        let answer = client.get(Target::path(&["api", "v2", "adapters"])).await?;
        self.say(format_args!("   bridge      {}", self.url))?;
        for adapter in answer["adapters"].as_array().into_iter().flatten() {
            self.say(format_args!(
                "   adapter     {}, {}, from {}",
                text(adapter, "/provider"),
                text(adapter, "/health/status"),
                text(adapter, "/path"),
            ))?;
        }
        self.say(format_args!("   {name:<11} {other}"))?;
        Ok(())
    }

    async fn events(&self, client: Client, id: &str) -> anyhow::Result<Vec<Value>> {
        let path = ["api", "v2", "dispatch", id, "events"];
        let query = Query {
            path: path.map(str::to_owned).to_vec(),
            filter: vec![("until".to_owned(), "delivered".to_owned())],
            after: None,
        };
        let mut stream = Events::new(client, query);
        let mut events = Vec::new();
        while let Some(event) = stream.next().await? {
            self.say(format_args!("   {}", tail::line(&self.screen, &event)))?;
            if event["type"] == "callback.dead" {
                bail!("the callback is a dead letter: {}", text(&event, "/data"));
            }
            events.push(event);
        }
        Ok(events)
    }

    fn callback(&self, callback: &Callback, secret: &str) -> anyhow::Result<Value> {
        let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
        for name in names {
            let value = callback.header(name).unwrap_or("-");
            self.say(format_args!(
                "   {}: {value}",
                self.screen.paint(Tone::Quiet, name)
            ))?;
        }
        let body: Value =
            serde_json::from_slice(&callback.body).context("the callback's body is not JSON")?;
        self.block(&body)?;
        if !callback.is_signed_with(secret) {
            bail!("the signature of the callback does not match its body and secret");
        }
        let verdict = self.screen.paint(Tone::Good, "valid signature");
        self.say(format_args!(
            "   {verdict}: HMAC-SHA256 over id, timestamp and body"
        ))?;
        let headers: serde_json::Map<String, Value> = names
            .iter()
            .filter_map(|&name| Some((name.to_owned(), callback.header(name)?.into())))
            .collect();
        Ok(json!({ "headers": headers, "body": body, "verified": true }))
    }

    fn scene(&self, number: u8, title: &str) -> std::io::Result<()> {
        self.say("")?;
        self.say(
            self.screen
                .paint(Tone::Strong, format_args!("{number}  {title}")),
        )
    }

    fn block(&self, value: &Value) -> std::io::Result<()> {
        for line in format!("{value:#}").lines() {
            self.say(format_args!("   {}", self.screen.paint(Tone::Quiet, line)))?;
        }
        Ok(())
    }

    fn say(&self, line: impl std::fmt::Display) -> std::io::Result<()> {
        match self.json {
            true => Ok(()),
            false => self.screen.line(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_takes_no_settings_of_the_reader_but_the_plugin_path() {
        let own = [
            ("BRIDGE_LISTEN", "0.0.0.0:1"),
            ("BRIDGE_TOKENS", "t"),
            ("GATEWAY_PROVIDER", "acme"),
            ("BRIDGE_PLUGIN_PATH", "/p"),
            ("PATH", "/bin"),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let arguments = Arguments {
            run: false,
            adapter: "acme-ai".to_owned(),
            model_url: Some("http://127.0.0.1:1".to_owned()),
            model: None,
            message: None,
        };
        let environment = environment(&own.into(), &arguments, Path::new("/tmp/x")).unwrap();
        assert_eq!(environment["BRIDGE_ADAPTERS"], "acme-ai");
        assert_eq!(
            environment["BRIDGE_ADAPTERS_ACME_AI_MODEL_URL"],
            "http://127.0.0.1:1"
        );
        assert_eq!(environment["BRIDGE_LISTEN"], "127.0.0.1:0");
        assert_eq!(environment["BRIDGE_PLUGIN_PATH"], "/p");
        assert_eq!(environment["BRIDGE_DATA_DIR"], "/tmp/x/data");
        assert_eq!(environment["PATH"], "/bin");
        assert!(!environment.contains_key("BRIDGE_TOKENS"));
        assert!(!environment.contains_key("GATEWAY_PROVIDER"));
    }
}
