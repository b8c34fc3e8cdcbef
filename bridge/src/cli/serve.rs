//! `forge-bridge serve`: runs the bridge until SIGTERM or SIGINT.

use std::process::ExitCode;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Context, INTERRUPTED};
use crate::app::{Bridge, Options};
use crate::config::{Config, Loaded, Sources};
use crate::telemetry::{self, Logs};
use forge_base::tasks;

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let sources = context.sources();
    let Loaded {
        config,
        file,
        warnings,
    } = sources.load()?;
    let runtime = runtime()?;
    let settings = Settings {
        sources,
        logs: telemetry::install(&config.log)?,
    };
    if let Some(file) = file {
        tracing::info!("settings from {}", file.display());
    }
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let options = Options {
        dropped_log_lines: settings.logs.dropped(),
        ..Options::new(context.environment.clone())
    };
    let code = runtime.block_on(until_stopped(&settings, config, options));
    // Does not wait for work cut off by a second signal.
    runtime.shutdown_background();
    code
}

/// Runtime of a bridge. From here on, a write beyond a file size limit fails like one to a full disk; without a handler
/// its signal kills the process. A handler, because children would inherit that the signal is ignored.
pub(super) fn runtime() -> std::io::Result<Runtime> {
    let runtime = tasks::half_runtime()?;
    let _entered = runtime.enter();
    let too_large = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    // The handler stays when its stream is dropped.
    drop(signal(too_large)?);
    Ok(runtime)
}

async fn until_stopped(
    settings: &Settings,
    config: Config,
    options: Options,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut bridge = tokio::select! {
        started = Box::pin(Bridge::start(config, options)) => started?,
        // An aborted start, perhaps because of a hanging adapter, ends like a crash: no request was
        // answered yet.
        () = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    loop {
        tokio::select! {
            () = signals.next() => break,
            () = bridge.lost_store() => anyhow::bail!(
                "ended because `strict` is set and the files of the store were removed or replaced"
            ),
            _ = hangup.recv() => settings.reload(&mut bridge).await,
        }
    }
    tokio::select! {
        left_open = bridge.stop() => match left_open {
            None => Ok(ExitCode::SUCCESS),
            Some(reason) => anyhow::bail!(
                "the store was not closed: {reason}; all that was answered is on disk, and the next start recovers it"
            ),
        },
        () = signals.next() => Ok(ExitCode::from(INTERRUPTED)),
    }
}

/// Sources of the settings, and the process-wide log configuration.
struct Settings {
    sources: Sources,
    logs: Logs,
}

impl Settings {
    /// Reloads the settings. After an error, the bridge continues with its current ones.
    async fn reload(&self, bridge: &mut Bridge) {
        let Loaded {
            config,
            file,
            warnings,
        } = match self.sources.load() {
            Ok(loaded) => loaded,
            Err(error) => return tracing::error!("settings unchanged: {error}"),
        };
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let level = config.log.level.clone();
        let restart = match bridge.reload(config).await {
            Ok(restart) => restart,
            Err(error) => return tracing::error!("settings unchanged: {error:#}"),
        };
        match file {
            Some(file) => tracing::info!("settings reloaded from {}", file.display()),
            None => tracing::info!("no configuration file to reload"),
        }
        if !restart.is_empty() {
            tracing::warn!(
                "changed, but effective only after a restart: {}",
                restart.join(", ")
            );
        }
        if let Err(error) = self.logs.set_level(&level) {
            tracing::error!("the log level is unchanged: {error}");
        }
    }
}

/// SIGTERM and SIGINT, treated alike.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
