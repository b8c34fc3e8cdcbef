//! `forge-bridge dev`: a bridge for development. Reads no configuration file unless one is named, uses a temporary
//! store unless a folder is named, allows callbacks to this machine and runs on a sample repository, and fails if an
//! adapter does not load.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;
use forge_adapter_api::folder::TempFolder;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{Client, Target};
use super::sample::Sample;
use super::screen::{Screen, Tone, rough, text};
use super::serve::{self, Signals};
use super::sink::{Callback, Sink};
use super::{Context, Environment, INTERRUPTED, tail};
use crate::app;
use crate::config::{Config, File, Loaded, Sources};
use crate::telemetry;
use forge_external::config::AuthMode;

/// Characters of an output on the line about a callback.
const LONGEST_OUTPUT: usize = 100;
/// Name of the temporary folders.
const TEMPORARY: &str = "bridge";
/// Preferred port of the receiver, next to the bridge's default, so that commands in the README can be copied.
const RECEIVER_PORT: u16 = 7421;

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let folder = temporary()?;
    let environment = environment(&context.environment, folder.path());
    let sources = Sources {
        file: match &context.global.config {
            Some(path) => File::At(path.clone()),
            None => File::Nowhere,
        },
        environment: environment.clone(),
    };
    let Loaded {
        mut config,
        warnings,
        ..
    } = sources.load()?;
    // Plain HTTP: the traffic stays on this machine.
    config.tls = Default::default();
    if config.listen.ip().is_loopback() && !config.auth.has_tokens() {
        // Without a token every caller of an external service would be anonymous.
        config.external.auth = AuthMode::DevHeaders;
    }
    let runtime = serve::runtime()?;
    let logs = telemetry::install(&config.log)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let sample = Sample::create(&environment, folder.path()).and_then(|sample| {
        sample.allow(&mut config);
        sample.url()
    });
    let sample = sample.inspect_err(|error| tracing::warn!("no sample repository: {error:#}"));
    let options = app::Options {
        dropped_log_lines: logs.dropped(),
        ..app::Options::new(environment)
    };
    let code = runtime.block_on(until_stopped(context, config, options, sample.ok()));
    runtime.shutdown_background();
    code
}

/// Folder for the files of `dev` and `demo`. Removes those that killed ones left behind.
pub(super) fn temporary() -> anyhow::Result<TempFolder> {
    TempFolder::remove_leftovers(TEMPORARY);
    TempFolder::create(TEMPORARY).context("cannot create a temporary folder")
}

fn environment(own: &Environment, folder: &Path) -> Environment {
    let mut environment = own.clone();
    let is_set = |name: &str| own.get(name).is_some_and(|value| !value.is_empty());
    let folder = folder.display();
    if !is_set("BRIDGE_DATA_DIR") {
        environment.insert("BRIDGE_DATA_DIR".to_owned(), format!("{folder}/data"));
        // A database would keep what is to be gone with the folder.
        environment.insert("BRIDGE_STORE".to_owned(), "sqlite:".to_owned());
        if !is_set("BRIDGE_SECRET_KEY_FILE") {
            let file = format!("{folder}/secret.key");
            environment.insert("BRIDGE_SECRET_KEY_FILE".to_owned(), file);
        }
    }
    let allow = match own
        .get("BRIDGE_CALLBACK_ALLOW")
        .filter(|text| !text.is_empty())
    {
        Some(others) => format!("{others},loopback"),
        None => "loopback".to_owned(),
    };
    environment.insert("BRIDGE_CALLBACK_ALLOW".to_owned(), allow);
    environment.insert("BRIDGE_STRICT".to_owned(), "true".to_owned());
    // No router sends dispatches here, so the drain need not keep accepting them.
    if !is_set("BRIDGE_DRAIN_ACCEPT") {
        environment.insert("BRIDGE_DRAIN_ACCEPT".to_owned(), "0s".to_owned());
    }
    environment
}

async fn until_stopped(
    context: &Context,
    config: Config,
    options: app::Options,
    sample: Option<String>,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let (tracker, shutdown) = (TaskTracker::new(), CancellationToken::new());
    let mut sink = Sink::start(RECEIVER_PORT, &tracker, shutdown.clone()).await?;
    // With tokens configured, the calls below need one: the first of the list.
    let tokens = options.environment.get("BRIDGE_TOKENS").cloned();
    let token = tokens.and_then(|list| list.split(',').next().map(|first| first.trim().to_owned()));
    let bridge = Box::pin(app::Bridge::start(config, options)).await?;
    let screen = context.screen();
    let base = format!("http://{}", bridge.addr);
    let showing = async {
        greet(context, &screen, &base, token, &sink, sample).await?;
        while let Some(callback) = sink.next().await {
            show(context, &screen, &callback)?;
        }
        anyhow::Ok(ExitCode::SUCCESS)
    };
    // A failure to show something, such as a closed pipe, stops the bridge like a signal.
    let shown = tokio::select! {
        shown = showing => shown,
        () = signals.next() => Ok(ExitCode::SUCCESS),
    };
    let stopping = async {
        bridge.stop().await;
        shutdown.cancel();
        tracker.close();
        tracker.wait().await;
    };
    tokio::select! {
        () = stopping => shown,
        () = signals.next() => Ok(ExitCode::from(INTERRUPTED)),
    }
}

async fn greet(
    context: &Context,
    screen: &Screen,
    base: &str,
    token: Option<String>,
    sink: &Sink,
    sample: Option<String>,
) -> anyhow::Result<()> {
    let client = Client::new(base, token.clone())?;
    let answer = client.get(Target::path(&["api", "v2", "adapters"])).await?;
    let authorization = match token {
        Some(_) => " -H \"Authorization: Bearer $BRIDGE_TOKEN\"",
        None => "",
    };
    let body = json!({
        "taskId": "t-1", "agentId": "me", "message": "Hello", "model": "stream:3",
        "callbackUrl": sink.url(),
    });
    let curl = format!(
        "curl {base}/api/v2/dispatch{authorization} -H 'Content-Type: application/json' -d '{body}'"
    );
    if context.global.json {
        screen.value_line(&json!({
            "url": base, "callbackUrl": sink.url(), "adapters": answer["adapters"], "curl": curl,
            "repoUrl": sample,
        }))?;
        return Ok(());
    }
    screen.line(format_args!(
        "bridge    {}",
        screen.paint(Tone::Strong, base)
    ))?;
    screen.line(format_args!("console   {base}/"))?;
    for adapter in answer["adapters"].as_array().into_iter().flatten() {
        screen.line(plugin_line(screen, adapter))?;
    }
    screen.line(format_args!("receiver  {}", sink.url()))?;
    if let Some(url) = &sample {
        screen.line(format_args!("sample    {url}, a repository for runs"))?;
    }
    screen.line("")?;
    screen.line("Try:")?;
    screen.line(screen.paint(Tone::Name, &curl))?;
    screen.line(screen.paint(
        Tone::Name,
        format_args!("curl -N {base}/api/v2/events{authorization}"),
    ))?;
    if let Some(url) = sample {
        let program = std::env::args().next();
        let program = program.as_deref().unwrap_or("forge-bridge");
        screen.line(screen.paint(
            Tone::Name,
            format_args!("{program} --url {base} runs start {url} --message hello"),
        ))?;
    }
    screen.line("")?;
    Ok(())
}

/// Formats name, health, file, age and digest of an adapter, enough to identify the file just built.
fn plugin_line(screen: &Screen, adapter: &Value) -> String {
    let path = text(adapter, "/path");
    let built = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
    let age = match built.map(|at| SystemTime::now().duration_since(at)) {
        Ok(Ok(age)) => format!("built {} ago", rough(age.as_secs())),
        Ok(Err(_)) => "built in the future".to_owned(),
        Err(_) => "of unknown age".to_owned(),
    };
    let digest = text(adapter, "/digest");
    let digest = digest.strip_prefix("sha256:").unwrap_or(&digest);
    let short = digest.get(..12).unwrap_or(digest);
    format!(
        "adapter   {}, {}  {}",
        text(adapter, "/provider"),
        text(adapter, "/health/status"),
        screen.paint(Tone::Quiet, format_args!("{path}, {age}, sha256 {short}")),
    )
}

fn show(context: &Context, screen: &Screen, callback: &Callback) -> std::io::Result<()> {
    let body: Value = serde_json::from_slice(&callback.body).unwrap_or(Value::Null);
    if context.global.json {
        return screen.value_line(&body);
    }
    let tone = match body["status"] == "ok" {
        true => Tone::Good,
        false => Tone::Bad,
    };
    let said = match body["status"] == "ok" {
        true => text(&body, "/output")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "),
        false => text(&body, "/errorCode"),
    };
    screen.line(format_args!(
        "callback  {}  task {}  {}  {}",
        callback.header("webhook-id").unwrap_or("-"),
        text(&body, "/taskId"),
        screen.paint(tone, text(&body, "/status")),
        screen.paint(Tone::Quiet, tail::shortened(&said, LONGEST_OUTPUT)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_folder_is_used_and_loopback_is_allowed() {
        let own = [
            ("BRIDGE_DATA_DIR", "/d"),
            ("BRIDGE_CALLBACK_ALLOW", "a.example"),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let kept = environment(&own.into(), Path::new("/tmp/x"));
        assert_eq!(kept["BRIDGE_DATA_DIR"], "/d");
        assert_eq!(kept["BRIDGE_CALLBACK_ALLOW"], "a.example,loopback");
        assert!(!kept.contains_key("BRIDGE_SECRET_KEY_FILE"));

        let fresh = environment(&Environment::new(), Path::new("/tmp/x"));
        assert_eq!(fresh["BRIDGE_DATA_DIR"], "/tmp/x/data");
        assert_eq!(fresh["BRIDGE_STORE"], "sqlite:");
        assert_eq!(fresh["BRIDGE_SECRET_KEY_FILE"], "/tmp/x/secret.key");
        assert!(!fresh.contains_key("BRIDGE_PLUGIN_TRUST"), "{fresh:?}");
    }

    #[test]
    fn an_age_is_told_roughly() {
        for (seconds, told) in [
            (3, "3 s"),
            (300, "5 min"),
            (7_200, "2 h"),
            (200_000, "2 days"),
        ] {
            assert_eq!(rough(seconds), told);
        }
    }
}
