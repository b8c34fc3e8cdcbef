//! The image and the compose file of `config/deploy`, as far as they say how a bridge runs.

use std::collections::BTreeMap;
use std::fs;

use super::library::root;

/// Settings of the image, read from its files, so that tests run with them and not with a copy.
pub(crate) struct Image {
    /// Variables of `ENV`.
    pub(crate) variables: BTreeMap<String, String>,
    /// Users that are created: name, number and home.
    pub(crate) users: Vec<(String, u32, String)>,
    /// Folders that are created, with their modes.
    pub(crate) folders: Vec<(String, u32)>,
    pub(crate) working_folder: String,
    /// Capabilities of the container.
    pub(crate) capabilities: Vec<String>,
    /// File systems in memory, with their options.
    pub(crate) temporary: Vec<String>,
    /// Security options of the container.
    pub(crate) security: Vec<String>,
    pub(crate) is_read_only: bool,
}

impl Image {
    pub(crate) fn read() -> Self {
        Self::of("compose.yaml")
    }

    /// The image as this compose file runs it.
    pub(crate) fn of(compose: &str) -> Self {
        let folder = root().join("config/deploy");
        let file = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        Self::parse(&file("Dockerfile"), &file(compose))
    }

    fn parse(dockerfile: &str, compose: &str) -> Self {
        let mut image = Self {
            variables: BTreeMap::new(),
            users: Vec::new(),
            folders: Vec::new(),
            working_folder: String::new(),
            capabilities: list(compose, "cap_add"),
            temporary: list(compose, "tmpfs"),
            security: list(compose, "security_opt"),
            is_read_only: compose.lines().any(|line| line.trim() == "read_only: true"),
        };
        assert_eq!(list(compose, "cap_drop"), ["ALL"]);
        for instruction in last_stage(dockerfile) {
            let (word, rest) = instruction.split_once(' ').unwrap();
            match word {
                "ENV" => {
                    let pairs = rest
                        .split_whitespace()
                        .map(|pair| pair.split_once('=').unwrap());
                    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
                    image.variables.extend(pairs);
                }
                "WORKDIR" => rest.clone_into(&mut image.working_folder),
                "RUN" => rest.split("&&").for_each(|command| image.created(command)),
                _ => {}
            }
        }
        image
    }

    /// Notes a user or a folder that this command creates.
    fn created(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let after = |option: &str| {
            let at = words.iter().position(|word| *word == option)?;
            words.get(at + 1).copied()
        };
        let last = words.last().map(|word| (*word).to_owned());
        match words.first() {
            Some(&"useradd") => {
                let id = after("--uid").unwrap().parse().unwrap();
                let home = after("--home-dir").unwrap().to_owned();
                self.users.push((last.unwrap(), id, home));
            }
            Some(&"install") => {
                let mode = u32::from_str_radix(after("-m").unwrap(), 8).unwrap();
                self.folders.push((last.unwrap(), mode));
            }
            _ => {}
        }
    }
}

/// Instructions of the stage that is shipped, without comments, one on each line.
fn last_stage(dockerfile: &str) -> Vec<String> {
    let lines = dockerfile.lines().filter(|line| !line.starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let mut stage = Vec::new();
    for line in joined.lines().filter(|line| !line.trim().is_empty()) {
        if line.starts_with("FROM ") {
            stage.clear();
        }
        stage.push(line.to_owned());
    }
    stage
}

/// Entries of a list in YAML.
fn list(text: &str, name: &str) -> Vec<String> {
    let begin = format!("{name}:");
    let lines = text.lines().map(str::trim);
    let after = lines.skip_while(|line| *line != begin).skip(1);
    let entries = after.filter(|line| !line.starts_with('#'));
    let entries = entries.map_while(|line| line.strip_prefix("- "));
    entries.map(str::to_owned).collect()
}
