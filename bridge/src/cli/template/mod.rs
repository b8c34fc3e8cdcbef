//! `forge-bridge adapters new`: creates an adapter package that builds, passes its tests and serves, as a starting
//! point.

use std::fs::{self, DirBuilder, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use serde_json::json;

use super::Context;
use super::screen::Tone;

/// Path and content of each file.
const FILES: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("Cargo.toml.txt")),
    ("README.md", include_str!("README.md.txt")),
    (".gitignore", "/target\n"),
    ("src/lib.rs", include_str!("lib.rs.txt")),
    ("src/tests.rs", include_str!("tests.rs.txt")),
];

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the provider: lowercase letters, digits and hyphens
    name: String,
    /// Folder to create; forge-adapter-<NAME> when absent
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Folder adapter-api of the bridge's sources; the registry is used when absent
    #[arg(long, value_name = "DIR")]
    api_path: Option<PathBuf>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let name = &arguments.name;
    check(name)?;
    let api = match &arguments.api_path {
        Some(path) => by_path(path)?,
        None => json!(version()).to_string(),
    };
    let folder = match &arguments.path {
        Some(path) => path.clone(),
        None => PathBuf::from(format!("forge-adapter-{name}")),
    };
    let library = library(name);
    write(
        &folder,
        &[
            ("name", name),
            ("stem", &stem(name)),
            ("library", &library),
            ("api", &api),
        ],
    )?;

    let screen = context.screen();
    let folder = folder.display();
    if context.global.json {
        let answer = json!({ "name": name, "path": folder.to_string(), "library": library });
        screen.value(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    screen.line(format_args!(
        "{}  {folder}",
        screen.paint(Tone::Strong, "written")
    ))?;
    for step in [
        format!("cd {folder}"),
        "cargo test && cargo build --release".to_owned(),
        format!("forge-bridge adapters test target/release/{library}"),
    ] {
        screen.line(format_args!("  {step}"))?;
    }
    let rest = "README.md describes how to serve it, src/lib.rs marks where to call your runtime";
    screen.line(screen.paint(Tone::Quiet, rest))?;
    if arguments.api_path.is_none() {
        let note = "if no registry provides forge-adapter-api, pass its sources with --api-path";
        screen.line(screen.paint(Tone::Quiet, note))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that a name is valid for a package, a library and a provider at once.
fn check(name: &str) -> anyhow::Result<()> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    ensure!(
        (1..=64).contains(&name.len())
            && name.bytes().all(good)
            && name.as_bytes()[0].is_ascii_lowercase()
            && !name.ends_with('-'),
        "{name:?} is not a valid adapter name; expected 1 to 64 lowercase letters, digits and hyphens, \
         starting with a letter and not ending with a hyphen"
    );
    Ok(())
}

/// Version of the packages this bridge was built with.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn by_path(path: &Path) -> anyhow::Result<String> {
    let path = fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))?;
    let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
    if !manifest.contains("name = \"forge-adapter-api\"") {
        bail!(
            "{} does not hold the package forge-adapter-api",
            path.display()
        );
    }
    let path = path
        .to_str()
        .context("the path of forge-adapter-api is not UTF-8")?;
    // A JSON string is also a TOML string.
    Ok(format!("{{ path = {} }}", json!(path)))
}

fn stem(name: &str) -> String {
    name.replace('-', "_")
}

fn library(name: &str) -> String {
    let (start, end) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    format!("{start}forge_adapter_{}{end}", stem(name))
}

/// Writes the files into a newly created folder, so that existing files are never overwritten.
fn write(folder: &Path, values: &[(&str, &str)]) -> anyhow::Result<()> {
    let failed = || format!("cannot create {}", folder.display());
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).with_context(failed)?;
    }
    DirBuilder::new().create(folder).with_context(failed)?;
    fs::create_dir(folder.join("src")).with_context(failed)?;
    for (file, text) in FILES {
        let path = folder.join(file);
        let written = File::create_new(&path).and_then(|mut file| {
            let text = filled(text, values);
            file.write_all(text.as_bytes())
        });
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn filled(text: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{{{name}}}}}"), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_for_a_package_a_library_and_a_provider() {
        let long = "a".repeat(65);
        for (name, good) in [
            ("acme-ai", true),
            ("a1", true),
            ("", false),
            ("1a", false),
            ("-a", false),
            ("a-", false),
            ("a_b", false),
            ("Acme", false),
            ("../a", false),
            ("a b", false),
            (long.as_str(), false),
        ] {
            assert_eq!(check(name).is_ok(), good, "{name:?}");
        }
    }

    #[test]
    fn no_place_is_left_to_fill() {
        let values = ["name", "stem", "library", "api"].map(|name| (name, "x"));
        for (file, text) in FILES {
            assert!(!filled(text, &values).contains("{{"), "{file}");
        }
    }

    #[test]
    fn what_is_there_is_not_touched() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("deep/forge-adapter-a");
        write(&folder, &[]).unwrap();
        fs::write(folder.join("src/lib.rs"), "mine").unwrap();
        assert!(write(&folder, &[]).is_err());
        assert_eq!(
            fs::read_to_string(folder.join("src/lib.rs")).unwrap(),
            "mine"
        );
    }
}
