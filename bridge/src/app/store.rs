//! The store that the settings name: a file in `data_dir`, or a PostgreSQL database that this bridge is a node of.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use secrecy::{ExposeSecret, SecretString};

use crate::config::Config;
use forge_store::Store;
use forge_store_postgres::peek::{Peek, Report};
use forge_store_postgres::{Postgres, Target};
use forge_store_sqlite::Sqlite;

use super::node::Node;

const SETTING: &str = "store.url (BRIDGE_STORE)";
/// Shortest lease: each third of it renews it.
const SHORTEST_LEASE: Duration = Duration::from_secs(3);
/// Shortest standstill that is no ordinary pause of a busy disk.
const SHORTEST_STALL: Duration = Duration::from_secs(1);
/// Limit for reading the file of the password.
const MAX_PASSWORD_BYTES: u64 = 4096;

/// Place of the record.
pub(super) enum Location {
    /// Folder of the SQLite file.
    Folder(PathBuf),
    Database(Box<Target>),
}

impl Location {
    pub(super) fn of(config: &Config) -> anyhow::Result<Self> {
        if config.store.stall < SHORTEST_STALL {
            bail!(
                "store.stall is shorter than {SHORTEST_STALL:?}, in which a busy disk might not answer"
            );
        }
        let url = config.store.url.as_ref().map(ExposeSecret::expose_secret);
        match url {
            None | Some("sqlite:") => Ok(Self::Folder(config.data_dir.clone())),
            Some(url) if is_postgres(url) => {
                let target = target(config, url).context(SETTING)?;
                if config.store.lease < SHORTEST_LEASE {
                    bail!(
                        "store.lease is shorter than {SHORTEST_LEASE:?}, in which a busy machine might not answer"
                    );
                }
                Ok(Self::Database(Box::new(target)))
            }
            Some(_) => bail!(
                "{SETTING} names no store: write sqlite: for a file in data_dir, or postgres://user@host:port/database"
            ),
        }
    }
}

/// A database by its URL, with the password of the settings if the URL has none.
pub(super) fn target(config: &Config, url: &str) -> anyhow::Result<Target> {
    let password = password(config)?;
    let password = password.as_ref().map(ExposeSecret::expose_secret);
    Ok(Target::new(url, password)?)
}

fn is_postgres(url: &str) -> bool {
    ["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
}

/// Password for a URL without one: that of the file, otherwise that of the environment.
fn password(config: &Config) -> anyhow::Result<Option<SecretString>> {
    let Some(path) = &config.store.password_file else {
        return Ok(config.store.password.clone());
    };
    let (text, mode) =
        read(path).with_context(|| format!("store.password_file {}", path.display()))?;
    if mode & 0o027 != 0 {
        bail!(
            "store.password_file {path} can be read or changed by others (mode {mode:o}); run: chmod 600 {path}",
            path = path.display()
        );
    }
    Ok(Some(text.trim_end_matches(['\r', '\n']).into()))
}

fn read(path: &Path) -> std::io::Result<(String, u32)> {
    let file = File::open(path)?;
    let mode = file.metadata()?.mode() & 0o777;
    let mut text = String::new();
    file.take(MAX_PASSWORD_BYTES).read_to_string(&mut text)?;
    Ok((text, mode))
}

/// Open store, and this bridge in it.
pub(super) struct Opened {
    pub(super) store: Arc<dyn Store>,
    /// Id that the processes of this bridge carry: that of the node, with SQLite that of the store.
    pub(super) owner: String,
    /// Lock of `data_dir`; that of SQLite is held by its store.
    pub(super) node: Option<Node>,
}

pub(super) async fn open(config: &Config) -> anyhow::Result<Opened> {
    match Location::of(config)? {
        Location::Folder(folder) => {
            let config = config.store.clone();
            let opened = tokio::task::spawn_blocking(move || Sqlite::open(&config, &folder));
            let store: Arc<dyn Store> = Arc::new(opened.await??);
            Ok(Opened {
                owner: store.store_id().to_owned(),
                store,
                node: None,
            })
        }
        Location::Database(target) => {
            let folder = config.data_dir.clone();
            let node = tokio::task::spawn_blocking(move || Node::open(&folder)).await??;
            let opened = Postgres::open(&config.store, *target, &node.id).await;
            Ok(Opened {
                store: Arc::new(opened.context(SETTING)?),
                owner: node.id.clone(),
                node: Some(node),
            })
        }
    }
}

/// A named sealed value, also while bridges use the store.
pub(super) async fn peek_sealed(
    config: &Config,
    name: &'static str,
) -> anyhow::Result<Option<Vec<u8>>> {
    match Location::of(config)? {
        Location::Folder(folder) => {
            let peek = move || Sqlite::peek_sealed(&folder, name);
            Ok(tokio::task::spawn_blocking(peek).await??)
        }
        Location::Database(target) => Ok(peek(&target).await?.sealed(name).await?),
    }
}

/// Number of sealed values by the first bytes, which identify their key.
pub(super) async fn sealed_heads(config: &Config) -> anyhow::Result<BTreeMap<Vec<u8>, u64>> {
    match Location::of(config)? {
        Location::Folder(folder) => {
            let heads = move || Sqlite::sealed_heads(&folder);
            Ok(tokio::task::spawn_blocking(heads).await??)
        }
        Location::Database(target) => Ok(peek(&target).await?.sealed_heads().await?),
    }
}

/// State of the database; `None` if the store is a file.
pub(super) async fn report(config: &Config) -> anyhow::Result<Option<Report>> {
    match Location::of(config)? {
        Location::Folder(_) => Ok(None),
        Location::Database(target) => {
            let report = peek(&target).await?.report().await;
            Ok(Some(report.context(SETTING)?))
        }
    }
}

async fn peek(target: &Target) -> anyhow::Result<Peek> {
    Postgres::peek(target).await.context(SETTING)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn located(url: Option<&str>) -> Result<Location, String> {
        let mut config = Config::default();
        config.store.url = url.map(Into::into);
        Location::of(&config).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn the_url_says_where_the_store_is() {
        for url in [None, Some("sqlite:")] {
            assert!(matches!(located(url), Ok(Location::Folder(_))), "{url:?}");
        }
        for url in ["postgres://a@b/c", "postgresql://a:hush@b:5433,d/c"] {
            assert!(
                matches!(located(Some(url)), Ok(Location::Database(_))),
                "{url}"
            );
        }
        for (url, expected) in [
            ("", "write sqlite: for a file"),
            ("sqlite:/a/hush.db", "write sqlite: for a file"),
            (
                "mysql://a:hush@b/c",
                "or postgres://user@host:port/database",
            ),
            ("postgres://a:hush@b", "names no database: postgres://"),
            ("postgres://a:hush@b:x/c", "is not one of PostgreSQL"),
        ] {
            let Err(error) = located(Some(url)) else {
                panic!("{url} was accepted");
            };
            assert!(error.starts_with(SETTING), "{error}");
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn a_lease_lasts_at_least_three_seconds() {
        let mut config = Config::default();
        config.store.url = Some("postgres://a@b/c".into());
        config.store.lease = Duration::from_millis(2999);
        let Err(error) = Location::of(&config) else {
            panic!("a lease of 3 s at least");
        };
        assert!(error.to_string().contains("shorter than 3s"), "{error}");
    }

    #[test]
    fn a_stall_lasts_at_least_a_second() {
        let mut config = Config::default();
        config.store.stall = Duration::from_millis(999);
        let Err(error) = Location::of(&config) else {
            panic!("a stall of 1 s at least");
        };
        assert!(error.to_string().contains("shorter than 1s"), "{error}");
    }

    #[test]
    fn the_password_is_that_of_the_file_or_else_of_the_variable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let mut config = Config::default();
        let text = |config: &Config| {
            let found = password(config).map_err(|error| format!("{error:#}"))?;
            Ok::<_, String>(found.map(|text| text.expose_secret().to_owned()))
        };
        assert_eq!(text(&config), Ok(None));
        config.store.password = Some("variable".into());
        assert_eq!(text(&config), Ok(Some("variable".to_owned())));
        config.store.password_file = Some(file.clone());
        assert!(text(&config).unwrap_err().contains("store.password_file"));
        std::fs::write(&file, " of the file\n").unwrap();
        for (mode, is_closed) in [(0o644, false), (0o660, false), (0o640, true), (0o600, true)] {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let found = text(&config);
            match is_closed {
                true => assert_eq!(found, Ok(Some(" of the file".to_owned()))),
                false => assert!(found.unwrap_err().contains("chmod 600"), "{mode:o}"),
            }
        }
    }
}
