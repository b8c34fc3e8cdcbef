//! Test setup: bridges in this process and in separate ones, and their client.

pub(crate) mod api;
pub(crate) mod browser;
pub(crate) mod image;
pub(crate) mod library;
pub(crate) mod port;
pub(crate) mod process;
pub(crate) mod reference;
pub(crate) mod registry;
pub(crate) mod socket;
pub(crate) mod store;
pub(crate) mod wait;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forge_bridge::app::{self, Options};
use forge_bridge::config::{Config, File, Loaded, Sources};
use tempfile::TempDir;

pub(crate) use api::Api;
pub(crate) use forge_test_support::callback::{Answer, CallbackSink};
pub(crate) use wait::until;

/// Folder of this build's adapter libraries: that of the test binary.
pub(crate) fn plugins() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().to_owned()
}

/// Settings of a test bridge, as environment variables: all files below `home`, callbacks to loopback allowed, short
/// drain.
pub(crate) fn settings(home: &Path) -> BTreeMap<String, String> {
    let database = store::from_environment(home);
    let home = home.display();
    let mut settings: BTreeMap<_, _> = [
        ("HOME", home.to_string()),
        ("BRIDGE_LISTEN", "127.0.0.1:0".to_owned()),
        ("BRIDGE_SIGNALS_LISTEN", "127.0.0.1:0".to_owned()),
        ("BRIDGE_DATA_DIR", format!("{home}/data")),
        ("BRIDGE_SECRET_KEY_FILE", format!("{home}/secret.key")),
        ("BRIDGE_PLUGIN_PATH", plugins().display().to_string()),
        ("BRIDGE_ADAPTERS", "echo".to_owned()),
        ("BRIDGE_CALLBACK_ALLOW", "loopback".to_owned()),
        ("BRIDGE_DRAIN_ACCEPT", "0s".to_owned()),
        ("BRIDGE_DRAIN_GRACE", "5s".to_owned()),
        ("BRIDGE_DISPATCH_WORKSPACE_ROOTS", format!("{home}/work")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    settings.extend(database.map(|url| ("BRIDGE_STORE".to_owned(), url)));
    settings
}

/// Loads a configuration from this file and these variables; asserts that there are no warnings.
fn config(file: PathBuf, environment: &BTreeMap<String, String>) -> Config {
    let sources = Sources {
        file: File::At(file),
        environment: environment.clone(),
    };
    let Loaded {
        config, warnings, ..
    } = sources.load().unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    config
}

/// A bridge in this process.
pub(crate) struct Bridge {
    pub(crate) app: Option<app::Bridge>,
    pub(crate) api: Api,
    pub(crate) home: TempDir,
}

impl Bridge {
    /// Starts a bridge with the echo adapter and defaults.
    pub(crate) async fn start() -> Self {
        Self::with(&[]).await
    }

    /// Starts a bridge with additional variables.
    pub(crate) async fn with(variables: &[(&str, &str)]) -> Self {
        Self::configured("", variables).await
    }

    /// Starts a bridge with a configuration file and additional variables.
    pub(crate) async fn configured(file: &str, variables: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("work")).unwrap();
        Self::at(home, file, variables).await
    }

    /// Stops the bridge and starts another one in the same home, with another configuration.
    pub(crate) async fn restarted(self, file: &str, variables: &[(&str, &str)]) -> Self {
        let Self { app, home, .. } = self;
        Box::pin(app.unwrap().stop()).await;
        Self::at(home, file, variables).await
    }

    async fn at(home: TempDir, file: &str, variables: &[(&str, &str)]) -> Self {
        let path = home.path().join("forge-bridge.toml");
        std::fs::write(&path, file).unwrap();
        let mut environment = settings(home.path());
        // The default is the running program, but the test binary has no supervisor.
        let supervisor = env!("CARGO_BIN_EXE_forge-bridge").to_owned();
        environment.insert("BRIDGE_PROCESS_SUPERVISOR".to_owned(), supervisor);
        environment.extend(
            variables
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned())),
        );
        let config = config(path, &environment);
        let starting = Box::pin(app::Bridge::start(config, Options::new(environment)));
        let app = starting.await.unwrap();
        let api = Api::new(app.url());
        Self {
            app: Some(app),
            api,
            home,
        }
    }

    /// Stops the bridge; fails the test if a result is still owed.
    pub(crate) async fn stop(mut self) {
        let app = self.app.take().unwrap();
        let counts = app.store.counts();
        assert_eq!(
            (counts.running, counts.queued),
            (0, 0),
            "dispatches are left behind"
        );
        assert_eq!(counts.deliveries_pending, 0, "deliveries are left behind");
        Box::pin(app.stop()).await;
    }
}
