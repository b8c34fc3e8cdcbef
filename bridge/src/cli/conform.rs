//! `forge-bridge adapters test`: checks a library file against the rules of the adapter boundary, one line per rule.
//! The library runs in a child process, so that a crash or hang is reported and does not end the test.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use forge_adapter_api::conformance::{Input, Options, Outcome, Step};
use forge_adapter_api::{ExecutionRequest, HealthStatus};
use serde_json::{Map, Value, json};

use super::screen::{Tone, text};
use super::{Context, FAILED, checklist};
use crate::app;

/// Maximum time without progress, many times the wait of a rule; then the child is killed.
const SILENCE: Duration = Duration::from_secs(90);
/// Exit code of `--strict`.
const NOT_TESTED: u8 = 2;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Library or program, named libforge_adapter_<name>.so or forge-adapter-<name>
    file: PathBuf,
    /// Setting, as in the table [adapters.<name>]; can be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, Value)>,
    /// Model of requests that must succeed
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Model that takes longer than ten seconds
    #[arg(long, value_name = "NAME")]
    slow_model: Option<String>,
    /// Model that fails
    #[arg(long, value_name = "NAME")]
    failing_model: Option<String>,
    /// Model that fails now and can succeed later
    #[arg(long, value_name = "NAME")]
    transient_model: Option<String>,
    /// Model that withdraws text of its answer
    #[arg(long, value_name = "NAME")]
    retracting_model: Option<String>,
    /// Model that answers with the media types of attachments
    #[arg(long, value_name = "NAME")]
    attaching_model: Option<String>,
    /// Model that takes longer than ten seconds unless it is steered, and answers with the message
    #[arg(long, value_name = "NAME")]
    steerable_model: Option<String>,
    /// Setting that the adapter must reject
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    bad: Option<(String, Value)>,
    /// Expect degraded, not healthy, without any setting
    #[arg(long)]
    needs_settings: bool,
    /// Exit with 2 if cancellation, the time limit, failures or a declared capability was not tested
    #[arg(long)]
    strict: bool,
    /// Runs the checks in this process (internal)
    #[arg(long, hide = true)]
    inside: bool,
}

/// Parses KEY=VALUE; the value is JSON if it parses as such, else text.
fn setting(argument: &str) -> Result<(String, Value), String> {
    let (key, value) = argument
        .split_once('=')
        .ok_or_else(|| format!("{argument:?} is not KEY=VALUE"))?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok((key.to_owned(), value))
}

impl Arguments {
    fn options(&self) -> Options {
        let defaults = Options::default();
        let with_model = |model: &Option<String>| ExecutionRequest {
            model: model.clone(),
            ..ExecutionRequest::sample("a message of the conformance checks")
        };
        let some = |model: &Option<String>| model.is_some().then(|| with_model(model));
        let config: Map<String, Value> = self.settings.iter().cloned().collect();
        Options {
            bad_config: self.bad.clone().map(|(key, value)| {
                let mut config = config.clone();
                config.insert(key, value);
                Value::Object(config)
            }),
            config: Value::Object(config),
            health_without_config: match self.needs_settings {
                true => HealthStatus::Degraded,
                false => HealthStatus::Healthy,
            },
            request: with_model(&self.model),
            slow: some(&self.slow_model),
            failing: some(&self.failing_model),
            transient: some(&self.transient_model),
            retracting: some(&self.retracting_model),
            attaching: some(&self.attaching_model),
            steerable: some(&self.steerable_model),
            ..defaults
        }
    }
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match arguments.inside {
        true => inside(context, arguments),
        false => outside(context, arguments),
    }
}

/// Runs the checks and prints each step as a line of JSON.
fn inside(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let screen = context.screen();
    let mut told = Ok(());
    let mut watch = |step: Step<'_>| {
        let line = match step {
            Step::Begins { area, rule } => json!({ "area": area, "rule": rule }),
            Step::Ended(row) => {
                let mut line = json!({ "area": row.area, "rule": row.rule });
                line["outcome"] = match &row.outcome {
                    Outcome::Passed => "ok",
                    Outcome::Failed(_) => "failed",
                    Outcome::NotChecked(_) | Outcome::NoInput(_) => "unchecked",
                }
                .into();
                line["seen"] = match &row.outcome {
                    Outcome::Passed => Value::Null,
                    Outcome::Failed(seen) | Outcome::NotChecked(seen) => seen.as_str().into(),
                    Outcome::NoInput(input) => {
                        format!("not tested without {}", flag(*input)).into()
                    }
                };
                if let Outcome::NoInput(input) = row.outcome {
                    line["needs"] = flag(input).into();
                    line["required"] = input.is_required().into();
                }
                if let Some(sent) = &row.sent {
                    line["sent"] = sent.as_str().into();
                }
                line
            }
        };
        told = screen.value_line(&line);
    };
    app::conform::conform(&arguments.file, arguments.options(), &mut watch)?;
    told?;
    Ok(ExitCode::SUCCESS)
}

fn outside(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let screen = context.screen();
    let quiet = context.global.json;
    if !quiet {
        let file = arguments.file.display();
        screen.line(format_args!(
            "{}  {file}",
            screen.paint(Tone::Strong, "adapters test")
        ))?;
    }
    let mut rows = Vec::new();
    let mut begun = Value::Null;
    let mut child = start(context)?;
    let lines = lines(&mut child)?;
    let end = loop {
        match lines.recv_timeout(SILENCE) {
            Ok(line) => {
                let step: Value = serde_json::from_str(&line).context("an unreadable step")?;
                if step["outcome"].is_null() {
                    begun = step;
                    continue;
                }
                begun = Value::Null;
                if !quiet {
                    checklist::row(&screen, &title(&step), &step)?;
                }
                rows.push(step);
            }
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                break Some(format!(
                    "the library did not return within {SILENCE:?} and was killed"
                ));
            }
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    let status = child.wait()?;
    let end = end.or_else(|| {
        let signal = status.signal()?;
        Some(format!("the library ended its process: signal {signal}"))
    });
    if let Some(seen) = end {
        begun["outcome"] = "failed".into();
        begun["seen"] = seen.into();
        if !quiet {
            checklist::row(&screen, &title(&begun), &begun)?;
        }
        rows.push(begun);
    } else if rows.is_empty() {
        // The child has reported on standard error why the library was not loaded.
        return Ok(ExitCode::from(FAILED));
    }
    let verdict = checklist::verdict(context, "rules", &rows)?;
    if !quiet {
        for (needs, areas) in untested(&rows) {
            let is_required = |row: &Value| row["needs"] == needs && row["required"] == true;
            let remark = match arguments.strict && rows.iter().any(is_required) {
                true => ", which --strict requires",
                false => "",
            };
            let line = format!("{}: not tested without {needs}{remark}", areas.join(", "));
            screen.line(screen.paint(Tone::Quiet, line))?;
        }
    }
    let is_incomplete = rows.iter().any(|row| row["required"] == true);
    Ok(
        match arguments.strict && is_incomplete && verdict == ExitCode::SUCCESS {
            true => ExitCode::from(NOT_TESTED),
            false => verdict,
        },
    )
}

/// Missing arguments, with the areas that were not tested for want of them.
fn untested(rows: &[Value]) -> Vec<(&str, Vec<&str>)> {
    let mut untested: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in rows {
        let (Some(needs), Some(area)) = (row["needs"].as_str(), row["area"].as_str()) else {
            continue;
        };
        match untested.iter_mut().find(|(known, _)| *known == needs) {
            Some((_, areas)) if areas.contains(&area) => {}
            Some((_, areas)) => areas.push(area),
            None => untested.push((needs, vec![area])),
        }
    }
    untested
}

/// The argument that gives this input.
fn flag(input: Input) -> &'static str {
    match input {
        Input::Slow => "--slow-model",
        Input::Failing => "--failing-model",
        Input::Transient => "--transient-model",
        Input::Retracting => "--retracting-model",
        Input::Attaching => "--attaching-model",
        Input::Steerable => "--steerable-model",
        Input::BadConfig => "--bad",
        Input::Secret => "--set of a secret such as api_key",
    }
}

/// Starts this command again as a child, with the same arguments and `--inside`.
fn start(context: &Context) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    let mut command = Command::new(program);
    command
        .args(std::env::args_os().skip(1))
        .arg("--inside")
        .env_clear()
        .envs(&context.environment)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
        .spawn()
        .context("cannot start the process that loads the library")
}

fn lines(child: &mut Child) -> anyhow::Result<mpsc::Receiver<String>> {
    let Some(stdout) = child.stdout.take() else {
        bail!("the process that loads the library has no standard output");
    };
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("steps".to_owned())
        .spawn(move || {
            let lines = BufReader::new(stdout).lines();
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        })?;
    Ok(receiver)
}

fn title(row: &Value) -> String {
    format!("{}: {}", text(row, "/area"), text(row, "/rule"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_json_where_it_can_be() {
        for (argument, key, value) in [
            ("a=1", "a", json!(1)),
            ("a=b=c", "a", json!("b=c")),
            ("KEY=sk-1", "KEY", json!("sk-1")),
            ("l=[\"x\"]", "l", json!(["x"])),
        ] {
            assert_eq!(setting(argument), Ok((key.to_owned(), value)));
        }
        assert!(setting("a").is_err());
    }
}
