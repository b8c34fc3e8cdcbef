//! Checks of the folder of an adapter that is to be submitted: its README, manifest and tests, and its behaviour.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use forge_signals::record::Hook;
use serde::Deserialize;
use tokio::process::Command;
use url::Url;

use super::super::Context;
use super::adapter;
use super::report::{Check, Report};
use super::run::Subject;

const TESTS: Duration = Duration::from_secs(300);

/// `forg-adapter.json`, as its schema describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    #[serde(rename = "$schema")]
    _schema: Option<String>,
    name: String,
    version: String,
    hooks: Vec<String>,
    command: Vec<String>,
    test: Vec<String>,
}

pub(super) async fn check(
    context: &Context,
    folder: &Path,
    timeout: Duration,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let folder = fs::canonicalize(folder);
    let folder = folder.context("cannot read the folder of the package")?;
    let seed = "001: A README with prerequisites, installation, and configuration steps";
    let check = Check::new("package-readme", seed, "the README has these sections");
    report.hold(&check, readme(&folder))?;
    let manifest = manifest(&folder);
    let seed = "001: A forg-adapter.json manifest with name, version, and supported hooks";
    let check = Check::new("package-manifest", seed, "the manifest follows its schema");
    report.hold(&check, manifest.as_ref().err().cloned())?;
    let Ok(manifest) = manifest else {
        return Ok(());
    };
    let seed = "001: Tests that verify signal shape and HMAC authentication";
    let check = Check::new("package-tests", seed, "tests name the signature, and pass");
    if report.wants(&check.id) {
        let problem = tests(context, &folder, &manifest.test).await?;
        report.hold(&check, problem)?;
    }
    let subject = Subject {
        adapter: manifest.name,
        command: manifest.command,
        folder: Some(folder),
        endpoint: Url::parse("http://127.0.0.1:0").expect("a constant"),
        timeout,
        environment: context.environment.clone(),
    };
    adapter::check(&subject, report).await?;
    let problem = match report.failed("fail-open-") {
        (0, _) => return Ok(()),
        (all, failed) => (failed > 0).then(|| format!("{failed} of {all} checks failed")),
    };
    let seed = "001: Fail-open behavior when the FORG agent is unreachable";
    let check = Check::new("package-fail-open", seed, "the checks `fail-open-…` pass");
    report.hold(&check, problem)
}

fn readme(folder: &Path) -> Option<String> {
    let Ok(text) = fs::read_to_string(folder.join("README.md")) else {
        return Some("there is no README.md".to_owned());
    };
    let headings: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(str::to_lowercase)
        .collect();
    let wanted = ["prerequisites", "installation", "configuration"];
    let missing = wanted
        .into_iter()
        .filter(|part| !headings.iter().any(|heading| heading.contains(part)));
    let missing = Vec::from_iter(missing).join(", ");
    (!missing.is_empty()).then(|| format!("headings are missing: {missing}"))
}

fn manifest(folder: &Path) -> Result<Manifest, String> {
    let bytes = fs::read(folder.join("forg-adapter.json"))
        .map_err(|error| format!("forg-adapter.json: {error}"))?;
    let manifest: Manifest =
        serde_json::from_slice(&bytes).map_err(|error| format!("forg-adapter.json: {error}"))?;
    super::identifier(&manifest.name).map_err(|wanted| format!("name: {wanted}"))?;
    let plain = manifest
        .version
        .split(['-', '+'])
        .next()
        .unwrap_or_default();
    let numbers = plain.split('.').filter(|part| part.parse::<u32>().is_ok());
    if numbers.count() != 3 || plain.split('.').count() != 3 {
        return Err("version: wanted three numbers, such as 1.0.0".to_owned());
    }
    if let Some(hook) = manifest
        .hooks
        .iter()
        .find(|hook| Hook::named(hook).is_none())
    {
        return Err(format!("hooks: {hook} is unknown"));
    }
    match manifest.command.is_empty() || manifest.test.is_empty() {
        true => Err("command, test: wanted a program and its arguments".to_owned()),
        false => Ok(manifest),
    }
}

/// Runs the adapter's own tests.
async fn tests(
    context: &Context,
    folder: &Path,
    words: &[String],
) -> anyhow::Result<Option<String>> {
    if !names_signature(folder, 0, false) {
        return Ok(Some(
            "no file with `test` in its path names the signature".to_owned(),
        ));
    }
    let [program, arguments @ ..] = words else {
        return Ok(Some("the manifest names no tests".to_owned()));
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .envs(&context.environment)
        .kill_on_drop(true);
    let ended = tokio::time::timeout(TESTS, command.output()).await;
    let Ok(output) = ended else {
        return Ok(Some(format!("{program} did not end within {TESTS:?}")));
    };
    let output = output.with_context(|| format!("cannot start {program}"))?;
    Ok((!output.status.success()).then(|| {
        let text = String::from_utf8_lossy(&output.stderr);
        format!(
            "{program}: {}: {}",
            output.status,
            text.lines().last().unwrap_or_default()
        )
    }))
}

/// True if a file with `test` in its name, or in that of its folder, contains `sha256=`. Looks three folders deep.
fn names_signature(folder: &Path, depth: usize, inside: bool) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_lowercase();
        let inside = inside || name.contains("test");
        match path.is_dir() {
            true => {
                depth < 3 && name != "node_modules" && names_signature(&path, depth + 1, inside)
            }
            false => inside && fs::read_to_string(&path).is_ok_and(|text| text.contains("sha256=")),
        }
    })
}
