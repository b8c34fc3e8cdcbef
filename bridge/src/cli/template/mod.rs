//! `forge-bridge adapters new`: creates an adapter package that builds, passes its tests and serves, as a starting
//! point.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::Context;
use super::screen::Tone;

/// Language of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    Rust,
    Python,
    Node,
    C,
}

/// Path and content of each file. Those of the examples have the name of the example for `{{name}}`.
const RUST: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("Cargo.toml.txt")),
    ("README.md", include_str!("README.md.txt")),
    (".gitignore", "/target\n"),
    ("src/lib.rs", include_str!("lib.rs.txt")),
    ("src/tests.rs", include_str!("tests.rs.txt")),
];
const PYTHON: [(&str, &str); 2] = [
    ("README.md", include_str!("README-program.md.txt")),
    (
        "{{file}}",
        include_str!("../../../../plugins/examples/python-echo/forge-adapter-python-echo"),
    ),
];
const NODE: [(&str, &str); 2] = [
    ("README.md", include_str!("README-program.md.txt")),
    (
        "{{file}}",
        include_str!("../../../../plugins/examples/node-echo/forge-adapter-node-echo"),
    ),
];
const C: [(&str, &str); 3] = [
    ("README.md", include_str!("README-c.md.txt")),
    (
        "adapter.c",
        include_str!("../../../../plugins/examples/c-echo/adapter.c"),
    ),
    (
        "forge_adapter.h",
        include_str!("../../../../adapter-api/abi/forge_adapter.h"),
    ),
];

impl Language {
    fn files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Rust => &RUST,
            Self::Python => &PYTHON,
            Self::Node => &NODE,
            Self::C => &C,
        }
    }

    /// File that the bridge loads.
    fn product(self, name: &str) -> String {
        match self {
            Self::Rust | Self::C => library(name),
            Self::Python | Self::Node => program(name),
        }
    }

    /// Commands that build and check it, in its folder.
    fn steps(self, product: &str) -> Vec<String> {
        match self {
            Self::Rust => vec![
                "cargo test && cargo build --release".to_owned(),
                format!("forge-bridge adapters test target/release/{product} --slow-model slow"),
            ],
            Self::Python | Self::Node => vec![format!(
                "forge-bridge adapters test ./{product} --slow-model slow:60000 --failing-model fail"
            )],
            Self::C => vec![
                format!(
                    "cc -std=gnu11 -O2 -Wall -Wextra -shared -fPIC -pthread -o {product} adapter.c"
                ),
                format!("forge-bridge adapters test ./{product}"),
            ],
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the provider: lowercase letters, digits and hyphens
    name: String,
    /// Language: a library in Rust or C, or a program in Python or JavaScript without dependencies
    #[arg(long, value_enum, default_value = "rust")]
    lang: Language,
    /// Folder to create; forge-adapter-<NAME> when absent
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// For Rust: folder adapter-api of the bridge's sources; that of the archive or checkout with this program when absent, else the registry
    #[arg(long, value_name = "DIR")]
    api_path: Option<PathBuf>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let name = &arguments.name;
    check(name)?;
    let lang = arguments.lang;
    ensure!(
        lang == Language::Rust || arguments.api_path.is_none(),
        "--api-path is for adapters in Rust; leave it out"
    );
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(beside);
    let api = match arguments.api_path.as_ref().or(beside.as_ref()) {
        Some(path) => by_path(path)?,
        None => json!(version()).to_string(),
    };
    let folder = match &arguments.path {
        Some(path) => path.clone(),
        None => PathBuf::from(format!("forge-adapter-{name}")),
    };
    let product = lang.product(name);
    write(&folder, lang, &values(name, &api))?;

    let screen = context.screen();
    let folder = folder.display();
    if context.global.json {
        let kind = match lang {
            Language::Rust | Language::C => "library",
            Language::Python | Language::Node => "program",
        };
        let answer = json!({ "name": name, "path": folder.to_string(), kind: product });
        screen.value(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    screen.line(format_args!(
        "{}  {folder}",
        screen.paint(Tone::Strong, "written")
    ))?;
    screen.line(format_args!("  cd {folder}"))?;
    for step in lang.steps(&product) {
        screen.line(format_args!("  {step}"))?;
    }
    let marked = match lang {
        Language::Rust => "src/lib.rs",
        Language::C => "adapter.c",
        Language::Python | Language::Node => &product,
    };
    let rest =
        format!("README.md describes how to serve it, {marked} marks where to call your runtime");
    screen.line(screen.paint(Tone::Quiet, &rest))?;
    if lang == Language::Rust && arguments.api_path.is_none() && beside.is_none() {
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

/// Folder adapter-api of the archive or checkout that the program is from: beside it, or above its build folder.
fn beside(program: &Path) -> Option<PathBuf> {
    let folders = program.ancestors().skip(1).take(3);
    let mut found = folders.map(|folder| folder.join("adapter-api"));
    found.find(|folder| by_path(folder).is_ok())
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

fn program(name: &str) -> String {
    format!("forge-adapter-{name}")
}

/// Texts of the places to fill. An example stands for a template: its name is a place, too.
fn values(name: &str, api: &str) -> Vec<(String, String)> {
    let stem = stem(name);
    let mut values: Vec<(String, String)> = [
        ("{{name}}", name),
        ("{{NAME}}", &stem.to_uppercase()),
        ("{{stem}}", &stem),
        ("{{library}}", &library(name)),
        ("{{file}}", &program(name)),
        ("{{api}}", api),
        ("c_echo", &stem),
    ]
    .map(|(place, text)| (place.to_owned(), text.to_owned()))
    .into();
    values.extend(
        ["python-echo", "node-echo", "c-echo"].map(|place| (place.to_owned(), name.to_owned())),
    );
    values
}

/// Writes the files into a newly created folder, so that existing files are never overwritten.
fn write(folder: &Path, lang: Language, values: &[(String, String)]) -> anyhow::Result<()> {
    let failed = || format!("cannot create {}", folder.display());
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).with_context(failed)?;
    }
    DirBuilder::new().create(folder).with_context(failed)?;
    if lang == Language::Rust {
        fs::create_dir(folder.join("src")).with_context(failed)?;
    }
    for (file, text) in lang.files() {
        let path = folder.join(filled(file, values));
        let text = filled(text, values);
        // A program begins with the one that runs it.
        let mode = if text.starts_with("#!") { 0o777 } else { 0o666 };
        let mut options = OpenOptions::new();
        let created = options.write(true).create_new(true).mode(mode).open(&path);
        let written = created.and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn filled(text: &str, values: &[(String, String)]) -> String {
    let fill = |text: String, (place, value): &(String, String)| text.replace(place, value);
    values.iter().fold(text.to_owned(), fill)
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
        let values = values("acme-ai", "\"1\"");
        for lang in Language::value_variants() {
            for (file, text) in lang.files() {
                let filled = filled(text, &values);
                let left = ["{{", "_echo", "-echo"].map(|place| filled.contains(place));
                assert_eq!(left, [false; 3], "{file}");
            }
        }
    }

    #[test]
    fn the_packages_of_an_archive_and_of_a_checkout_are_found() {
        let home = tempfile::tempdir().unwrap();
        let program = |folder: &str| home.path().join(folder).join("forge-bridge");
        let api = home.path().join("adapter-api");
        fs::create_dir(&api).unwrap();
        assert_eq!(beside(&program("")), None, "another folder of that name");
        let manifest = "[package]\nname = \"forge-adapter-api\"\n";
        fs::write(api.join("Cargo.toml"), manifest).unwrap();
        for (folder, is_found) in [("", true), ("target/release", true), ("a/b/c", false)] {
            let found = is_found.then_some(&api);
            assert_eq!(beside(&program(folder)).as_ref(), found, "{folder}");
        }
    }

    #[test]
    fn what_is_there_is_not_touched() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("deep/forge-adapter-a");
        write(&folder, Language::Rust, &[]).unwrap();
        fs::write(folder.join("src/lib.rs"), "mine").unwrap();
        assert!(write(&folder, Language::Rust, &[]).is_err());
        assert_eq!(
            fs::read_to_string(folder.join("src/lib.rs")).unwrap(),
            "mine"
        );
    }
}
